#pragma once

#include <arm_neon.h>

#include "runtime/probes/probe_loops.h"

namespace qcore {
namespace {

struct ProbeVectorsNeon {
  using Vector = uint64x2_t;
  static constexpr int kBytes = 16;
  QCORE_NUMERIC Vector load(const char* data) {
    return vreinterpretq_u64_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(data)));
  }
  QCORE_NUMERIC Vector combine(Vector a, Vector b) { return veorq_u64(a, b); }
  QCORE_NUMERIC std::uint64_t fold(Vector sum) { return vgetq_lane_u64(sum, 0) ^ vgetq_lane_u64(sum, 1); }
};

struct FmaNeon {
  using Vector = float32x4_t;
  QCORE_NUMERIC void add(Vector& sum, Vector a, Vector b) {
    asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
  }
};

constexpr std::int64_t kInt8OperationsNeon = kProbeSums * 2 * 16, kFloatOperationsNeon = kProbeSums * 2 * 4;

}  // namespace
}  // namespace qcore
