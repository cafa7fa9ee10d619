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

// Up to six registers of a lane. Those of all 32 stay until the calling lane posts again.
using LaneWords = std::uint32_t[6];
const LaneWords* exchange_words(const std::uint32_t* own, int count, const char* where);

// The registers of all 32 lanes of a warp, of which each passes its own.
template <int kCount>
class WarpWords {
 public:
  WarpWords(const std::uint32_t (&own)[kCount], const char* where) : words_(exchange_words(own, kCount, where)) {
    static_assert(kCount <= sizeof(LaneWords) / sizeof(std::uint32_t), "more registers than lanes post");
  }
  const LaneWords* lanes() const { return words_; }
  std::uint32_t word(int lane, int index) const { return words_[lane][index]; }
  int unsigned_byte(int lane, int word, int byte) const { return words_[lane][word] >> (8 * byte) & 0xffu; }
  int signed_byte(int lane, int word, int byte) const {
    return static_cast<std::int8_t>(words_[lane][word] >> (8 * byte) & 0xffu);
  }

 private:
  const LaneWords* words_;
};

// Adds the four results of one lane of the product m16n8k32, which runtime/cuda/ptx.cuh defines. `lanes` holds the
// words of all 32 lanes: words 0 to 3 are the lane's part of a, words 4 and 5 its part of b.
void add_byte_products(std::uint32_t (&sums)[4], const LaneWords* lanes, int lane, bool a_signed, bool b_signed);
// Does the same for m16n8k16, which runtime/cuda/ptx_half.cuh defines.
void add_half_products(float (&sums)[4], const LaneWords* lanes, int lane, bool bf16);

// Returns the sum of the products of 32 bytes, modulo 2^32.
std::uint32_t dot_bytes(const std::uint32_t (&a)[8], const std::uint32_t (&b)[8], bool a_signed, bool b_signed);
// Converts the 16 halves of eight words, the lower half of a word first.
void half_values(const std::uint32_t (&halves)[8], bool bf16, float (&values)[16]);
// Adds the products of 16 floats to `sum`, one after the other.
float add_dot(float sum, const float (&a)[16], const float (&b)[16]);

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

// Barriers that copies count at too: see runtime/cuda/ptx_wgmma.cuh. A bulk copy poisons its destination when it is
// issued and happens when no thread can go on without it.
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
