#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qcore/export.h"
#include "qcore/linear.h"
#include "qcore/quantize.h"
#include "qcore/quantized_activations.h"
#include "qcore/tensor_view.h"

// Decoder-only transformers: the operators between the matrix products, and a stack of whole layers.
//
// Shape letters: B sequences, T tokens of each in a call, H hidden size, Hq query heads, Hkv key and value heads, D
// head size, R rotary size, I intermediate size, C capacity of a cache, V vocabulary size.
//
// All arithmetic is in fp32, with one order of operations that src/numerics defines, so that every kernel of the CPU
// gives the same bits for any number of threads. Results are rounded once, to the dtype of the output. Arrays of one
// call lie on one device. Every function throws ValueError or TypeError before anything is written.
namespace qcore {

enum class GateActivation : std::uint8_t { silu, gelu, gelu_tanh, relu };

// The pairs of elements that a rotation turns: i and i + R/2, as transformers' rotate_half, or 2i and 2i + 1.
enum class RotaryLayout : std::uint8_t { halves, interleaved };

// Keys and values of one layer for B sequences of up to C tokens each; the caller owns the memory. The arrays may have
// any strides as long as the D elements of a head are contiguous.
struct KeyValueCache {
  TensorView keys;          // [B, Hkv, C, D] fp32, fp16, bf16 or int8
  TensorView values;        // like keys
  TensorView key_scales;    // fp32 [B, Hkv, C]; rank 0 unless keys are int8: an element is its code times the scale
  TensorView value_scales;  // likewise
};

namespace decoder {

struct RmsNormOptions {
  float eps = 1e-6f;
  float offset = 0.0f;            // added to every weight: 1 for Gemma
  bool round_normalized = false;  // rounds x / rms(x) to y's dtype before the weight multiplies it: Llama's order
  void* stream = nullptr;         // cudaStream_t; ignored on the CPU
};

// y = x / sqrt(mean(x^2) + eps) * (weight + offset) along the last axis. With a residual, residual += x first, rounded
// to the residual's dtype, and y is the norm of the residual. The sum of squares has 32 partial sums, of the elements i
// with i mod 32 = 0, 1, ..., added by halves.
//   x         [..., H] fp32, fp16 or bf16, any strides
//   weight    [H] fp32, fp16 or bf16, or null for ones
//   y         [..., H] fp32, fp16 or bf16; x itself (same memory, dtype and strides), or no memory in common with it
//   residual  [..., H] fp32, fp16 or bf16, read and written, or null; no memory in common with the others
QCORE_API void rms_norm(const TensorView& x, const TensorView* weight, const TensorView& y, const TensorView* residual,
                        const RmsNormOptions& options);

// The same with the result rounded to x's dtype and then quantized, as quantize_activations() does with `scale`: the
// same bits, on CUDA in one launch for int8 in blocks of 8, 16, 32, 64, 128 or 256, or one per row, of aligned rows.
// The arrays of y have no memory in common with x, weight and residual.
QCORE_API void rms_norm_quantize(const TensorView& x, const TensorView* weight, const QuantizedActivations& y,
                                 const TensorView* residual, const RmsNormOptions& options, float scale = 0.0f);

struct RotaryOptions {
  RotaryLayout layout = RotaryLayout::halves;
  void* stream = nullptr;
};

// Rotates the first R elements of each head by its token's angles and copies the others:
//   y[a] = x[a] * cos[a] - x[b] * sin[a],   y[b] = x[b] * cos[b] + x[a] * sin[b]   for each pair (a, b) of the layout,
//   the
// first product by fma.
//   x          [B, T, heads, D] fp32, fp16 or bf16, any strides
//   positions  int32 [B, T], rows of the tables. On the CPU they are checked; on CUDA one outside is clamped.
//   cos, sin   fp32 [P, R], R even, R <= D
//   y          like x; x itself, or no memory in common with it
QCORE_API void rotary_embedding(const TensorView& x, const TensorView& positions, const TensorView& cos,
                                const TensorView& sin, const TensorView& y, const RotaryOptions& options);

struct GatedOptions {
  GateActivation activation = GateActivation::silu;
  void* stream = nullptr;
};

// y[..., i] = activation(x[..., i]) * x[..., I + i].
//   x  [..., 2I] fp32, fp16 or bf16, any strides
//   y  [..., I] fp32, fp16 or bf16, without memory in common with x
QCORE_API void gated_activation(const TensorView& x, const TensorView& y, const GatedOptions& options);

// The same with the result rounded to x's dtype and then quantized; see rms_norm_quantize(). On CUDA, rows of more than
// 4096 elements with one scale each take two launches if they are too few to occupy the device.
QCORE_API void gated_activation_quantize(const TensorView& x, const QuantizedActivations& y,
                                         const GatedOptions& options, float scale = 0.0f);

struct SoftCapOptions {
  float multiplier = 1.0f;
  float cap = 0.0f;  // 0 for none
  void* stream = nullptr;
};

// y = cap * tanh(x * multiplier / cap), or x * multiplier without a cap.
//   x  [..., N] fp32, fp16 or bf16, any strides
//   y  like x; x itself, or no memory in common with it
QCORE_API void soft_cap(const TensorView& x, const TensorView& y, const SoftCapOptions& options);

// Writes the keys and values of T tokens to the positions past[b], ..., past[b] + T - 1 of a cache. For an int8 cache
// the scale of a head is its largest magnitude / 127, and codes are rounded half to even; a head with a NaN or an
// infinity gets the scale NaN and codes 0.
//   keys, values  [B, T, Hkv, D] fp32, fp16 or bf16, any strides
//   past          int32 [B], the tokens in the cache so far. On the CPU past[b] + T <= C is checked; on CUDA tokens
//                 beyond C are left out.
QCORE_API void write_cache(const TensorView& keys, const TensorView& values, const TensorView& past,
                           const KeyValueCache& cache, void* stream = nullptr);

struct AttentionOptions {
  float scale = 1.0f;
  std::int64_t window = 0;  // keys that a token sees, itself included; 0 for all
  float soft_cap = 0.0f;    // scores become soft_cap * tanh(score / soft_cap); 0 for none
  // No past[b] + T is larger; 0 for C. A launch on CUDA is sized by it, since the lengths are read on the device: a
  // recorded CUDA graph may be replayed with other lengths up to this one.
  std::int64_t max_length = 0;
  void* stream = nullptr;
};

// Causal attention of T tokens at the positions past[b] + t over the keys and values in a cache, which holds these
// tokens too. Query head h uses the key head h / (Hq / Hkv). A token sees the positions from first[b] (or, with a
// window, past[b] + t - window + 1 if that is larger) to its own; if these are none, the result is 0.
//   q      [B, T, Hq, D] fp32, fp16 or bf16, any strides; Hq a multiple of Hkv
//   past   int32 [B], see write_cache()
//   first  int32 [B], the first position that holds a token (behind the padding on the left), or null for 0
//   y      [B, T, Hq, D] fp32, fp16 or bf16, without memory in common with q or the cache
// A result doesn't depend on T: numerics/attention.h cuts positions into chunks of kAttentionChunk, computes each with
// its own maximum, and merges the chunks in order. Keys and values in reach of a call are expected to be finite.
QCORE_API void attention(const TensorView& q, const KeyValueCache& cache, const TensorView& past,
                         const TensorView* first, const TensorView& y, const AttentionOptions& options);

}  // namespace decoder

// Weights of one layer. `qkv` and `gate_up` are one weight, or several of different formats whose rows follow each
// other; each is a product of its own. Floating-point arrays are fp32, fp16 or bf16 on the CPU or on the weights'
// device, contiguous or not, and copied as fp32; rank 0 means none. The order of a layer:
//   a = input_norm(x);  q, k, v = qkv a + bias;  q = rotary(q_norm(q));  k = rotary(k_norm(k));  cache k, v
//   x += residual_multiplier * post_attention_norm(out attention(q) + bias)
//   a = mlp_norm(x);  x += residual_multiplier * post_mlp_norm(down gated_activation(gate_up a + bias) + bias)
struct DecoderLayer {
  std::string name;                      // for messages, "model.layers.3"
  TensorView input_norm;                 // [H]
  std::vector<QuantizedTensor> qkv;      // [(Hq + 2 * Hkv) * D, H] in all: all of q, then k, then v
  TensorView qkv_bias;                   // [(Hq + 2 * Hkv) * D]
  TensorView q_norm, k_norm;             // [D], of each head by itself
  std::optional<QuantizedTensor> out;    // [H, Hq * D]
  TensorView out_bias;                   // [H]
  TensorView post_attention_norm;        // [H], of the attention's output before it is added to the residual
  TensorView mlp_norm;                   // [H]
  std::vector<QuantizedTensor> gate_up;  // [2I, H] in all: all of gate, then up
  TensorView gate_up_bias;               // [2I]
  std::optional<QuantizedTensor> down;   // [H, I]
  TensorView down_bias;                  // [H]
  TensorView post_mlp_norm;              // [H]
  std::int64_t window = 0;               // keys that a token sees; 0 for all
  int rotary = 0;                        // index into DecoderOptions::rotary; -1 for none
};

struct RotaryTable {
  TensorView cos, sin;  // fp32 [P, R] on the CPU or the weights' device; copied
};

struct DecoderOptions {
  std::int64_t hidden_size = 0;                  // H
  std::int64_t heads = 0;                        // Hq
  std::int64_t kv_heads = 0;                     // Hkv
  std::int64_t head_size = 0;                    // D
  std::int64_t intermediate_size = 0;            // I
  DType dtype = DType::f32;                      // of the residual and of every operator's output
  ComputeMode compute = ComputeMode::int8;       // of the layers' products
  ComputeMode head_compute = ComputeMode::int8;  // of the head
  float eps = 1e-6f;
  float norm_offset = 0.0f;       // added to the weights of all norms
  bool round_normalized = false;  // see RmsNormOptions
  GateActivation activation = GateActivation::silu;
  float attention_scale = 0.0f;  // 0 for 1 / sqrt(D)
  float attention_soft_cap = 0.0f;
  float input_multiplier = 1.0f;     // of the hidden states that enter
  float residual_multiplier = 1.0f;  // of what is added to the residual
  float logit_multiplier = 1.0f;
  float logit_soft_cap = 0.0f;  // after the multiplier
  RotaryLayout rotary_layout = RotaryLayout::halves;
  std::vector<RotaryTable> rotary;  // all with the same R
};

// One call of a Decoder. Arrays lie on its device.
struct DecoderCall {
  TensorView hidden;                  // [B, T, H] fp32, fp16 or bf16, T from 1 on: the embeddings of the tokens
  TensorView positions;               // int32 [B, T], rows of the rotary tables
  TensorView past;                    // int32 [B], the tokens in the caches so far
  TensorView first;                   // int32 [B], see attention(); rank 0 for zeros
  std::vector<KeyValueCache> caches;  // one for each layer, all with the same B; the capacities may differ
  std::int64_t max_length = 0;        // see AttentionOptions
  // Outputs; rank 0 for one that is not wanted. R, 1 to T, is the number of last tokens of each sequence that are
  // wanted.
  TensorView normed;  // [B, R, H] fp32, fp16 or bf16: the final norm's result
  TensorView logits;  // [B, R, V] fp32, fp16 or bf16: the head's result
  void* stream = nullptr;
};

struct DecoderStorage;  // src/decoder/decoder_storage.h

// An immutable stack of layers. Copies share storage; safe to use from many threads, each with caches of its own.
class QCORE_API Decoder {
 public:
  // Checks every shape and takes the weights: quantized ones are shared, floating-point ones copied. `final_norm` [H]
  // and `head` [V, H] may be missing; a head has an optional bias. Throws ValueError or TypeError with the layer's
  // name.
  static Decoder make(const DecoderOptions& options, const std::vector<DecoderLayer>& layers,
                      const TensorView& final_norm, const std::optional<QuantizedTensor>& head,
                      const TensorView& head_bias);

  const DecoderOptions& options() const;  // without the rotary tables
  std::int64_t layers() const;
  std::int64_t vocabulary() const;     // V, 0 without a head
  std::int64_t max_positions() const;  // rows of the rotary tables; the smallest of them, 0 without any
  Device device() const;
  std::int64_t nbytes() const;  // of all weights

  // Runs all layers over T tokens of B sequences and writes their keys and values to the caches. A token's results
  // don't depend on T, on B or on the number of threads.
  void forward(const DecoderCall& call) const;

  const DecoderStorage& storage() const { return *storage_; }

 private:
  explicit Decoder(std::shared_ptr<const DecoderStorage> storage);
  std::shared_ptr<const DecoderStorage> storage_;
};

}  // namespace qcore
