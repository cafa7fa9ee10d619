#include <algorithm>

#include "lut/cuda/device_elements.cuh"
#include "lut/cuda/device_table.cuh"
#include "lut/cuda/kernels.h"
#include "lut/cuda/lut16.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

namespace qcore {
namespace {

constexpr int kThreads = 512, kFewThreads = 128;
// Where the reduction takes more registers than 512 threads have.
template <Reduction kReduction>
constexpr int kThreadsFor = kReduction == Reduction::periodic || kReduction == Reduction::rsqrt ? 448 : kThreads;
constexpr int kBlocksPerMultiprocessor = 2;

// Copies of a table's entries cost time to write, for which few elements would wait.
int copies_shift_for(std::int64_t count) { return count >= 1 << 22 ? 5 : count >= 1 << 16 ? 2 : 0; }

struct Arguments {
  DeviceTable table;
  LutProblem problem;
  std::int64_t count;
};

// Whether tables may have buckets. Those of reductions have cuts that are too close.
template <Reduction kReduction, DType kDType>
constexpr bool kHasBuckets = kReduction == Reduction::none && kDType == DType::f32;

// x and y contiguous, aligned and of one dtype. A thread reads elements before it writes them, and no other thread
// does: x may be y. with_table_made(function), which runs function(look-ups), may make them while the first elements
// are on their way.
template <Reduction kReduction, DType kDType, class WithTable>
__device__ __forceinline__ void map_vectors(const Arguments& a, const WithTable& with_table_made) {
  using V = Vector<kDType>;
  constexpr int kVectors = 8 / V::kCount;  // in flight, of what registers hold
  // The next vectors are on their way while these are looked up, if registers suffice for it.
  constexpr bool kAhead = kDType == DType::f32 && kReduction != Reduction::periodic;
  const auto* x = static_cast<const uint4*>(a.problem.x);
  auto* y = static_cast<uint4*>(a.problem.y);
  const std::int64_t vectors = a.count / V::kCount, threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto load = [&](std::int64_t at, uint4(&words)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (at + v * threads < vectors) words[v] = x[at + v * threads];
  };
  uint4 words[kVectors] = {}, next[kVectors] = {};
  load(first, words);
  with_table_made([&](const auto& table) {
    for (std::int64_t at = first; at < vectors; at += kVectors * threads) {
      if constexpr (kAhead) load(at + kVectors * threads, next);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (at + v * threads >= vectors) continue;
        float values[V::kCount];
        V::unpack(words[v], values);
#pragma unroll
        for (int i = 0; i < V::kCount; ++i) values[i] = numerics::lut_eval<kReduction, DeviceLanes>(values[i], table);
        y[at + v * threads] = V::pack(values);
      }
      if constexpr (kAhead) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) words[v] = next[v];
      } else {
        load(at + kVectors * threads, words);
      }
    }
    const std::int64_t last = vectors * V::kCount + first;
    if (last < a.count)
      store_float(a.problem.y, kDType, last,
                  numerics::lut_eval<kReduction, DeviceLanes>(load_float(a.problem.x, kDType, last), table));
  });
}

template <Reduction kReduction, DType kDType>
__global__ void __launch_bounds__(kThreadsFor<kReduction>, kBlocksPerMultiprocessor)
    lut_kernel(const __grid_constant__ Arguments a) {
  const auto made = [&](const auto& run) {
    char* shared = dynamic_shared();
    fill_table<kHasBuckets<kReduction, kDType>>(a.table, shared, static_cast<int>(threadIdx.x),
                                                static_cast<int>(blockDim.x));
    __syncthreads();
    with_table<kHasBuckets<kReduction, kDType>>(a.table, shared, static_cast<int>(threadIdx.x) % kWarpSize, run);
  };
  // Of 16-bit elements a vector holds twice as many, whose registers are wanted for the table at first.
  if constexpr (kDType == DType::f32)
    map_vectors<kReduction, kDType>(a, made);
  else
    made([&](const auto& table) { map_vectors<kReduction, kDType>(a, [&](const auto& run) { run(table); }); });
}

// Any strides and dtypes.
template <Reduction kReduction>
__global__ void __launch_bounds__(kThreads) lut_strided_kernel(const __grid_constant__ Arguments a) {
  char* shared = dynamic_shared();
  fill_table(a.table, shared, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  __syncthreads();
  with_table(a.table, shared, static_cast<int>(threadIdx.x) % kWarpSize, [&](const auto& table) {
    const std::uint32_t threads = gridDim.x * blockDim.x, count = static_cast<std::uint32_t>(a.count);
    for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
      const LutOffsets at = device_offsets(a.problem, i);
      const float x = load_float(a.problem.x, a.problem.x_dtype, at.x);
      store_float(a.problem.y, a.problem.y_dtype, at.y, numerics::lut_eval<kReduction, DeviceLanes>(x, table));
    }
  });
}

// Work for `threads`, in blocks that are small while that many multiprocessors have none.
LaunchShape shape_for(std::int64_t threads, int device, const DeviceTable& table, int most_threads = kThreads) {
  const std::int64_t most_blocks = static_cast<std::int64_t>(multiprocessors(device)) * kBlocksPerMultiprocessor;
  const int size = threads >= most_blocks * most_threads ? most_threads : kFewThreads;
  const std::int64_t blocks = std::min(ceil_div(threads, size), most_blocks * (most_threads / size));
  return {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(size)),
          static_cast<std::size_t>(table.shared_bytes())};
}

using KernelFunction = void (*)(const Arguments);

bool takes_vectors(const LutProblem& problem) {
  const bool contiguous =
      problem.rank == 0 || (problem.rank == 1 && problem.x_strides[0] == 1 && problem.y_strides[0] == 1);
  return contiguous && problem.x_dtype == problem.y_dtype && is_aligned(problem.x) && is_aligned(problem.y);
}

using KernelFunction = void (*)(const Arguments);

template <Reduction kReduction>
void launch_reduced(const Arguments& a, cudaStream_t stream) {
  const LutProblem& problem = a.problem;
  if (!takes_vectors(problem))
    return for_pieces(problem, kMaxCounted, [&](const LutProblem& piece) {
      const std::int64_t count = piece.size();
      launch("lut_strided", lut_strided_kernel<kReduction>, shape_for(count, piece.device.index, a.table), stream,
             Arguments{a.table, piece, count});
    });
  const KernelFunction kernel = problem.x_dtype == DType::f16    ? lut_kernel<kReduction, DType::f16>
                                : problem.x_dtype == DType::bf16 ? lut_kernel<kReduction, DType::bf16>
                                                                 : lut_kernel<kReduction, DType::f32>;
  const std::int64_t vectors = ceil_div(a.count, problem.x_dtype == DType::f32 ? 4 : 8);
  // The last elements, less than a vector, take a thread each.
  launch("lut", kernel,
         shape_for(std::max<std::int64_t>(vectors, 8), problem.device.index, a.table, kThreadsFor<kReduction>), stream,
         a);
}

void evaluate(const LutProblem& problem, const DeviceTable& table, cudaStream_t stream) {
  const Arguments a{table, problem, problem.size()};
  switch (static_cast<Reduction>(problem.table->reduction)) {
    case Reduction::exp:
      return launch_reduced<Reduction::exp>(a, stream);
    case Reduction::log:
      return launch_reduced<Reduction::log>(a, stream);
    case Reduction::reciprocal:
      return launch_reduced<Reduction::reciprocal>(a, stream);
    case Reduction::sqrt:
      return launch_reduced<Reduction::sqrt>(a, stream);
    case Reduction::rsqrt:
      return launch_reduced<Reduction::rsqrt>(a, stream);
    case Reduction::periodic:
      return launch_reduced<Reduction::periodic>(a, stream);
    default:
      return launch_reduced<Reduction::none>(a, stream);
  }
}

const std::vector<std::uint16_t>& lut16_numbers() {
  static const std::vector<std::uint16_t> numbers = [] {
    std::vector<std::uint16_t> made(1 << 16);
    for (std::uint32_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::uint16_t>(lut16_index(i));
    return made;
  }();
  return numbers;
}

// The results of a 16-bit dtype, by the kernel that evaluates elements.
const std::uint16_t* lut16(const LutProblem& problem, const DeviceTable& table) {
  return problem.table->lut16_on_device(problem.device.index, problem.x_dtype, lut16_numbers,
                                        [&](void* memory, void* stream) {
                                          LutProblem all = problem;
                                          all.rank = 1;
                                          all.shape[0] = 1 << 16;
                                          all.x_strides[0] = all.y_strides[0] = 1;
                                          all.x = all.y = memory;
                                          evaluate(all, table, static_cast<cudaStream_t>(stream));
                                        });
}

}  // namespace

const char* lut_cuda_unsupported_reason(const LutProblem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on CUDA devices";
}

void run_lut_cuda(const LutProblem& problem, std::int64_t many_elements) {
  const std::int64_t count = problem.size();
  if (count == 0) return;
  const int device = problem.device.index;
  DeviceGuard guard(device);
  const auto stream = static_cast<cudaStream_t>(problem.stream);
  const bool many = count >= many_elements && takes_vectors(problem), wide = problem.x_dtype == DType::f32;
  const bool buckets = many && wide && static_cast<Reduction>(problem.table->reduction) == Reduction::none;
  const DeviceTable table = device_table(*problem.table, device, copies_shift_for(count), buckets);
  const bool direct = many && !wide && most_shared_bytes(device) >= kLut16Bytes;
  if (direct)
    run_lut16(lut16(problem, table), problem.x, problem.y, count, device, stream);
  else
    evaluate(problem, table, stream);
}

void run_lut_cuda(const LutProblem& problem) { run_lut_cuda(problem, kManyElements); }

}  // namespace qcore
