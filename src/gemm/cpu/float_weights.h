#pragma once

#include "gemm/cpu/tile.h"

// Packed weights as floats, for the vector set V.
namespace qcore {
namespace {

template <class V, int Bits>
struct FloatWeights {
  using Int = typename V::Int;
  using Float = typename V::Float;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;
  static constexpr int kStepK = Bits == 8 ? 4 : 8;

  // Scales and offsets of one vector of columns.
  struct Block {
    Float scale, offset;
  };
  QCORE_NUMERIC Block block_of(const BlockTileArguments& t, int vector, std::int64_t p) {
    const std::int64_t at = parameters_at(t, vector / kVectorsPerPanel, p) + vector % kVectorsPerPanel * V::kLanes;
    return {load_parameters<V>(t.scales, at), t.offsets.data ? load_parameters<V>(t.offsets, at) : V::set1(0.0f)};
  }

  // Returns numerics::decode() of the k-th code in each lane of a step; `nibbles` are V::nibbles() of the weight's.
  QCORE_NUMERIC Float decode(Int stored, int k, const Block& block, Float nibbles) {
    return V::fma(block.scale, V::template code_at<Bits>(stored, k % 4 * 8 + k / 4 * 4, nibbles), block.offset);
  }
};

}  // namespace
}  // namespace qcore
