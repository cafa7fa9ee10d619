#pragma once

#include <memory>

#include "formats/packed_weight.h"

// Weights that keep the bytes of their source: made, cut and stacked by rows.
namespace qcore {

// An encoded weight [n, k] on the CPU whose memory is zeros.
std::shared_ptr<PackedWeight> allocate_encoded(const WeightEncoding& encoding, std::int64_t n, std::int64_t k,
                                               std::int64_t block_size);

// Copies rows [begin, begin + count) of `from` to row `at` and below of `to`, which is zeros there. Both have the same
// encoding, K and block size.
void copy_encoded_rows(const PackedWeight& from, std::int64_t begin, std::int64_t count, const PackedWeight& to,
                       std::int64_t at);

}  // namespace qcore
