#pragma once

#include <cstdint>

#include "numerics/portable.h"

namespace qcore {
namespace {

// Enough independent sums to cover the latency of a multiply-add on two ports.
constexpr int kProbeSums = 12;

// Vectors: Vector, kBytes, load, combine, fold.
template <class Vectors, int Streams>
std::uint64_t probe_read_streams(const char* data, std::int64_t bytes) {
  constexpr std::int64_t kStep = 256;
  constexpr int kLoads = kStep / Vectors::kBytes;
  const std::int64_t stream_bytes = bytes / Streams;
  typename Vectors::Vector sums[kLoads] = {};
  for (std::int64_t offset = 0; offset < stream_bytes; offset += kStep)
#pragma GCC unroll 8
    for (int stream = 0; stream < Streams; ++stream)
#pragma GCC unroll 8
      for (int load = 0; load < kLoads; ++load)
        sums[load] =
            Vectors::combine(sums[load], Vectors::load(data + stream * stream_bytes + offset + load * Vectors::kBytes));
  for (int load = 1; load < kLoads; ++load) sums[0] = Vectors::combine(sums[0], sums[load]);
  return Vectors::fold(sums[0]);
}

// Step: Vector, and add(sum, a, b) in assembly, so that nothing is optimized away or copied.
template <class Step>
void probe_multiply(std::int64_t rounds) {
  using Vector = typename Step::Vector;
  Vector sums[kProbeSums] = {};
  const Vector a = {}, b = {};
  for (std::int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int i = 0; i < kProbeSums; ++i) Step::add(sums[i], a, b);
}

}  // namespace
}  // namespace qcore
