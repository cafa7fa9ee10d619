#pragma once

#include "awq/problem.h"
#include "formats/packed_weight.h"

// Rows of the kernel table for CUDA devices. The arrays lie on the problem's device, and `stream` is a cudaStream_t.
// The reference's bits, but for the payload of NaNs, which is the device's.
namespace qcore {

// Pairs of nibbles become fp16 by one logic operation each; 16 bytes stored at a time.
const char* awq_lop3_unsupported_reason(const AwqProblem& problem);
void run_awq_lop3(const AwqProblem& problem);

// The definition, word by word: any strides.
const char* awq_arithmetic_unsupported_reason(const AwqProblem& problem);
void run_awq_arithmetic(const AwqProblem& problem);

// Fills `packed`, padding included, with work on the stream.
void pack_awq_on_cuda(const AwqWeight& weight, const PackedWeight& packed);

// Waits for the stream.
void wait_for_awq_pack(const AwqWeight& weight);

}  // namespace qcore
