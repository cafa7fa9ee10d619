#pragma once

#include "numerics/block_scale.h"
#include "quantize/cpu/encoded_loops.h"

// Declares what an instruction set provides for quantization. Included by files for one instruction set.
namespace qcore {

struct NearestForm {
  int bits;
  bool symmetric, half;  // scale and offset rounded to fp16
  int lowest;            // code
};

// Blocks of equal length whose scales are searched side by side.
struct SearchedBlocks {
  static constexpr int kLanes = 8;

  const float* values;      // [count][kLanes], finite
  const float* importance;  // [count], what each error counts; null for all alike
  std::int64_t count;
};

// The functions of encoded_loops.h, the first two for tasks [count].
struct EncodedKernels {
  void (*errors)(const CodeTable& table, const EncodedTask* tasks, int count, double* errors);
  void (*moments)(const CodeTable& table, const EncodedTask* tasks, int count, EncodedMoments* sums);
  // Writes q [padded] nearest to the block's values.
  void (*codes)(const CodeTable& table, const EncodedTask& task, float* q);
};

struct QuantizeKernels {
  // fp16 or bf16 [count] to fp32.
  void (*load)(const void* x, bool bfloat, std::int64_t count, float* values);
  // The parameters of finite values [count], and their codes.
  numerics::BlockScale (*quantize_block)(const float* values, std::int64_t count, const NearestForm& form,
                                         std::int8_t* codes);
  // The parameters [kLanes] that block_search.h's choose_block_scale() finds, and the codes [count][kLanes].
  void (*search_blocks)(const SearchedBlocks& blocks, const NearestForm& form, numerics::BlockScale* scales,
                        std::int8_t* codes);
  EncodedKernels encoded;
};

extern const QuantizeKernels kQuantizeAvx2;
extern const QuantizeKernels kQuantizeNeon;
extern const QuantizeKernels kQuantizeGeneric128;

}  // namespace qcore
