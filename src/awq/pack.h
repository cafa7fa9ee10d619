#pragma once

#include <memory>

#include "awq/problem.h"
#include "formats/packed_weight.h"

namespace qcore {

enum class AwqStorage : std::uint8_t {
  kept,
  of_the_stream,  // for work on the weight's stream only, which may be captured
};

// Storage for the weight in linear's layout on its device, with fp32 parameters; nothing written.
std::shared_ptr<PackedWeight> allocate_awq_weight(const AwqWeight& weight, AwqStorage storage);

// Throws ValueError, in the name of `op`, for a scale that is not finite.
std::shared_ptr<PackedWeight> pack_awq_on_cpu(const AwqWeight& weight, const char* op);

}  // namespace qcore
