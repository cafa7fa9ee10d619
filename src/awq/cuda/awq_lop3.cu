#include <algorithm>

#include "awq/cuda/device_pairs.cuh"
#include "awq/cuda/kernels.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"
#include "runtime/cuda/ptx_memory.cuh"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kRows = 8;  // of a group that a thread takes, one word each
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = 8;  // of a word
constexpr std::int64_t kMaxGridRows = 65535;

// `octets` of 8 rows: those of a group, the last perhaps short, follow each other.
struct Octets {
  std::int64_t of_group, count;
  __device__ __forceinline__ std::int64_t group(std::int64_t octet) const { return octet / of_group; }
  __device__ __forceinline__ std::int64_t row(std::int64_t octet) const { return octet % of_group * kRows; }
};

struct Arguments {
  AwqProblem problem;
  Octets octets;
};

__device__ __forceinline__ AwqColumns load_columns(const AwqWeight& weight, std::int64_t group, std::int64_t word) {
  return {weight.qzeros[group * weight.qzeros_row + word],
          *reinterpret_cast<const uint4*>(weight.scales + group * weight.scales_row + word * kColumns)};
}

__device__ __forceinline__ void load_words(const AwqWeight& weight, std::int64_t row, std::int64_t word, int rows,
                                           std::uint32_t (&words)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (i < rows) words[i] = weight.qweight[(row + i) * weight.qweight_row + word];
}

// A warp reads 128 and writes 512 consecutive bytes of each of its rows.
__global__ void __launch_bounds__(kThreads) awq_rows_kernel(const __grid_constant__ Arguments a) {
  const AwqWeight& weight = a.problem.weight;
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * kWarpSize + threadIdx.x % kWarpSize;
  if (word * kColumns >= weight.n) return;
  const std::int64_t octets = static_cast<std::int64_t>(gridDim.y) * kWarps;
  for (std::int64_t octet = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarpSize;
       octet < a.octets.count; octet += octets) {
    const std::int64_t group = a.octets.group(octet), within = a.octets.row(octet);
    const std::int64_t left = weight.group_size - within, row = group * weight.group_size + within;
    const int rows = left < kRows ? static_cast<int>(left) : kRows;
    std::uint32_t words[kRows] = {};
    load_words(weight, row, word, rows, words);
    const AwqColumns columns = load_columns(weight, group, word);
    std::uint16_t* to = a.problem.out + row * a.problem.out_k + word * kColumns;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (i < rows) ptx::store_whole(reinterpret_cast<uint4*>(to + i * a.problem.out_k), columns.weights(words[i]));
  }
}

// The lower, or the upper numbers of two pairs.
template <bool kUpper>
__device__ __forceinline__ std::uint32_t one_column(std::uint32_t first, std::uint32_t second) {
  return ptx::pick_bytes<kUpper ? 0x7632u : 0x5410u>(first, second);
}

// Out by columns. Of a warp, 8 lanes read 32 consecutive bytes of a row, and 4 write 64 of a column.
__global__ void __launch_bounds__(kThreads) awq_columns_kernel(const __grid_constant__ Arguments a) {
  constexpr int kWords = 8, kOctets = kThreads / kWords;  // of a block
  const AwqWeight& weight = a.problem.weight;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * kWords + lane / 4;
  if (word * kColumns >= weight.n) return;
  const std::int64_t octets = static_cast<std::int64_t>(gridDim.y) * kOctets;
  for (std::int64_t octet = static_cast<std::int64_t>(blockIdx.y) * kOctets + warp * 4 + lane % 4;
       octet < a.octets.count; octet += octets) {
    const std::int64_t group = a.octets.group(octet), row = octet * kRows;
    std::uint32_t words[kRows];
    load_words(weight, row, word, kRows, words);
    const AwqColumns columns = load_columns(weight, group, word);
    uint4 rows[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = columns.weights(words[i]);
    std::uint16_t* to = a.problem.out + word * kColumns * a.problem.out_n + row;
    const auto store = [&](int column, auto pair, auto pick) {
      uint4 numbers;
      numbers.x = pick(pair(rows[0]), pair(rows[1]));
      numbers.y = pick(pair(rows[2]), pair(rows[3]));
      numbers.z = pick(pair(rows[4]), pair(rows[5]));
      numbers.w = pick(pair(rows[6]), pair(rows[7]));
      ptx::store_whole(reinterpret_cast<uint4*>(to + column * a.problem.out_n), numbers);
    };
    const auto store_two = [&](int column, auto pair) {
      store(column, pair, [](std::uint32_t x, std::uint32_t y) { return one_column<false>(x, y); });
      store(column + 1, pair, [](std::uint32_t x, std::uint32_t y) { return one_column<true>(x, y); });
    };
    store_two(0, [](const uint4& r) { return r.x; });
    store_two(2, [](const uint4& r) { return r.y; });
    store_two(4, [](const uint4& r) { return r.z; });
    store_two(6, [](const uint4& r) { return r.w; });
  }
}

bool is_aligned(const void* data, std::int64_t stride) {
  constexpr std::int64_t kVector = 16;
  return reinterpret_cast<std::uintptr_t>(data) % kVector == 0 && stride * 2 % kVector == 0;
}

}  // namespace

const char* awq_lop3_unsupported_reason(const AwqProblem& problem) {
  const AwqWeight& weight = problem.weight;
  if (problem.device.type != DeviceType::cuda) return "it runs on CUDA devices";
  if (!weight.has_whole_rows()) return "it takes weights whose rows are contiguous";
  if (!is_aligned(weight.scales, weight.scales_row)) return "it takes rows of scales that are aligned to 16 bytes";
  if (problem.out_n == 1 && is_aligned(problem.out, problem.out_k)) return nullptr;
  if (problem.out_k == 1 && is_aligned(problem.out, problem.out_n) && weight.group_size % kRows == 0) return nullptr;
  return "it writes rows, or columns of groups of a multiple of 8, that are contiguous and aligned to 16 bytes";
}

void run_awq_lop3(const AwqProblem& problem) {
  const AwqWeight& weight = problem.weight;
  DeviceGuard guard(problem.device.index);
  const auto stream = static_cast<cudaStream_t>(weight.stream);
  const std::int64_t of_group = ceil_div(weight.group_size, kRows), words = weight.n / kColumns;
  const Arguments arguments{problem, {of_group, of_group * weight.groups()}};
  const bool rows = problem.out_n == 1 && is_aligned(problem.out, problem.out_k);
  const std::int64_t block_words = rows ? kWarpSize : 8, block_octets = kThreads / block_words;
  const std::int64_t grid_rows = std::min(kMaxGridRows, ceil_div(arguments.octets.count, block_octets));
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(words, block_words)), static_cast<unsigned>(grid_rows)),
                          dim3(kThreads)};
  if (rows)
    launch("awq_rows", awq_rows_kernel, shape, stream, arguments);
  else
    launch("awq_columns", awq_columns_kernel, shape, stream, arguments);
}

}  // namespace qcore
