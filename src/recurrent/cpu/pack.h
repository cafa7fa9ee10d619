#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "qcore/recurrent/fixed_format.h"
#include "recurrent/cpu/vtable.h"
#include "recurrent/parameters.h"

namespace qcore {

// Sums of the products of two planes are exact in int32 for as many features; the vector kernels take no more.
constexpr std::int64_t kMaxFeatures = 32768;

// Numbers below this can be shifted right by any amount up to 30 in int32, rounding included, and summed in fours.
constexpr std::int64_t kLaneBound = std::int64_t{1} << 29;
constexpr int kMaxLaneShift = 30;
// Likewise for sums of a product without their lowest 8 bits, to which nothing but a half is added.
constexpr std::int64_t kDroppedBound = std::int64_t{1} << 38;

// The memory behind a CodeProduct.
struct PackedProduct {
  std::shared_ptr<void> weights;
  std::vector<std::int64_t> offsets, signed_offsets;
  std::vector<std::int32_t> narrow_offsets, narrow_signed_offsets, low_offsets, low_signed_offsets;
  std::vector<std::int32_t> right, left, halves;
};

// Operands of one of the two products.
struct ProductParts {
  std::int64_t size;  // H
  int gates, weight_bits;
  const std::vector<std::int16_t>& codes;
  std::int64_t features;
  const FixedFormat& input;
  const PreparedProduct& prepared;
  const numerics::CodeRange& range;
};

CodeProduct pack_product(const ProductParts& parts, PackedProduct& memory);

// The memory behind a CellTable.
struct PackedTable {
  std::vector<std::uint16_t> entries;
  std::optional<LevelTable> levels;
};

CellTable pack_table(const std::vector<std::int32_t>& codes, const FixedFormat& format, PackedTable& memory);

inline std::int64_t reach(const numerics::CodeRange& range) {
  return std::max<std::int64_t>(range.hi, -std::int64_t{range.lo});
}

// Proves how wide the cell's numbers are, and cuts shifts to what lanes can do.
class Widths {
 public:
  // A number up to `largest` and its shift; its bound after it.
  std::int64_t shift(std::int64_t largest, int& n) {
    fits_ = fits_ && largest < kLaneBound && (n >= 0 || (n >= -kMaxLaneShift && largest << -n < kLaneBound));
    const std::int64_t after = !fits_ ? 0 : n < 0 ? largest << -n : largest;
    n = std::min(n, kMaxLaneShift);
    return after;
  }

  // The same of a product, which may be an int64 as long as it is none behind its shift.
  void shift_product(std::int64_t largest, int& n) {
    const bool narrow = largest < kLaneBound && (n >= 0 || (n >= -kMaxLaneShift && largest << -n < kLaneBound));
    narrow_ = narrow_ && narrow;
    products_.push_back(&n);
    fits_ = fits_ && (narrow || (n > 0 && (largest >> n) + 1 < kLaneBound));
  }

  // The same of the sum of two products, each shifted to the left before.
  void shift_sum(std::int64_t a, int a_left, std::int64_t b, int b_left, int& n) {
    shift_product((a << a_left) + (b << b_left), n);
  }

  void fits(std::int64_t largest) { fits_ = fits_ && largest < kLaneBound; }

  LaneWidth found() {
    if (!fits_) return LaneWidth::scalar;
    if (!narrow_) return LaneWidth::wide_products;
    for (int* n : products_) *n = std::min(*n, kMaxLaneShift);
    return LaneWidth::narrow;
  }

 private:
  bool fits_ = true, narrow_ = true;
  std::vector<int*> products_;
};

}  // namespace qcore
