#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gru/gru_storage.h"

// A layer as the vector kernels want it. Channels are in groups of 16; a group's three gates lie together.
namespace qcore {

constexpr std::int64_t kGruGroup = 16;
constexpr int kGruGates = 3;

// W x or R h as products of signed bytes (weights) with unsigned ones (inputs), which every instruction set multiplies
// exactly. A weight of more than 8 bits is 256 * plane 0 + plane 1 + 128; an input u = code + 2^7 (or + 2^15 =
// 256 * plane 0 + plane 1). Sums of the products of two planes are exact in int32 for up to kMostFeatures features.
struct GruProduct {
  static constexpr std::int64_t kMostFeatures = 32768;

  std::int64_t features = 0, quads = 0;  // quads: of features, with zeros to a multiple of 16 features
  int weight_planes = 1, input_planes = 1;
  std::int32_t input_bias = 0;        // u = code + input_bias
  bool narrow = false;                // totals, before and after their shift, fit in int32
  bool shifts_left = false;           // some of them
  std::shared_ptr<void> weights;      // int8 [groups][quads][3][weight_planes][16][4]
  std::vector<std::int64_t> offsets;  // [groups][3][16]: added to the sum of weight * u
  std::vector<std::int32_t> narrow_offsets;
  std::vector<std::int32_t> right, left;  // [groups][3][16]: shifts, neither negative
  numerics::GruRange range;               // of the product's codes less their zero point

  const std::int8_t* group(std::int64_t index) const {
    return static_cast<const std::int8_t*>(weights.get()) + index * group_bytes();
  }
  std::int64_t group_bytes() const { return quads * kGruGates * weight_planes * kGruGroup * 4; }
};

// A gate's codes in as few bytes as hold them.
struct GruPackedTable {
  std::vector<std::uint16_t> memory;
  int entry_bytes = 1;
  bool is_signed = false;
};

// How wide the cell's numbers are.
enum class GruWidth : std::uint8_t { narrow, wide_products, scalar };

struct GruPacked {
  std::int64_t groups = 0;
  GruProduct input, state;
  GruPackedTable tables[3];
  std::vector<std::int32_t> biases[4];  // [groups][16], as GruBiases; staged pipeline
  numerics::GruCell cell;               // shifts that drop every bit are the largest that a lane can make
  GruWidth width = GruWidth::scalar;
};

std::shared_ptr<const GruPacked> pack_gru(const GruStorage& gru);

}  // namespace qcore
