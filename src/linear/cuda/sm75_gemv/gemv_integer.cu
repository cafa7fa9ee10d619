#include "linear/cuda/sm75_gemv/gemv_fragments.cuh"
#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "numerics/block_product.h"

namespace qcore::gemv {
namespace {

template <int kBits, int kTiles>
struct Batch {
  uint4 w[batch_chunks(kBits)][chunk_loads(kBits)];
  uint2 x[batch_chunks(kBits)][kTiles];  // 8 codes of row 8*tile + group
};

template <int kBits, int kTiles>
class Gemv {
 public:
  __device__ explicit Gemv(const IntegerArguments& arguments)
      : a_(arguments),
        column_(arguments.w, lane_),
        rows_(static_cast<int>(arguments.x.rows)),
        slots_(Tuning::kWarps * arguments.schedule.warp_segments),
        shared_{slots_, rows_},
        memory_(dynamic_shared()) {}

  __device__ void run() {
    const std::int64_t rounds = (a_.schedule.segments + slots_ - 1) / slots_;
    if (rounds > 0) load(0);
    for (std::int64_t round = 0; round < rounds; ++round) {
      multiply(round);
      if (round + 1 < rounds) {
        load(round + 1);
        ptx::copy_wait<1>();
      } else {
        ptx::copy_wait<0>();
      }
      __syncthreads();
      accumulate(round);
      __syncthreads();
    }
    store();
  }

 private:
  __device__ ColumnParameters* parameters(std::int64_t round) const {
    return reinterpret_cast<ColumnParameters*>(memory_) + (round & 1) * slots_;
  }
  __device__ ActivationTerms* terms(std::int64_t round) const {
    return reinterpret_cast<ActivationTerms*>(memory_ + shared_.terms_at(static_cast<int>(round & 1)));
  }
  __device__ std::int32_t* sums(int slot, int row) const {  // [32]
    return reinterpret_cast<std::int32_t*>(memory_ + shared_.sums_at()) + (slot * rows_ + row) * kColumns;
  }

  // Starts everything that a round reads.
  __device__ void load(std::int64_t round) {
    const std::int64_t row_codes = a_.x.blocks * a_.x.padded_block;
    Cursor at(a_.schedule, a_.w.blocks, round, lane_.warp);
    for (int i = 0; i < at.left; ++i) {
      const int slot = lane_.warp * a_.schedule.warp_segments + i;
      copy_parameters(parameters(round)[slot], a_.w, at.p + i, lane_.lane);
      if (lane_.lane < rows_)
        ptx::copy_async(&terms(round)[slot * rows_ + lane_.lane], &a_.x.terms[(at.p + i) * rows_ + lane_.lane], true);
    }
    ptx::copy_commit();
#pragma unroll
    for (int i = 0; i < batch_chunks(kBits); ++i) {
      if (!at.valid()) break;
      load_chunk<kBits>(batch_.w[i], a_.w, column_, at, lane_.quad);
      const std::int8_t* codes =
          a_.x.codes + at.p * a_.x.padded_block + static_cast<std::int64_t>(at.chunk) * kChunk + 8 * lane_.quad;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = 8 * tile + lane_.group;
        batch_.x[i][tile] = row < rows_ ? *reinterpret_cast<const uint2*>(codes + row * row_codes) : uint2{0, 0};
      }
      at.next();
    }
  }

  __device__ void multiply(std::int64_t round) {
    Cursor at(a_.schedule, a_.w.blocks, round, lane_.warp);
    int slot = lane_.warp * a_.schedule.warp_segments;
    std::int32_t products[kTiles][2][4] = {}, code_sums[2][4] = {};
#pragma unroll
    for (int i = 0; i < batch_chunks(kBits); ++i) {
      if (!at.valid()) break;
      const Fragments<kBits> w(batch_.w[i]);
      if (a_.activation_offsets) {
        // Products with rows of ones.
        constexpr std::uint32_t kOnes[2] = {0x01010101u, 0x01010101u};
        ptx::mma_u8s8(code_sums[0], w.first, kOnes, code_sums[0]);
        ptx::mma_u8s8(code_sums[1], w.second, kOnes, code_sums[1]);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const std::uint32_t x[2] = {batch_.x[i][tile].x, batch_.x[i][tile].y};
        ptx::mma_u8s8(products[tile][0], w.first, x, products[tile][0]);
        ptx::mma_u8s8(products[tile][1], w.second, x, products[tile][1]);
      }
      if (at.next()) {
        if (a_.activation_offsets) keep_code_sums(parameters(round)[slot], code_sums);
        keep(slot++, products);
      }
    }
  }

  __device__ void keep_code_sums(ColumnParameters& to, std::int32_t (&sums)[2][4]) const {
    if (lane_.quad == 0)
      *reinterpret_cast<int4*>(&to.code_sums[4 * lane_.group]) = int4{sums[0][0], sums[0][2], sums[1][0], sums[1][2]};
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i) sums[half][i] = 0;
  }

  __device__ void keep(int slot, std::int32_t (&products)[kTiles][2][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 8 * tile + 2 * lane_.quad + j;
        auto(&own)[2][4] = products[tile];
        if (row < rows_)
          *reinterpret_cast<int4*>(sums(slot, row) + 4 * lane_.group) =
              int4{own[0][j], own[0][j + 2], own[1][j], own[1][j + 2]};
        own[0][j] = own[0][j + 2] = own[1][j] = own[1][j + 2] = 0;
      }
  }

  // Thread (warp, lane) owns column `lane` of rows warp + kWarps*i.
  __device__ void accumulate(std::int64_t round) {
    const std::int64_t left = a_.schedule.segments - round * slots_;
    const int used = left < slots_ ? static_cast<int>(left) : slots_;
    const int block_segments = a_.schedule.block_segments;
    const int before = static_cast<int>(round * slots_ % block_segments);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int row = lane_.warp + Tuning::kWarps * i;
      if (row >= rows_) break;
      if (block_segments == 1) {
#pragma unroll 4
        for (int slot = 0; slot < used; ++slot)
          y_[i] = add(round, slot, row, static_cast<std::uint32_t>(sums(slot, row)[lane_.lane]), code_sum(round, slot),
                      y_[i]);
      } else {
        for (int slot = 0; slot < used; ++slot) {
          open_[i] += static_cast<std::uint32_t>(sums(slot, row)[lane_.lane]);
          open_code_sum_[i] += code_sum(round, slot);
          if ((before + slot) % block_segments != block_segments - 1) continue;
          y_[i] = add(round, slot, row, open_[i], open_code_sum_[i], y_[i]);
          open_[i] = 0;
          open_code_sum_[i] = 0;
        }
      }
    }
  }

  __device__ std::int32_t code_sum(std::int64_t round, int slot) const {
    return a_.activation_offsets ? parameters(round)[slot].code_sums[lane_.lane] : 0;
  }

  __device__ float add(std::int64_t round, int slot, int row, std::uint32_t stored_product, std::int32_t code_sum,
                       float y) const {
    const ColumnParameters& w = parameters(round)[slot];
    const ActivationTerms& x = terms(round)[slot * rows_ + row];
    const auto product = static_cast<std::int32_t>(stored_product + static_cast<std::uint32_t>(x.shift));
    const float scale = w.scales[lane_.lane], offset = a_.w.offsets ? w.offsets[lane_.lane] : 0.0f;
    y = numerics::add_product(y, product, x.scale, scale);
    if (a_.w.offsets) y = numerics::add_weight_offset(y, x.scaled_sum, offset);
    if (a_.activation_offsets) {
      // Padding within a step is code 0, stored like every code with its shift.
      constexpr int kStepShift = kBits == 8 ? 4 * 128 : 8 * 8;
      const std::int64_t p = (round * slots_ + slot) / a_.schedule.block_segments;
      const std::int32_t sum = code_sum - kStepShift * static_cast<std::int32_t>(a_.w.block_steps(p));
      y = numerics::add_activation_offset(y, x.offset,
                                          numerics::block_weight_sum(sum, a_.w.block_length(p), scale, offset));
    }
    return y;
  }

  __device__ void store() const {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane_.lane;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int row = lane_.warp + Tuning::kWarps * i;
      if (row < rows_ && n < a_.w.n) store_epilogue(a_.out, a_.out.y.row_offset(a_.first_row + row), n, y_[i]);
    }
  }

  const IntegerArguments& a_;
  Lane lane_;
  WeightColumn column_;
  int rows_, slots_;
  SharedLayout shared_;
  char* memory_;
  Batch<kBits, kTiles> batch_;
  float y_[kTiles] = {};
  // Sums of a block whose segments go on in the next round.
  std::uint32_t open_[kTiles] = {};
  std::int32_t open_code_sum_[kTiles] = {};
};

template <int kBits, int kTiles>
__global__ void __launch_bounds__(kThreads) gemv_integer_kernel(const IntegerArguments a) {
  Gemv<kBits, kTiles>(a).run();
}

template <int kBits>
void launch_tiles(const IntegerArguments& a, const LaunchShape& shape, cudaStream_t stream) {
  static_assert(Tuning::kMaxRows == 16 && Tuning::kWarps == 8, "tiles of 8 rows, and 8 warps to own their outputs");
  const auto kernel = a.x.rows <= 8 ? gemv_integer_kernel<kBits, 1> : gemv_integer_kernel<kBits, 2>;
  launch("gemv_integer", kernel, shape, stream, a);
}

}  // namespace

void run_integer(const IntegerArguments& a, cudaStream_t stream) {
  const LaunchShape shape{
      dim3(static_cast<unsigned>(ceil_div(a.w.panels, 2))), dim3(kThreads),
      static_cast<std::size_t>(SharedLayout{slots(a.schedule), static_cast<int>(a.x.rows)}.bytes())};
  if (a.w.bits == 8)
    launch_tiles<8>(a, shape, stream);
  else
    launch_tiles<4>(a, shape, stream);
}

}  // namespace qcore::gemv
