#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>

#include "formats/packed_layout.h"

namespace qcore {
namespace {

// Every element has a place of its own inside the storage.
void check_places(const PackedLayout& layout) {
  std::set<std::pair<std::int64_t, int>> taken;
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t tap = 0; tap < layout.taps; ++tap)
      for (std::int64_t k = 0; k < layout.k; ++k) {
        const auto place = layout.place(row, k, tap);
        ASSERT_GE(place.byte, 0);
        ASSERT_LT(place.byte, layout.code_bytes());
        ASSERT_TRUE(place.shift == 0 || (layout.bits == 4 && place.shift == 4));
        ASSERT_TRUE(taken.insert({place.byte, place.shift}).second) << "row " << row << " k " << k << " tap " << tap;
      }
  std::set<std::int64_t> parameters;
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t p = 0; p < layout.blocks(); ++p) {
      const std::int64_t at = layout.parameter_index(row, p);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, layout.parameter_count());
      ASSERT_TRUE(parameters.insert(at).second);
    }
}

TEST(PackedLayout, PlacesAreDistinct) {
  for (const int bits : {4, 8})
    for (const std::int64_t n : {1, 15, 16, 17, 40})
      for (const std::int64_t k : {1, 7, 8, 33, 100})
        for (const std::int64_t block : {1, 3, 4, 8, 12, 32, 100, 1000})
          for (const std::int64_t taps : {1, 6}) {
            SCOPED_TRACE(testing::Message()
                         << bits << " bits, n " << n << ", k " << k << ", g " << block << ", taps " << taps);
            check_places(PackedLayout(n, k, taps, block, bits));
          }
}

TEST(PackedLayout, IsTheDocumentedFormula) {
  const std::int64_t n = 40, k = 96;
  const PackedLayout w8(n, k, 1, 32, 8), w4(n, k, 1, 32, 4);
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t i = 0; i < k; ++i) {
      EXPECT_EQ(w8.place(row, i).byte, (row / 16 * (k / 4) + i / 4) * 64 + 4 * (row % 16) + i % 4);
      EXPECT_EQ(w4.place(row, i).byte, (row / 16 * (k / 8) + i / 8) * 64 + 4 * (row % 16) + i % 4);
      EXPECT_EQ(w4.place(row, i).shift, i % 8 / 4 * 4);
    }
}

TEST(PackedLayout, BlocksStartNewSteps) {
  const PackedLayout layout(1, 23, 1, 10, 4);  // blocks of 10, 10 and 3: 2, 2 and 1 steps of 8
  EXPECT_EQ(layout.blocks(), 3);
  EXPECT_EQ(layout.block_length(2), 3);
  EXPECT_EQ(layout.block_steps(0), 2);
  EXPECT_EQ(layout.block_steps(2), 1);
  EXPECT_EQ(layout.block_first_step(2), 4);
  EXPECT_EQ(layout.steps(), 5);
  EXPECT_EQ(layout.code_bytes(), 5 * 64);
  EXPECT_EQ(layout.place(0, 20).byte, 4 * 64);
}

TEST(PackedLayout, FourBitsTakeHalfTheMemory) {
  EXPECT_EQ(PackedLayout(64, 512, 1, 64, 4).code_bytes(), 64 * 512 / 2);
  EXPECT_EQ(PackedLayout(64, 512, 1, 64, 8).code_bytes(), 64 * 512);
}

TEST(PackedLayout, Empty) {
  EXPECT_EQ(PackedLayout(0, 5, 1, 4, 4).code_bytes(), 0);
  EXPECT_EQ(PackedLayout(5, 0, 1, 4, 4).code_bytes(), 0);
  EXPECT_EQ(PackedLayout(5, 0, 1, 4, 4).parameter_count(), 0);
}

}  // namespace
}  // namespace qcore
