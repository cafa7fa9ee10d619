#include "linear/cuda/sm75_int8_sliced/unpack_weight.cuh"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 16;  // codes per thread: one 16-byte store

struct Arguments {
  DeviceWeight w;
  std::int64_t first_block;
  std::int64_t row_chunks, block_chunks;  // chunks of one output row, and of one block in it
  std::int8_t* codes;
};

// Half a warp reads one step of a panel after the other, 64 consecutive bytes each; its other half takes the next chunk
// of the same rows, so that every row receives 32 consecutive bytes.
__global__ void __launch_bounds__(kThreads) unpack_weight_kernel(const Arguments a) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int row = static_cast<int>(thread % PackedLayout::kPanelRows);
  const std::int64_t chunk = thread / PackedLayout::kPanelRows;
  if (chunk >= a.row_chunks) return;
  const std::int64_t p = a.first_block + chunk / a.block_chunks, quad = chunk % a.block_chunks * (kChunk / 4);
  for (std::int64_t panel = blockIdx.y; panel < a.w.panels; panel += gridDim.y) {
    uint4 codes;
    codes.x = load_codes(a.w, panel, p, quad, row);
    codes.y = load_codes(a.w, panel, p, quad + 1, row);
    codes.z = load_codes(a.w, panel, p, quad + 2, row);
    codes.w = load_codes(a.w, panel, p, quad + 3, row);
    const std::int64_t n = panel * PackedLayout::kPanelRows + row;
    reinterpret_cast<uint4*>(a.codes)[n * a.row_chunks + chunk] = codes;
  }
}

}  // namespace

void unpack_weight(const DeviceWeight& w, std::int64_t first_block, std::int64_t blocks, std::int64_t padded_block,
                   std::int8_t* codes, cudaStream_t stream) {
  const std::int64_t block_chunks = padded_block / kChunk, row_chunks = blocks * block_chunks;
  if (row_chunks == 0 || w.panels == 0) return;
  constexpr std::int64_t kMaxGridRows = 65535;
  launch("unpack_weight", unpack_weight_kernel,
         {dim3(static_cast<unsigned>(ceil_div(row_chunks * PackedLayout::kPanelRows, kThreads)),
               static_cast<unsigned>(w.panels < kMaxGridRows ? w.panels : kMaxGridRows)),
          dim3(kThreads)},
         stream, Arguments{w, first_block, row_chunks, block_chunks, codes});
}

}  // namespace qcore
