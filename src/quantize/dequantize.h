#pragma once

#include "formats/packed_weight.h"
#include "gemm/dequantize/vtable.h"
#include "quantize/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

// A weight on the CPU, and a checked array of its shape.
struct DequantizeProblem {
  const PackedWeight& weight;
  const TensorView& out;
  Device device = kCpu;
};

KernelTable<DequantizeProblem>& dequantize_dispatch();

// The definition, element by element.
void run_dequantize_reference(const DequantizeProblem& problem);

// Threads, strides and dtypes around one instruction set's kernels.
void run_dequantize_cpu(const DequantizeProblem& problem, const DequantizeKernels& kernels);

}  // namespace qcore
