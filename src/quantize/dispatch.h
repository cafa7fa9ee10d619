#pragma once

#include "quantize/cpu/vtable.h"
#include "quantize/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<QuantizeProblem>& quantize_dispatch();
KernelTable<EncodeProblem>& quantize_encoded_dispatch();

// The definition, element by element; every method.
void run_quantize_reference(const QuantizeProblem& problem);

// Threads, strides and dtypes around one instruction set's kernels.
void run_quantize_cpu(const QuantizeProblem& problem, const QuantizeKernels& kernels);

// Chooses codes and parameters with one instruction set's loops.
void run_encode(const EncodeProblem& problem, const EncodedKernels& kernels);

// Throws ValueError for a scale or an offset that scale_dtype cannot hold.
void check_parameters(const numerics::BlockScale& scale, std::int64_t row, std::int64_t p);

}  // namespace qcore
