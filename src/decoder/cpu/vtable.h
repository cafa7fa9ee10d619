#pragma once

#include <cstdint>

// The functions that an instruction set contributes to the decoder's operators. Included by files for one instruction
// set, so it holds plain data and no functions.
namespace qcore {

// Some queries of one key head and the keys that they see, with the memory for what is computed.
struct AttentionTile {
  // Rows are token-major: row r is a head of the token r / group.
  std::int64_t rows, group, head_size;
  const float* queries;                               // [rows][head_size]
  const void *keys, *values;                          // position 0
  int dtype;                                          // DType of both
  std::int64_t key_stride, value_stride;              // from position to position, in elements
  const float *key_scales, *value_scales;             // of an int8 cache
  std::int64_t key_scale_stride, value_scale_stride;  // in elements
  std::int64_t first_position;                        // of row 0's token; the next token's is one more
  std::int64_t first, window;                         // see visible_keys()
  float scale, soft_cap;
  std::int64_t begin_chunk, end_chunk;  // these chunks are computed and merged in order

  // Results, not yet divided by the sums. A row without keys has sum 0.
  float *largest, *sums;  // [rows]
  float* out;             // [rows][padded_size], padded_size = head_size rounded up to kHeadPadding

  // Memory to work in.
  float* scores;                      // [rows][kAttentionChunk]
  float* key_panel;                   // [head_size][kPanelKeys]
  float* value_panel;                 // [kPanelKeys][padded_size]
  float *chunk_largest, *chunk_sums;  // [rows]
  float* chunk_out;                   // [rows][padded_size]
};

constexpr std::int64_t kHeadPadding = 16;
constexpr std::int64_t kPanelKeys = 64;

// A row is fp32, aligned to 64 bytes, and has room up to a multiple of kRowPadding, with any values there.
constexpr std::int64_t kRowPadding = 32;

struct DecoderKernels {
  // Between contiguous elements of a DType (fp32, fp16, bf16) and a row.
  void (*load_row)(const void* x, int dtype, std::int64_t count, float* row);
  void (*store_row)(const float* row, std::int64_t count, int dtype, void* y);
  void (*add_row)(float* row, const float* other, std::int64_t count);                 // row += other
  void (*multiply_row)(float* row, const float* other, std::int64_t count);            // row *= other
  void (*scale_row)(float* row, float factor, std::int64_t count);                     // row *= factor
  void (*normalize_row)(float* row, std::int64_t count, float eps);                    // row /= its root mean square
  void (*gate_row)(float* gate, const float* up, std::int64_t count, int activation);  // gate = act(gate) * up
  void (*cap_row)(float* row, std::int64_t count, float multiplier, float soft_cap);
  // `row` needs no alignment and no padding: a head of `rotary` elements.
  void (*rotate_row)(float* row, const float* cos, const float* sin, std::int64_t rotary, bool interleaved);
  void (*quantize_row)(const float* row, std::int64_t count, std::int8_t* codes, float* scale);
  void (*attend)(const AttentionTile& tile);
  // Merges the results of a later chunk, [head_size], into those of the earlier ones.
  void (*merge_row)(float* largest, float* sum, float* out, const float* new_largest, const float* new_sum,
                    const float* new_out, std::int64_t head_size);
};

extern const DecoderKernels kDecoderAvx2;
extern const DecoderKernels kDecoderAvx512;
extern const DecoderKernels kDecoderNeon;
extern const DecoderKernels kDecoderGeneric128;

}  // namespace qcore
