#pragma once

#include "decoder/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

struct DecoderKernels;  // decoder/cpu/vtable.h

KernelTable<NormProblem>& decoder_norm_dispatch();
KernelTable<RotaryProblem>& decoder_rotary_dispatch();
KernelTable<GateProblem>& decoder_gate_dispatch();
KernelTable<CapProblem>& decoder_cap_dispatch();
KernelTable<CacheProblem>& decoder_cache_dispatch();
KernelTable<AttentionProblem>& decoder_attention_dispatch();

// Runs the operators of a HeadsProblem by one kernel and returns true where the device has one, unless a kernel is
// forced.
bool run_heads_at_once(const HeadsProblem& problem);

// The definitions: plain loops over src/numerics.
void run_norm_reference(const NormProblem& problem);
void run_rotary_reference(const RotaryProblem& problem);
void run_gate_reference(const GateProblem& problem);
void run_cap_reference(const CapProblem& problem);
void run_cache_reference(const CacheProblem& problem);
void run_attention_reference(const AttentionProblem& problem);

// Threads, strides and dtypes around the kernels of one instruction set.
void run_norm_cpu(const NormProblem& problem, const DecoderKernels& kernels);
void run_rotary_cpu(const RotaryProblem& problem, const DecoderKernels& kernels);
void run_gate_cpu(const GateProblem& problem, const DecoderKernels& kernels);
void run_cap_cpu(const CapProblem& problem, const DecoderKernels& kernels);
void run_cache_cpu(const CacheProblem& problem, const DecoderKernels& kernels);
void run_attention_cpu(const AttentionProblem& problem, const DecoderKernels& kernels);

}  // namespace qcore
