#include "linear/cuda/sm75_gemv/gemv_kernels.cuh"
#include "numerics/block_scale.h"

namespace qcore::gemv {
namespace {

// Codes become floats without a conversion: as the lowest bits of 2^23 they add themselves to it.
constexpr std::uint32_t kTwo23Bits = 0x4b000000u;
constexpr float kTwo23 = 8388608.0f;

// The codes of one column's 8 k of a chunk, those of 4 bits times nibble_weight().
template <int kBits>
__device__ __forceinline__ void decode_codes(float (&codes)[8], std::uint32_t first, std::uint32_t second) {
  if constexpr (kBits == 8) {
    const std::uint32_t words[2] = {first, second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      codes[4 * i] = numerics::bits_float(ptx::insert_byte<0>(words[i], kTwo23Bits)) - (kTwo23 + 128.0f);
      codes[4 * i + 1] = numerics::bits_float(ptx::insert_byte<1>(words[i], kTwo23Bits)) - (kTwo23 + 128.0f);
      codes[4 * i + 2] = numerics::bits_float(ptx::insert_byte<2>(words[i], kTwo23Bits)) - (kTwo23 + 128.0f);
      codes[4 * i + 3] = numerics::bits_float(ptx::insert_byte<3>(words[i], kTwo23Bits)) - (kTwo23 + 128.0f);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t half = k % 4 < 2 ? first : first >> 16;
      const std::uint32_t mask = 15u << (8 * (k % 2) + 4 * (k / 4));
      codes[k] = numerics::bits_float(ptx::and_or(half, mask, kTwo23Bits)) - (kTwo23 + 8.0f * nibble_weight(k));
    }
  }
}

template <int kBits, int kRows, bool kOffsets>
class Gemv {
 public:
  __device__ explicit Gemv(const FloatArguments& arguments)
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
      ptx::copy_wait<0>();
      __syncwarp();
      multiply(round);
      if (round + 1 < rounds) load(round + 1);
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
  __device__ float* sums(int slot, int row) const {  // [32]
    return reinterpret_cast<float*>(memory_ + shared_.sums_at()) + (slot * rows_ + row) * kColumns;
  }

  __device__ void load(std::int64_t round) {
    Cursor at(a_.schedule, a_.w.blocks, round, lane_.warp);
    for (int i = 0; i < at.left; ++i)
      copy_parameters(parameters(round)[lane_.warp * a_.schedule.warp_segments + i], a_.w, at.p + i, lane_.lane);
    ptx::copy_commit();
#pragma unroll
    for (int i = 0; i < batch_chunks(kBits); ++i) {
      if (!at.valid()) break;
      load_chunk<kBits>(batch_[i], a_.w, column_, at, lane_.quad);
      at.next();
    }
  }

  __device__ void multiply(std::int64_t round) {
    Cursor at(a_.schedule, a_.w.blocks, round, lane_.warp);
    int slot = lane_.warp * a_.schedule.warp_segments;
    float products[kRows][4] = {};
#pragma unroll
    for (int i = 0; i < batch_chunks(kBits); ++i) {
      if (!at.valid()) break;
      float x[kRows][8];
      load_x(x, at);
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        float w[8];
        decode_codes<kBits>(w, word(batch_[i][0], column), word(batch_[i][chunk_loads(kBits) - 1], column));
        if constexpr (kOffsets) {
          const ColumnParameters& block = parameters(round)[slot];
          const float scale = block.scales[4 * lane_.group + column], offset = block.offsets[4 * lane_.group + column];
#pragma unroll
          for (int k = 0; k < 8; ++k)
            w[k] = numerics::fma_once(scale, w[k], kBits == 8 ? offset : offset * nibble_weight(k));
        }
#pragma unroll
        for (int row = 0; row < kRows; ++row)
#pragma unroll
          for (int k = 0; k < 8; ++k)
            products[row][column] = numerics::fma_once(x[row][k], w[k], products[row][column]);
      }
      if (at.next()) keep(slot++, products);
    }
  }

  __device__ static std::uint32_t word(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }

  // Rows that do not exist repeat the last one.
  __device__ void load_x(float (&x)[kRows][8], const Cursor& at) const {
    const std::int64_t first = at.p * a_.x.padded_block + static_cast<std::int64_t>(at.chunk) * kChunk + 8 * lane_.quad;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const std::int64_t from = row < rows_ ? row : rows_ - 1;
      const auto* values =
          reinterpret_cast<const float4*>(a_.x.values + from * a_.x.blocks * a_.x.padded_block + first);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four = values[i];
        x[row][4 * i] = four.x, x[row][4 * i + 1] = four.y, x[row][4 * i + 2] = four.z, x[row][4 * i + 3] = four.w;
      }
    }
  }

  // The four lanes of a group hold parts of the same sums.
  __device__ void keep(int slot, float (&products)[kRows][4]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int column = 0; column < 4; ++column)
        for (int distance = 1; distance < 4; distance *= 2)
          products[row][column] += __shfl_xor_sync(kAllLanes, products[row][column], distance);
      if (lane_.quad == 0 && row < rows_)
        *reinterpret_cast<float4*>(sums(slot, row) + 4 * lane_.group) =
            make_float4(products[row][0], products[row][1], products[row][2], products[row][3]);
#pragma unroll
      for (int column = 0; column < 4; ++column) products[row][column] = 0.0f;
    }
  }

  // Thread (warp, lane) owns column `lane` of row `warp`.
  __device__ void accumulate(std::int64_t round) {
    if (lane_.warp >= rows_) return;
    const std::int64_t left = a_.schedule.segments - round * slots_;
    const int used = left < slots_ ? static_cast<int>(left) : slots_;
    const int block_segments = a_.schedule.block_segments;
    int segment = static_cast<int>(round * slots_ % block_segments);
#pragma unroll 4
    for (int slot = 0; slot < used; ++slot) {
      open_ += sums(slot, lane_.warp)[lane_.lane];
      if (++segment < block_segments) continue;
      y_ = kOffsets ? y_ + open_ : numerics::fma_once(open_, parameters(round)[slot].scales[lane_.lane], y_);
      open_ = 0.0f;
      segment = 0;
    }
  }

  __device__ void store() const {
    const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane_.lane;
    if (lane_.warp < rows_ && n < a_.w.n) store_epilogue(a_.out, a_.out.y.row_offset(a_.first_row + lane_.warp), n, y_);
  }

  const FloatArguments& a_;
  Lane lane_;
  WeightColumn column_;
  int rows_, slots_;
  SharedLayout shared_;
  char* memory_;
  uint4 batch_[batch_chunks(kBits)][chunk_loads(kBits)];
  float y_ = 0.0f, open_ = 0.0f;
};

template <int kBits, int kRows, bool kOffsets>
__global__ void __launch_bounds__(kThreads) gemv_float_kernel(const FloatArguments a) {
  Gemv<kBits, kRows, kOffsets>(a).run();
}

template <int kBits, bool kOffsets>
void launch_rows(const FloatArguments& a, const LaunchShape& shape, cudaStream_t stream) {
  static_assert(Tuning::kMaxFloatRows == 8 && Tuning::kWarps == 8, "a warp owns a row's outputs");
  const auto kernel = a.x.rows == 1   ? gemv_float_kernel<kBits, 1, kOffsets>
                      : a.x.rows <= 4 ? gemv_float_kernel<kBits, 4, kOffsets>
                                      : gemv_float_kernel<kBits, 8, kOffsets>;
  launch("gemv_float", kernel, shape, stream, a);
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const RowView x, const DeviceWeight w, const FloatRows out) {
  const std::int64_t row_length = out.blocks * out.padded_block;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= out.rows * row_length) return;
  const std::int64_t row = at / row_length, p = at % row_length / out.padded_block, i = at % out.padded_block;
  const std::int64_t k = p * w.block_size + i;
  float value = 0.0f;
  if (i < w.block_size && k < w.k) value = load_float(x.data, x.dtype, x.row_offset(row) + k * x.column_stride);
  out.values[at] = w.bits == 8 ? value : value * (1.0f / nibble_weight(static_cast<int>(i % 8)));
}

}  // namespace

void gather_rows(const RowView& x, const DeviceWeight& w, const FloatRows& out, cudaStream_t stream) {
  const std::int64_t count = out.rows * out.blocks * out.padded_block;
  if (count == 0) return;
  launch("gather_rows", gather_rows_kernel, {dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads)},
         stream, x, w, out);
}

void run_float(const FloatArguments& a, cudaStream_t stream) {
  const LaunchShape shape{
      dim3(static_cast<unsigned>(ceil_div(a.w.panels, 2))), dim3(kThreads),
      static_cast<std::size_t>(SharedLayout{slots(a.schedule), static_cast<int>(a.x.rows)}.bytes())};
  if (a.w.bits == 8)
    a.w.offsets ? launch_rows<8, true>(a, shape, stream) : launch_rows<8, false>(a, shape, stream);
  else
    a.w.offsets ? launch_rows<4, true>(a, shape, stream) : launch_rows<4, false>(a, shape, stream);
}

}  // namespace qcore::gemv
