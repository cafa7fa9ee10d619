#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda/ptx.cuh"

// Copies of rows of bytes from a cache to shared memory, which overtake the threads that ask for them.
namespace qcore {

// Row r of [begin, end) is `row_bytes` long, lies at `global + r * stride` and is copied to r * pitch. Other rows are
// not read, and their place in shared memory stays as it is.
struct RowCopy {
  const char* global;
  std::int64_t stride;
  int row_bytes, pitch, begin, end;
};

// Issues the copy by all threads of a block of kThreads. `vectors`: rows are multiples of 16 bytes and aligned to 16,
// otherwise their bytes are copied one by one and on the spot.
template <int kThreads>
__device__ __forceinline__ void copy_rows(const RowCopy& copy, char* shared, bool vectors) {
  const unsigned thread = threadIdx.x;
  if (vectors) {
    // The threads have as many whole rows as they can; those left over are idle, which spares a division for each.
    const unsigned per_row = static_cast<unsigned>(copy.row_bytes) / 16, first = thread / per_row;
    const int step = static_cast<int>(kThreads / per_row), vector = static_cast<int>(thread - first * per_row);
    if (static_cast<int>(first) >= step) return;
    int row = copy.begin + static_cast<int>(first);
    const char* from = copy.global + row * copy.stride + vector * 16;
    const std::int64_t advance = step * copy.stride;
#pragma unroll 1
    for (; row < copy.end; row += step, from += advance)
      ptx::copy_async(shared + row * copy.pitch + vector * 16, from, true);
    return;
  }
  const unsigned row_bytes = static_cast<unsigned>(copy.row_bytes);
  const int rows = copy.end - copy.begin;
#pragma unroll 1
  for (unsigned i = thread; rows > 0 && i < static_cast<unsigned>(rows) * row_bytes; i += kThreads) {
    const unsigned number = i / row_bytes, byte = i - number * row_bytes;
    const int row = copy.begin + static_cast<int>(number);
    shared[row * copy.pitch + static_cast<int>(byte)] = copy.global[row * copy.stride + byte];
  }
}

}  // namespace qcore
