#pragma once

#include "decoder/problem.h"
#include "qcore/decoder.h"

// Checks that the operators and the Decoder share; `op` and `argument` go into the message.
namespace qcore::decoder {

// int32 of the given shape.
void check_indices(const char* op, const char* argument, const TensorView& view, int rank, const std::int64_t* shape,
                   Device device, const char* like);

// Elements of an int32 array on the CPU within [lowest, highest]; `what` they count goes into the message.
void check_index_range(const char* op, const char* argument, const TensorView& view, std::int64_t lowest,
                       std::int64_t highest, const char* what);

// cos and sin fp32 [P, R], R even and at most head_size.
void check_rotary_table(const char* op, const char* cos_name, const char* sin_name, const TensorView& cos,
                        const TensorView& sin, std::int64_t head_size, Device device, const char* like);

// Arrays [batch, heads, C, head_size] of one dtype, with scales if that is int8.
void check_cache(const char* op, const KeyValueCache& cache, std::int64_t batch, std::int64_t heads,
                 std::int64_t head_size, Device device, const char* like, bool written);

// int32 [batch], on the CPU with past[b] >= 0 and past[b] + tokens <= capacity.
void check_past(const char* op, const TensorView& past, std::int64_t batch, std::int64_t tokens, std::int64_t capacity,
                Device device, const char* like);

// 0, or at least every past[b] + tokens (on the CPU) and at most the capacity.
void check_max_length(const char* op, std::int64_t max_length, const TensorView& past, std::int64_t tokens,
                      std::int64_t capacity);

// The problems of rms_norm and gated_activation, whose y the caller adds; each throws in the name of `op`.
NormProblem checked_norm(const char* op, const TensorView& x, const TensorView* weight, const TensorView* residual,
                         const RmsNormOptions& options);
GateProblem checked_gate(const char* op, const TensorView& x, const GatedOptions& options);

}  // namespace qcore::decoder
