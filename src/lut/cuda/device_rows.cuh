#pragma once

#include <algorithm>
#include <type_traits>

#include "lut/cuda/device_elements.cuh"
#include "lut/cuda/device_table.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/cuda_warp.cuh"

// Provides the row loop of softmax and rms_norm: a warp or a thread block takes a row and keeps its values in shared
// memory as fp32. A row that is too long for that is read part by part, as often as its values are needed. Element i of
// a row is added by lane i mod 32 of one warp, in the order of i.
namespace qcore {

constexpr int kRowThreads = 256;
constexpr std::int64_t kLongestWarpRow = 1024;
constexpr std::int64_t kMaxReadTwice = 8192;  // bytes: of all warps' rows together, what the second-level cache holds
constexpr std::int64_t kMaxRowFloats = 8192;

struct RowArguments {
  RowProblem problem;
  DeviceTable first, second;
  std::int64_t rows, row_floats;
  std::int32_t first_bytes, second_bytes;
};

// The threads of one row.
template <bool kWarp>
struct RowGroup {
  static constexpr bool kIsWarp = kWarp;
  int thread, threads;
  float* values;  // [row_floats]
  float* mail;    // [kRowThreads / kWarpSize], of the block

  __device__ __forceinline__ RowGroup(const RowArguments& a, char* shared) {
    const int number = static_cast<int>(threadIdx.x);
    thread = kWarp ? number % kWarpSize : number;
    threads = kWarp ? kWarpSize : kRowThreads;
    mail = reinterpret_cast<float*>(shared + a.first_bytes + a.second_bytes);
    values = mail + kRowThreads / kWarpSize + (kWarp ? number / kWarpSize * a.row_floats : 0);
  }
  __device__ __forceinline__ static std::uint32_t first_row() {
    const std::uint32_t block = blockIdx.x;
    return kWarp ? block * (kRowThreads / kWarpSize) + threadIdx.x / kWarpSize : block;
  }
  __device__ __forceinline__ static std::uint32_t row_step() {
    return gridDim.x * (kWarp ? kRowThreads / kWarpSize : 1);
  }
  __device__ __forceinline__ void sync() const {
    if constexpr (kWarp)
      __syncwarp();
    else
      __syncthreads();
  }
  __device__ __forceinline__ bool adds() const { return kWarp || thread < kWarpSize; }

  __device__ __forceinline__ float largest(float x) const {
    const auto larger = [](float a, float b) { return a > b ? a : b; };
    x = warp_reduce(x, larger);
    if constexpr (!kWarp) {
      if (thread % kWarpSize == 0) mail[thread / kWarpSize] = x;
      __syncthreads();
      for (int i = 0; i < kRowThreads / kWarpSize; ++i) x = larger(x, mail[i]);
    }
    return x;
  }
  // To all threads from those of the first warp, where it is the same in all lanes.
  __device__ __forceinline__ float broadcast(float x) const {
    if constexpr (!kWarp) {
      __syncthreads();
      if (thread == 0) mail[0] = x;
      __syncthreads();
      x = mail[0];
    }
    return x;
  }
};

// Unrolled, since an array that is indexed at run time is no array of registers.
template <class Values, class Function>
__device__ __forceinline__ void each(Values& values, const Function& function) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(float)); ++i) function(values[i]);
}

template <int kCount>
__device__ __forceinline__ void put(float* to, const float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    *to = values[0];
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
  }
}

template <int kCount>
__device__ __forceinline__ void get(const float* from, float (&values)[kCount]) {
  if constexpr (kCount == 1) {
    values[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
  }
}

// Elements of rows by vectors: x and y contiguous along the row, aligned, of one dtype.
template <DType kDType>
struct VectorElements {
  using V = Vector<kDType>;

  // Element i of a row of x.
  __device__ __forceinline__ static float load(const RowProblem& p, const LutOffsets& at, std::int64_t i) {
    return load_float(p.rows.x, kDType, at.x + i);
  }
  using Item = std::conditional_t<kDType == DType::f32, float, std::uint16_t>;

  // function(i, values), values being those of x from begin + i on, for the group's share of i in [0, count).
  template <class Group, class Function>
  __device__ __forceinline__ static void read(const RowProblem& p, const LutOffsets& at, const Group& group,
                                              std::int64_t begin, int count, const Function& function) {
    const Item* x = static_cast<const Item*>(p.rows.x) + at.x + begin;
    const int whole = count / V::kCount * V::kCount;
    for (int i = group.thread * V::kCount; i < whole; i += group.threads * V::kCount) {
      float values[V::kCount];
      V::unpack(*reinterpret_cast<const uint4*>(x + i), values);
      function(i, values);
    }
    for (int i = whole + group.thread; i < count; i += group.threads) {
      float value[1] = {load_float(x, kDType, i)};
      function(i, value);
    }
  }

  // Writes to y, from begin + i on, what function(i, values) leaves in values.
  template <class Group, class Function>
  __device__ __forceinline__ static void write(const RowProblem& p, const LutOffsets& at, const Group& group,
                                               std::int64_t begin, int count, const Function& function) {
    Item* y = static_cast<Item*>(p.rows.y) + at.y + begin;
    const int whole = count / V::kCount * V::kCount;
    for (int i = group.thread * V::kCount; i < whole; i += group.threads * V::kCount) {
      float values[V::kCount];
      function(i, values);
      *reinterpret_cast<uint4*>(y + i) = V::pack(values);
    }
    for (int i = whole + group.thread; i < count; i += group.threads) {
      float value[1];
      function(i, value);
      store_float(y, kDType, i, value[0]);
    }
  }

  // y = function(i, x) of a whole row.
  template <class Group, class Function>
  __device__ __forceinline__ static void map(const RowProblem& p, const LutOffsets& at, const Group& group,
                                             const Function& function) {
    const Item* x = static_cast<const Item*>(p.rows.x) + at.x;
    Item* y = static_cast<Item*>(p.rows.y) + at.y;
    const std::int64_t whole = p.count / V::kCount * V::kCount;
#pragma unroll 2
    for (std::int64_t i = group.thread * V::kCount; i < whole; i += group.threads * V::kCount) {
      float values[V::kCount];
      V::unpack(*reinterpret_cast<const uint4*>(x + i), values);
      function(i, values);
      *reinterpret_cast<uint4*>(y + i) = V::pack(values);
    }
    for (std::int64_t i = whole + group.thread; i < p.count; i += group.threads) {
      float value[1] = {load_float(x, kDType, i)};
      function(i, value);
      store_float(y, kDType, i, value[0]);
    }
  }
};

// Any strides and dtypes.
struct StridedElements {
  __device__ __forceinline__ static float load(const RowProblem& p, const LutOffsets& at, std::int64_t i) {
    return load_float(p.rows.x, p.rows.x_dtype, at.x + i * p.x_stride);
  }
  template <class Group, class Function>
  __device__ __forceinline__ static void read(const RowProblem& p, const LutOffsets& at, const Group& group,
                                              std::int64_t begin, int count, const Function& function) {
    for (int i = group.thread; i < count; i += group.threads) {
      float value[1] = {load_float(p.rows.x, p.rows.x_dtype, at.x + (begin + i) * p.x_stride)};
      function(i, value);
    }
  }
  template <class Group, class Function>
  __device__ __forceinline__ static void write(const RowProblem& p, const LutOffsets& at, const Group& group,
                                               std::int64_t begin, int count, const Function& function) {
    for (int i = group.thread; i < count; i += group.threads) {
      float value[1];
      function(i, value);
      store_float(p.rows.y, p.rows.y_dtype, at.y + (begin + i) * p.y_stride, value[0]);
    }
  }
  template <class Group, class Function>
  __device__ __forceinline__ static void map(const RowProblem& p, const LutOffsets& at, const Group& group,
                                             const Function& function) {
    for (std::int64_t i = group.thread; i < p.count; i += group.threads) {
      float value[1] = {load(p, at, i)};
      function(i, value);
      store_float(p.rows.y, p.rows.y_dtype, at.y + i * p.y_stride, value[0]);
    }
  }
};

// Calls part(begin, count) for stretches of a row that fit in shared memory.
template <class Part>
__device__ __forceinline__ void for_parts(const RowArguments& a, const Part& part) {
  for (std::int64_t begin = 0; begin < a.problem.count; begin += a.row_floats)
    part(begin, static_cast<int>(a.problem.count - begin < a.row_floats ? a.problem.count - begin : a.row_floats));
}

__device__ __forceinline__ float plain_nan(float x) { return x != x ? numerics::bits_float(numerics::kNaNBits) : x; }

// Looks up a number that a whole row shares.
template <Reduction kReduction>
__device__ __forceinline__ float look_up_in(const DeviceTable& table, const char* shared, int lane, float x) {
  float y = 0.0f;
  with_table(table, shared, lane,
             [&](const auto& entries) { y = numerics::lut_eval<kReduction, DeviceLanes>(x, entries); });
  return y;
}

// Whether VectorElements takes the rows.
inline bool rows_are_vectors(const RowProblem& p) {
  if (p.x_stride != 1 || p.y_stride != 1 || p.rows.x_dtype != p.rows.y_dtype) return false;
  const std::int64_t items = p.rows.x_dtype == DType::f32 ? 4 : 8;
  bool aligned = is_aligned(p.rows.x) && is_aligned(p.rows.y);
  for (int axis = 0; axis < p.rows.rank; ++axis)
    aligned &= p.rows.x_strides[axis] % items == 0 && p.rows.y_strides[axis] % items == 0;
  return aligned;
}

using RowKernel = void (*)(const RowArguments);

struct RowPlan {
  int blocks_per_multiprocessor;
  int copies_shift;     // of the first table
  bool warp_rows_wait;  // in shared memory; otherwise a warp takes long rows too, where there are many
};

// `of_blocks` and `of_warps` are a kernel's instances for a block and for a warp per row: fp32, fp16, bf16, strided.
inline void launch_rows(const char* name, const RowKernel (&of_blocks)[4], const RowKernel (&of_warps)[4],
                        const RowProblem& problem, const RowPlan& plan) {
  if (problem.rows.size() == 0 || problem.count == 0) return;
  if (problem.rows.size() > kMaxCounted)
    return for_pieces(problem.rows, kMaxCounted, [&](const LutProblem& rows) {
      RowProblem piece = problem;
      piece.rows = rows;
      launch_rows(name, of_blocks, of_warps, piece, plan);
    });
  RowArguments a;
  a.problem = problem;
  a.rows = problem.rows.size();
  const int device = problem.device.index;
  DeviceGuard guard(device);
  a.first = device_table(*problem.first, device, plan.copies_shift);
  a.first_bytes = a.first.shared_bytes();
  a.second = problem.second ? device_table(*problem.second, device, 0) : DeviceTable{};
  a.second_bytes = problem.second ? a.second.shared_bytes() : 0;
  const std::int64_t most_blocks = static_cast<std::int64_t>(multiprocessors(device)) * plan.blocks_per_multiprocessor;
  const bool warp_rows = problem.count <= kLongestWarpRow ||
                         (!plan.warp_rows_wait && problem.count * item_size(problem.rows.x_dtype) <= kMaxReadTwice &&
                          a.rows >= most_blocks * (kRowThreads / kWarpSize) / 2);
  const int groups = warp_rows ? kRowThreads / kWarpSize : 1;
  a.row_floats = warp_rows && !plan.warp_rows_wait ? 0 : round_up(std::min(problem.count, kMaxRowFloats), kWarpSize);
  const std::int64_t shared_bytes =
      a.first_bytes + a.second_bytes +
      static_cast<std::int64_t>(sizeof(float)) * (kRowThreads / kWarpSize + groups * a.row_floats);
  const int column = !rows_are_vectors(problem) ? 3 : static_cast<int>(problem.rows.x_dtype);
  launch(name, (warp_rows ? of_warps : of_blocks)[column],
         {dim3(static_cast<unsigned>(std::min(ceil_div(a.rows, groups), most_blocks))), dim3(kRowThreads),
          static_cast<std::size_t>(shared_bytes)},
         static_cast<cudaStream_t>(problem.stream), a);
}

}  // namespace qcore
