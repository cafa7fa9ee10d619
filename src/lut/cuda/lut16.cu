#include <algorithm>

#include "lut/cuda/lut16.cuh"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"

namespace qcore {
namespace {

constexpr int kThreads = 1024;
constexpr int kVectors = 4;  // per thread in flight
constexpr int kVectorItems = 8;

struct Arguments {
  const uint4* map;
  const void* x;
  void* y;
  std::int64_t count;
};

__device__ __forceinline__ void load(const uint4* x, std::int64_t at, std::int64_t threads, std::int64_t vectors,
                                     uint4 (&words)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (at + v * threads < vectors) words[v] = x[at + v * threads];
}

// Returns the results of the two numbers in a word.
__device__ __forceinline__ std::uint32_t mapped(std::uint32_t word, const char* map) {
  word ^= word >> 5 & 0x003e003eu;
  const std::uint32_t low = *reinterpret_cast<const std::uint16_t*>(map + (word << 1 & 0x1fffeu));
  const std::uint32_t high = *reinterpret_cast<const std::uint16_t*>(map + (word >> 15 & 0x1fffeu));
  return low | high << 16;
}

__global__ void __launch_bounds__(kThreads, 1) lut16_kernel(const Arguments a) {
  const auto* x = static_cast<const uint4*>(a.x);
  auto* y = static_cast<uint4*>(a.y);
  auto* map = reinterpret_cast<uint4*>(dynamic_shared());
  const std::int64_t vectors = a.count / kVectorItems, threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t last = vectors * kVectorItems + at;

  // x is on its way while the map is.
  uint4 words[kVectors] = {};
  load(x, at, threads, vectors, words);
#pragma unroll
  for (int i = 0; i < kLut16Bytes / static_cast<int>(sizeof(uint4)) / kThreads; ++i)
    map[i * kThreads + threadIdx.x] = a.map[i * kThreads + threadIdx.x];
  __syncthreads();
  const char* bytes = reinterpret_cast<const char*>(map);

  // A thread reads a vector long before it writes it, and no other thread touches it.
  for (; at < vectors; at += kVectors * threads) {
    uint4 next[kVectors] = {};
    load(x, at + kVectors * threads, threads, vectors, next);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (at + v * threads >= vectors) continue;
      uint4 result;
      result.x = mapped(words[v].x, bytes), result.y = mapped(words[v].y, bytes);
      result.z = mapped(words[v].z, bytes), result.w = mapped(words[v].w, bytes);
      y[at + v * threads] = result;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) words[v] = next[v];
  }
  if (last < a.count)
    static_cast<std::uint16_t*>(a.y)[last] =
        reinterpret_cast<const std::uint16_t*>(bytes)[lut16_index(static_cast<const std::uint16_t*>(a.x)[last])];
}

}  // namespace

void run_lut16(const std::uint16_t* map, const void* x, void* y, std::int64_t count, int device, cudaStream_t stream) {
  const std::int64_t blocks = std::clamp<std::int64_t>(count / kVectorItems / kThreads, 1, multiprocessors(device));
  launch("lut16", lut16_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<std::size_t>(kLut16Bytes)}, stream,
         Arguments{reinterpret_cast<const uint4*>(map), x, y, count});
}

}  // namespace qcore
