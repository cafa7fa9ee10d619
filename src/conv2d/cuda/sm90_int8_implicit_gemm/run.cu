#include <algorithm>

#include "conv2d/cuda/pixel_rows.cuh"
#include "formats/row_stride.h"
#include "gemm/cuda/sm90_int8_mma/gemm.cuh"
#include "gemm/cuda/sm90_int8_wgmma/gemm.cuh"
#include "gemm/cuda/weight_sums.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_scratch.h"
#include "runtime/memory.h"

// Integer activations under a window on sm_90: the tiles of linear's sm90_int8_mma where few would be large ones, those
// of sm90_int8_wgmma elsewhere, whose codes the copy engine finds under each tap; the former gather theirs.
namespace qcore {
namespace {

using Tile = Sm90ConvTile;
using sm90_int8_mma::Size;

constexpr Size kSizes[] = {Size::rows16, Size::rows32, Size::tall};

bool has_offsets(const Conv2dProblem& problem) {
  return problem.weight->offsets || problem.compute == ComputeMode::int8_asym;
}

// Whether tiles of warpgroups take a problem: the copy engine finds their pixels.
bool fits_warpgroups(const Conv2dProblem& problem) {
  const PackedLayout& layout = problem.weight->layout;
  return layout.k > 0 && layout.k % sm90_int8_wgmma::kTapK == 0 && layout.taps > 0 && fits_image_copies(problem.rows) &&
         fits_image_copies(problem.columns);
}
// Whether tiles of warps do.
bool fits_warps(const Conv2dProblem& problem) {
  const PackedLayout& layout = problem.weight->layout;
  return !has_offsets(problem) && std::min(layout.block_size, layout.k) <= 128;
}

int shift_of(Tile tile) {
  return sm90_int8_wgmma::Tuning::kSmallestShift + static_cast<int>(tile) - static_cast<int>(Tile::warpgroups32);
}

Tile choose(const Conv2dProblem& problem, std::int64_t results, std::int64_t enough_tiles) {
  const PackedLayout& layout = problem.weight->layout;
  constexpr int kColumns = sm90_int8_wgmma::Tuning::kColumns;
  const int shift = sm90_int8_wgmma::Tuning::row_shift(results, layout.n, enough_tiles);
  const auto of_warpgroups =
      static_cast<Tile>(static_cast<int>(Tile::warpgroups32) + shift - sm90_int8_wgmma::Tuning::kSmallestShift);
  if (!fits_warps(problem) ||
      (fits_warpgroups(problem) &&
       ceil_div(layout.n, kColumns) * ceil_div(results, std::int64_t{1} << shift) >= enough_tiles))
    return of_warpgroups;
  const auto tiles = [&](Size size) {
    const sm90_int8_mma::Shape shape = sm90_int8_mma::Tuning::shape(size);
    return ceil_div(layout.n, shape.columns()) * ceil_div(results, shape.rows());
  };
  const int enough = multiprocessors(problem.device.index);
  return tiles(Size::tall) >= enough ? Tile::tall : tiles(Size::rows32) >= enough ? Tile::rows32 : Tile::rows16;
}

// Returns the arguments of a tile's kernel, which takes all taps as one long row of blocks.
template <class Arguments>
Arguments arguments_of(const Conv2dProblem& problem, const DeviceWeight& w, const GatheredRows& gathered,
                       const QuantizedRows<std::int8_t>& x, std::int64_t first, std::int64_t results) {
  Arguments a{};
  a.w = w;
  a.w.blocks *= w.taps;
  a.w.steps *= w.taps;
  a.out = device_output(result_rows(problem), problem.bias, problem.activation);
  a.gathered = gathered;
  a.gathered.first = FirstResult(gathered.window, first);
  a.x = x;
  a.x.rows = results;
  a.first_row = first;
  return a;
}

void run_mma(sm90_int8_mma::WindowArguments a, Tile tile, cudaStream_t stream) {
  a.y_row_stride = row_stride(a.out.y);
  a.store_fours = columns_lie_together(a.out.y, 4);
  a.size = kSizes[static_cast<int>(tile)];
  sm90_int8_mma::run<sm90_int8_mma::Im2colRows>(a, stream);
}

void run_wgmma(sm90_int8_wgmma::WindowArguments a, Tile tile, int arrays, cudaStream_t stream) {
  a.pairs = a.out.y.leading == 1 && columns_lie_together(a.out.y, 2);
  a.x.tiled.shift = shift_of(tile);
  a.x.tiled.arrays = arrays;
  a.x.tiled.stages = ceil_div(a.w.blocks * a.x.padded_block, TiledRows::kStageK);
  a.cluster = sm90_int8_wgmma::cluster_of(ceil_div(a.x.rows, a.x.tiled.rows()));
  sm90_int8_wgmma::run<sm90_int8_wgmma::Im2colRows>(a, stream);
}

}  // namespace

const char* sm90_int8_implicit_gemm_unsupported_reason(const Conv2dProblem& problem) {
  if (const char* reason = sm80_int8_implicit_gemm_unsupported_reason(problem)) return reason;
  const PackedLayout& layout = problem.weight->layout;
  const std::int64_t block = std::min(layout.block_size, layout.k);
  if (problem.groups != 1) return "it takes one group";
  if (block == 0 || layout.k % block || (block != 32 && block != 64 && block % 128))
    return "it takes whole blocks of 32, 64 or a multiple of 128 channels";
  if (!fits_warps(problem) && !fits_warpgroups(problem))
    return "with offsets or more than 128 channels in a block it takes multiples of 64 channels, windows of up to 256 "
           "pixels, strides up to 8 and padding up to 127";
  if (compute_capability(problem.device.index) != 90) return "it needs compute capability 9.0";
  return nullptr;
}

void run_sm90_int8_implicit_gemm(const Conv2dProblem& problem, const Conv2dBounds& bounds) {
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  DeviceWeight w = device_weight(*problem.weight);
  const std::int64_t block = std::min(w.block_size, w.k), image_rows = rows_per_image(problem);
  const std::int64_t images = images_at_once(problem, w.k, bounds.codes), most_pixels = images * image_rows;
  const bool activation_offsets = problem.compute == ComputeMode::int8_asym;
  const int arrays = has_offsets(problem) ? 3 : 1;
  const std::int64_t most_results = std::min(images * results_per_image(problem), bounds.results);
  const Tile tile =
      bounds.tile < 0 ? choose(problem, most_results, bounds.enough_tiles) : static_cast<Tile>(bounds.tile);
  const bool warpgroups = tile >= Tile::warpgroups32;

  ScratchPlan plan;
  const auto codes = plan.add<std::int8_t>(std::max<std::int64_t>(most_pixels * w.k, 16));
  const auto parameters = plan.add<float>(std::max<std::int64_t>(arrays * w.blocks * most_pixels, 4));
  const auto weight_sums = plan.add<float>(activation_offsets ? weight_sum_count(w) : 0);
  CudaScratch scratch(plan, problem.device.index, stream);
  if (activation_offsets) add_weight_sums(w, scratch[weight_sums], stream);

  const RowView pixels = pixel_rows(problem);
  for (std::int64_t image = 0; image < problem.batch; image += images) {
    const std::int64_t last = std::min(image + images, problem.batch), rows = (last - image) * image_rows;
    float* scales = scratch[parameters];
    QuantizedRows<std::int8_t> x{scratch[codes], scales, nullptr, nullptr, rows, w.blocks, block};
    if (arrays == 3) x.scaled_sums = scales + w.blocks * rows, x.offsets = scales + 2 * w.blocks * rows;
    // Tiles of warps took 0.5 to 2 us longer with it: several calls' thread blocks share a multiprocessor then.
    x.starts_early = warpgroups;
    // Products of warpgroups take codes in the order of the weight's nibbles.
    if (warpgroups && w.bits == 4) x.tiled.order = TiledRows::Order::nibbles;
    GatheredRows gathered{};
    gathered.window = device_window(problem.rows, problem.columns, image_rows, problem.columns.input, 1);
    gathered.first_image = image;
    gathered.pixels = rows;
    gathered.tap_blocks = static_cast<int>(w.blocks);
    gathered.row_length = static_cast<int>(w.k);
    quantize_activations(pixels, {}, image * image_rows, w.k, w.block_size, problem.compute, x, stream);
    for_each_results(problem, image, last, bounds.results, [&](std::int64_t first, std::int64_t results) {
      const auto arguments = [&](auto of) {
        return arguments_of<decltype(of)>(problem, w, gathered, x, first, results);
      };
      if (warpgroups)
        run_wgmma(arguments(sm90_int8_wgmma::WindowArguments{}), tile, arrays, stream);
      else
        run_mma(arguments(sm90_int8_mma::WindowArguments{}), tile, stream);
    });
  }
}

}  // namespace qcore
