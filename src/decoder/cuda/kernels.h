#pragma once

#include <cstdint>

#include "activations/problem.h"
#include "decoder/problem.h"

// Rows of the decoder's kernel tables for CUDA devices. The arrays of a problem lie on problem.device, problem.stream
// is a cudaStream_t. Results have the reference's bits, but for the payload of NaNs in fp16 and bf16.
namespace qcore {

template <class Problem>
const char* on_cuda_unsupported_reason(const Problem& problem) {
  return problem.device.type == DeviceType::cuda ? nullptr : "it runs on a CUDA device";
}

void run_norm_cuda(const NormProblem& problem);
void run_gate_cuda(const GateProblem& problem);
// Each does the operator and the quantization of its result by one kernel and returns true, or returns false for what
// that kernel does not take.
bool run_quantizing_cuda(const NormProblem& problem, const ActivationsProblem& codes);
bool run_quantizing_cuda(const GateProblem& problem, const ActivationsProblem& codes);

void run_cap_cuda(const CapProblem& problem);

// The largest head of which a warp holds a copy in shared memory.
constexpr std::int64_t kMaxHeadSizeCuda = 12288;

const char* rotary_cuda_unsupported_reason(const RotaryProblem& problem);
void run_rotary_cuda(const RotaryProblem& problem);
const char* cache_cuda_unsupported_reason(const CacheProblem& problem);
void run_cache_cuda(const CacheProblem& problem);

void run_heads_cuda(const HeadsProblem& problem);

const char* attention_cuda_unsupported_reason(const AttentionProblem& problem);
void run_attention_cuda(const AttentionProblem& problem);

// How attention is cut up: `split` gives each chunk of kAttentionChunk positions a thread block of its own and merges
// the chunks in a second kernel; otherwise a thread block walks over all chunks. The bits are the same.
enum class AttentionPlan { automatic, split, whole };
void run_attention_cuda(const AttentionProblem& problem, AttentionPlan plan);

}  // namespace qcore
