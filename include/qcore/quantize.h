#pragma once

#include <cstdint>
#include <memory>

#include "qcore/export.h"
#include "qcore/tensor_view.h"

namespace qcore {

enum class Scheme : std::uint8_t { symmetric, asymmetric };
enum class Method : std::uint8_t { rtn, mse, awq };

struct QuantizeOptions {
  // 4 or 8; 2, 3, 5 or 6 for an encoded weight [N, K] with codes from -2^(bits - 1) to 2^(bits - 1) - 1.
  int bits = 4;
  std::int64_t block_size = 64;  // g: consecutive k that share a scale and an offset
  Scheme scheme = Scheme::symmetric;
  Method method = Method::rtn;
  // f32, or f16: scales and offsets are rounded to fp16 before the codes are chosen, and take half the bytes.
  DType scale_dtype = DType::f32;
  // fp32 [K] on the CPU, finite and not negative; for Method::awq only: what an error of k counts, such as the mean of
  // x_k^2 over samples.
  const TensorView* importance = nullptr;
};

// Names the type in which an encoded weight stores its scales or offsets: floats, or unsigned integers of 4, 6 or 8
// bits, which have super-parameters (u4, u6, u8) or are zero points (z4, z8).
enum class ParameterType : std::uint8_t { none, f32, f16, bf16, e8m0, e4m3, u4, u6, u8, z4, z8 };

// How a weight is stored that keeps the bytes of its source: an unsigned code u of any width per element, and
// parameters as small as the source's.
//   w      = fma(scale, q, offset), q = codebook[u], or u - zero without a codebook
//   scale  = f32, f16, bf16: the number; e8m0, e4m3: the number times tensor_scale;
//            u4, u6, u8: super_scale * (number - scale_zero)
//   offset = f32, f16, bf16: the number; u4, u6, u8: -(super_offset * number); z4, z8: scale * (zero - number)
// A super-scale is fp16 and serves super_block blocks of a row, and so does a super-offset. Zero points mean
// w = scale * (u - number), rounded once, in dequantize() and embedding(). That is the same wherever fp32 holds the
// offset, so with fp16 and bf16 scales; linear() always multiplies with scale * q + offset.
struct WeightEncoding {
  int bits = 4;               // of u: 2, 3, 4, 5, 6 or 8
  int zero = 0;               // 0 to 128; q lies in [-128, 127]
  bool has_codebook = false;  // for bits up to 4
  std::int8_t codebook[16] = {};
  ParameterType scales = ParameterType::f16;
  ParameterType offsets = ParameterType::none;
  int scale_zero = 0;            // 0 to 255
  std::int64_t super_block = 0;  // of integer scales and offsets; 0 if there are none
  float tensor_scale = 1.0f;     // for e8m0 and e4m3

  // Throws ValueError for an encoding that no weight can have; `where` begins the message.
  QCORE_API void check(const char* where) const;

  QCORE_API friend bool operator==(const WeightEncoding& a, const WeightEncoding& b);
};

// The arrays of an encoded weight [N, K] on the CPU, any strides. Numbers of the types e8m0, e4m3, u4, u6, u8, z4 and
// z8 are uint8.
struct EncodedParts {
  TensorView codes;                           // u, uint8 [N, K]
  TensorView scales;                          // [N, P]
  const TensorView* offsets = nullptr;        // [N, P]
  const TensorView* super_scales = nullptr;   // fp16 [N, ceil(P / super_block)]
  const TensorView* super_offsets = nullptr;  // likewise
};

// Describes the bytes of QuantizedTensor::storage().
struct StorageFormat {
  int rank = 2;  // 2 or 4
  std::int64_t shape[4] = {};
  int bits = 4;
  std::int64_t block_size = 64;
  Scheme scheme = Scheme::symmetric;
  DType scale_dtype = DType::f32;            // f32 or f16; f32 on a CUDA device
  DType offset_dtype = DType::f32;           // likewise; without meaning in a symmetric weight
  const WeightEncoding* encoding = nullptr;  // replaces bits, scheme and both dtypes
};

struct PackedWeight;  // src/formats/packed_weight.h

// An immutable per-block quantized weight: w[n,k] ~ scale[n,p] * q[n,k] + offset[n,p], p = k / g.
// Shape is [N, K], or [Co, Ci, Kh, Kw] blocked along Ci with parameters shared by all taps (then
// N = Co, K = Ci and there are T = Kh*Kw taps). Copies share storage; safe to use from many threads.
class QCORE_API QuantizedTensor {
 public:
  // Quantizes `weight` (fp32, fp16 or bf16, rank 2 or 4, any strides, CPU). Throws ValueError for a
  // NaN or an Inf, naming its index, and for a scale or an offset that scale_dtype cannot hold.
  static QuantizedTensor quantize(const TensorView& weight, const QuantizeOptions& options);

  // Quantizes `weight` (fp32, fp16 or bf16 [N, K], any strides, CPU) into an encoding. Method::rtn takes the smallest
  // scales that clip nothing (for e8m0 the OCP's exponent), rounded to their type; Method::mse searches for the
  // smallest squared error, of super-parameters too; Method::awq does so with each k's error times importance[k], fp32
  // [K] as in QuantizeOptions. Throws ValueError for a NaN or an Inf, naming its index, and for a scale or an offset
  // that the encoding cannot hold. Integer offsets are never above 0.
  static QuantizedTensor quantize_encoded(const TensorView& weight, const WeightEncoding& encoding,
                                          std::int64_t block_size, Method method,
                                          const TensorView* importance = nullptr);

  // Takes codes (int8, [N, K] or [Co, Ci, Kh, Kw]), scales and offsets (fp32 [N, P]) as they are. Pass a
  // null `offsets` for a symmetric weight. Codes must lie in [-8, 7] or [-128, 127]. Scales and offsets may also be
  // fp16 or bf16.
  static QuantizedTensor from_parts(const TensorView& codes, const TensorView& scales, const TensorView* offsets,
                                    int bits, std::int64_t block_size);

  // Takes the codes of 4 bits as nibbles() writes them (uint8 [N, ceil(K * taps / 2)]) for a weight of `rank` 2 or 4
  // and this shape; the rest as above.
  static QuantizedTensor from_nibbles(const TensorView& nibbles, int rank, const std::int64_t* shape,
                                      const TensorView& scales, const TensorView* offsets, std::int64_t block_size);

  // Takes codes and parameters in an encoding, without loss. Throws ValueError for parts that the encoding does not
  // have or lacks, numbers outside their width, codes q outside [-128, 127], and scales or offsets that are not finite.
  static QuantizedTensor from_encoded(const WeightEncoding& encoding, const EncodedParts& parts,
                                      std::int64_t block_size);

  // Views memory that has the bytes of storage() of such a weight, without a copy. `owner` is kept as long as the
  // result and all copies of it live. The memory must begin at a multiple of 64 bytes and must not be written to.
  static QuantizedTensor from_storage(const TensorView& storage, std::shared_ptr<const void> owner,
                                      const StorageFormat& format);

  // Stacks the rows of weights [N_i, K] that agree in everything else, on the device of the first.
  static QuantizedTensor concatenate(const QuantizedTensor* weights, std::int64_t count);

  // For operators of this library that fill the storage themselves, parameters in fp32.
  static QuantizedTensor from_packed(std::shared_ptr<PackedWeight> packed);

  int rank() const;
  std::int64_t shape(int axis) const;
  std::int64_t rows() const;      // N
  std::int64_t features() const;  // K
  std::int64_t taps() const;      // Kh * Kw, 1 for a linear weight
  std::int64_t blocks() const;    // P
  int bits() const;
  std::int64_t block_size() const;
  Scheme scheme() const;
  DType scale_dtype() const;  // of the scales as stored: f16 wherever all of them are exact in it, else f32
  DType offset_dtype() const;
  Device device() const;
  const WeightEncoding* encoding() const;  // null for a weight of plain 4-bit or 8-bit codes
  std::int64_t nbytes() const;             // bytes of codes, scales and offsets as stored, padding included
  double bits_per_weight() const;          // 8 * nbytes / number of weights

  // Each writes to a caller's array of exactly that shape on the CPU, any strides.
  void codes(const TensorView& out) const;  // int8, shape of the weight
  // Writes codes of 4 bits in pairs: uint8 [N, ceil(K * taps / 2)]. Element 2j of a row (of [Ci, Kh, Kw] in order) is
  // the low half of byte j, 2j + 1 the high one, each plus 8; an odd row ends with a zero half.
  void nibbles(const TensorView& out) const;
  void scales(const TensorView& out) const;      // fp32 [N, P]
  void offsets(const TensorView& out) const;     // fp32 [N, P], zeros for a symmetric weight
  void dequantize(const TensorView& out) const;  // fp32, fp16 or bf16, shape of the weight
  // The inverse of from_encoded. Throws ValueError for a plain weight, and for arrays that the encoding does not have
  // or lacks.
  void encoded_parts(const EncodedParts& out) const;

  // Rows [begin, end) as a weight of their own.
  QuantizedTensor slice_rows(std::int64_t begin, std::int64_t end) const;

  // All that the weight has in memory, uint8 [bytes] on its device: codes, scales and offsets in the layout of
  // src/formats/packed_weight.h, each part at a multiple of 64 bytes. Valid while the weight lives; read-only.
  TensorView storage() const;

  // The same values with plain codes, of 4 bits where all of them fit and else of 8, and scales and offsets in fp32 or
  // fp16. Unsigned codes of 4 bits become signed ones if fp32 holds the offsets that this takes. Itself if it is plain
  // already. Zero points whose offset fp32 does not hold become codes u - number of 8 bits in blocks where those fit;
  // in other blocks (of 8 bits only) the offset is rounded once.
  QuantizedTensor plain() const;

  // Itself if it is there already. An encoded weight keeps its bytes on every device; a plain one has fp32 parameters
  // on devices other than the CPU.
  QuantizedTensor to(Device device) const;
  bool equal(const QuantizedTensor& other) const;  // same shape, format, codes, scales and offsets

  const PackedWeight& packed() const { return *packed_; }

 private:
  explicit QuantizedTensor(std::shared_ptr<const PackedWeight> packed);
  std::shared_ptr<const PackedWeight> packed_;
};

// How an operator treats its activations: `floating` leaves them as they are, the others quantize each block of a row
// to codes of that width, `int8_asym` with an offset; see docs/design.md. `int8_token` is int8 with one scale for all
// of a row of x, whatever the weight's blocks are; linear() and grouped_linear() take it.
enum class ComputeMode : std::uint8_t { floating, int8, int8_asym, int16, int8_token };

// Earlier names.
using Compute = ComputeMode;
using ActivationMode = ComputeMode;

// The arrays of gptq_columns(), all on the CPU: N rows of B consecutive columns of a weight, P blocks.
struct GptqColumns {
  TensorView weights;                   // fp32 [N, B], rows contiguous; written
  TensorView factor;                    // fp32 [B, B], rows contiguous; read on and above the diagonal
  TensorView scales;                    // fp32 [N, P]
  const TensorView* offsets = nullptr;  // fp32 [N, P]; null for a symmetric weight
  TensorView blocks;                    // int64 [B], the block of each column, 0 to P - 1
  TensorView codes;                     // int8 [N, B], written
  int bits = 4;                         // 2, 3, 4, 5, 6 or 8
};

// Chooses the codes of columns by GPTQ's rule (Frantar et al., "GPTQ", 2022), in the order of the columns: the nearest
// code, of -2^(bits-1) to 2^(bits-1) - 1; then each later column gets less error * factor[j, i], with
// error = (weight - value of the code) / factor[j, j]. `factor` is this part of the upper Cholesky factor of the
// inverse of x^T x. `weights` holds the errors afterwards, which columns after these need. Throws ValueError for a
// shape, a block or a diagonal element that is impossible.
QCORE_API void gptq_columns(const GptqColumns& columns);

}  // namespace qcore
