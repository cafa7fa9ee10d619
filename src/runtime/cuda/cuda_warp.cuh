#pragma once

#include <cuda_runtime.h>

// Reductions over the 32 lanes of a warp; every lane gets the result. All lanes must call.
namespace qcore {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

template <class T>
__device__ __forceinline__ T warp_min(T value) {
  return warp_reduce(value, [](T a, T b) { return b < a ? b : a; });
}

template <class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce(value, [](T a, T b) { return b > a ? b : a; });
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, [](T a, T b) { return a + b; });
}

}  // namespace qcore
