#pragma once

#include <cstdint>

#include "qcore/tensor_view.h"

// The checks that every operator makes of its arguments; `op` and `argument` go into the message.
namespace qcore {

void check_shape(const char* op, const char* argument, const TensorView& view, int rank, const std::int64_t* expected);
void check_dtype(const char* op, const char* argument, const TensorView& view, DType expected);
void check_floating(const char* op, const char* argument, const TensorView& view);

// Throws ValueError with the first index of a NaN or an infinity; for floating-point arrays on the CPU.
void check_finite(const char* op, const char* argument, const TensorView& view);
void check_device(const char* op, const char* argument, const TensorView& view, Device expected, const char* like);

// Writable, and no two indices name the same element.
void check_output(const char* op, const char* argument, const TensorView& view);

// Whether the arrays have a byte in common; false of columns of one array that do not meet.
bool share_memory(const TensorView& a, const TensorView& b);

// No byte in common.
void check_disjoint(const char* op, const char* output_argument, const TensorView& output, const char* argument,
                    const TensorView& input);

}  // namespace qcore
