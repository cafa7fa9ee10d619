#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

// A machine that runs kernels on the CPU: clusters of thread blocks one after the other, each thread a fiber that runs
// until it reaches a barrier or a shuffle. Launches alternate between rising and falling thread order, so that code
// which leans on one order fails.

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace cuda_host {

// A kernel broke a rule of the machine: barriers that not all threads reach, too much shared memory.
class MachineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void sync_threads();

int lane();

// Values that the lanes of a warp posted. Lanes that are not in the mask, or do not exist, read as poison.
struct Posted {
  const std::uint64_t* values;
  unsigned lanes;
  std::uint64_t read(int from) const { return lanes >> from & 1u ? values[from] : ~std::uint64_t{0}; }
};
// Waits until every lane of the mask has called with the same mask and `where`.
Posted exchange(unsigned mask, std::uint64_t value, const char* where);

// The registers of all 32 lanes of a warp, of which each passes its own.
template <int kCount>
class WarpWords {
 public:
  WarpWords(const std::uint32_t (&own)[kCount], const char* where) {
    for (int i = 0; i < kCount; i += 2) {
      const std::uint64_t pair = own[i] | std::uint64_t{i + 1 < kCount ? own[i + 1] : 0} << 32;
      const Posted posted = exchange(0xffffffffu, pair, where);
      for (int lane = 0; lane < 32; ++lane) {
        words_[lane][i] = static_cast<std::uint32_t>(posted.read(lane));
        if (i + 1 < kCount) words_[lane][i + 1] = static_cast<std::uint32_t>(posted.read(lane) >> 32);
      }
    }
  }
  std::uint32_t word(int lane, int index) const { return words_[lane][index]; }
  int unsigned_byte(int lane, int word, int byte) const { return words_[lane][word] >> (8 * byte) & 0xffu; }
  int signed_byte(int lane, int word, int byte) const {
    return static_cast<std::int8_t>(words_[lane][word] >> (8 * byte) & 0xffu);
  }

 private:
  std::uint32_t words_[32][kCount];
};

// The sum of the products of the four bytes of two words, modulo 2^32.
inline std::uint32_t product_of_bytes(std::uint32_t a, std::uint32_t b, bool a_signed, bool b_signed) {
  const std::uint32_t a_sign = a_signed ? 0x80u : 0, b_sign = b_signed ? 0x80u : 0;
  std::uint32_t sum = 0;
  for (int shift = 0; shift < 32; shift += 8)
    sum += (((a >> shift & 0xffu) ^ a_sign) - a_sign) * (((b >> shift & 0xffu) ^ b_sign) - b_sign);
  return sum;
}

// Asynchronous copies of the running thread, from null: zeros. A copy poisons its destination when it is issued and
// happens when it is waited for, so that both reading too early and issuing while another thread still reads are seen.
void copy_async(void* to, const void* from, std::size_t bytes);
void copy_commit();
void copy_wait(std::size_t groups);

// The block's number in its cluster, and a place in the dynamic shared memory of another one there.
int cluster_rank();
void cluster_sync();
void* shared_of(int rank, void* own);
constexpr int kResidentClusters = 2;

// Barriers that copies count at too: see runtime/ptx_wgmma.cuh. A bulk copy poisons its destination when it is issued
// and happens when no thread can go on without it.
void barrier_init(std::uint64_t* barrier, int count);
void barrier_arrive(std::uint64_t* barrier, int bytes);
void barrier_arrive_with_copies(std::uint64_t* barrier);
void barrier_complete(std::uint64_t* barrier, int bytes);  // that are there
void barrier_wait(std::uint64_t* barrier, unsigned parity);
void bulk_copy(void* to, const void* from, std::size_t bytes, std::uint64_t* barrier);
// A part of a matrix, with zeros where it reaches over the matrix's edge: see runtime/cuda/ptx_tensor_map.cuh.
struct PartCopy {
  const char* data;
  std::size_t value_bytes;
  std::int64_t rows, columns, row_stride;
  int part_rows, part_columns;
  bool swizzled;
};
void part_copy(void* to, const PartCopy& from, std::int64_t row, std::int64_t column, std::uint64_t* barrier);
template <class MatrixParts>
void tensor_copy(void* to, const MatrixParts& of, std::int64_t row, std::int64_t column, std::uint64_t* barrier) {
  part_copy(to,
            {static_cast<const char*>(of.data), static_cast<std::size_t>(of.value_bytes), of.rows, of.columns,
             of.row_stride, of.part_rows, of.part_columns, of.swizzled},
            row, column, barrier);
}

// Rows of 128 or 64 bytes of channels, swizzled: of as many pixels as next() is called for. null stands for zeros.
void pixel_copy(void* to, int pixels, int row_bytes, std::uint64_t* barrier, const std::function<const char*()>& next);

// A flag that another thread block raises has to be up already: thread blocks run one after the other.
void check_raised(bool raised);

// Work of the running thread that is done when it is waited for.
void product(std::function<void()> work);
void products_commit();
void products_wait();

// `bytes` of the block's shared memory, the same for every thread that asks with this key. Filled with 0xff, a NaN in
// every floating-point format, when the block starts.
void* shared_memory(const void* key, std::size_t bytes);
template <class T>
T& block_shared() {
  static const char key = 0;
  return *static_cast<T*>(shared_memory(&key, sizeof(T)));
}
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(shared_memory(nullptr, 0));
}

// A cluster is that many thread blocks which follow each other along x.
bool launchable(dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster);
void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster, void (*run)(void*),
              void* context);

// Count launches: by name, then by kernel (the instances of a template).
void record(const char* name, const void* kernel);
const std::map<std::string, std::map<const void*, int>>& launches();

}  // namespace cuda_host
