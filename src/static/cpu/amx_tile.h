#pragma once

#include "gemm/cpu/amx/tile_registers.h"
#include "static/cpu/codes_avx512.h"
#include "static/cpu/tile.h"

// A tile of the product on AMX: up to 32 pixels by 4 panels, two of which the registers sum up at a time over all taps
// and channels. Codes of x are multiplied as they are, signed or not.
namespace qcore {
namespace {

constexpr int kStaticAmxPanels = 4, kAmxSumColumns = 16 * kStaticAmxPanels;

// Returns how many codes of a pixel a register takes: as many as divide those under a tap, because neither pixels nor
// weights may be read behind their ends.
QCORE_NUMERIC int amx_run(std::int64_t steps) {
  if (steps == 0) return 4;
  std::int64_t runs = (steps + 15) / 16;
  while (steps % runs != 0) ++runs;
  return static_cast<int>(4 * (steps / runs));
}

template <int RowTiles, int Panels, bool Signed>
struct AmxStaticProducts {
  const StaticTileArguments& t;
  const int run;  // in codes
  AmxRowGroup group[RowTiles];
  alignas(64) char copies[kTileBytes];

  // Writes the sums of the panels from `panel` on.
  QCORE_INLINE void sum(int panel, std::int32_t (*sums)[kAmxSumColumns]) {
    const std::int32_t* const start = t.acc_init + 16 * panel;
    load_tile<0>(start, 0);  // the same for all rows
    if constexpr (Panels == 2) load_tile<1>(start + 16, 0);
    if constexpr (RowTiles == 2) load_tile<2>(start, 0);
    if constexpr (RowTiles == 2 && Panels == 2) load_tile<3>(start + 16, 0);
    const std::int8_t* w = t.weights + panel * t.panel_bytes;
    const char* const* x = t.x;
    for (std::int64_t tap = 0; tap < t.taps; ++tap, x += t.tap_stride) {
      group[0].find(x, t.rows < kTileRows ? t.rows : kTileRows);
      if constexpr (RowTiles == 2) group[1].find(x + kTileRows, t.rows - kTileRows);
      for (std::int64_t at = 0; at < 4 * t.steps; at += run, w += run * 16) add_run(x, t.x_offset + at, w);
    }
    constexpr std::int64_t kRowStep = sizeof(*sums);
    store_tile<0>(sums[0] + 16 * panel, kRowStep);
    if constexpr (Panels == 2) store_tile<1>(sums[0] + 16 * panel + 16, kRowStep);
    if constexpr (RowTiles == 2) store_tile<2>(sums[kTileRows] + 16 * panel, kRowStep);
    if constexpr (RowTiles == 2 && Panels == 2) store_tile<3>(sums[kTileRows] + 16 * panel + 16, kRowStep);
  }

 private:
  QCORE_INLINE void add_run(const char* const* x, std::int64_t at, const std::int8_t* w) {
    load_rows<0>(x, at);
    load_tile<6>(w, PackedLayout::kStepBytes);
    multiply_tiles<0, 4, 6, Signed>();
    if constexpr (Panels == 2) {
      load_tile<7>(w + t.panel_bytes, PackedLayout::kStepBytes);
      multiply_tiles<1, 4, 7, Signed>();
    }
    if constexpr (RowTiles == 2) {
      load_rows<1>(x, at);
      multiply_tiles<2, 5, 6, Signed>();
      if constexpr (Panels == 2) multiply_tiles<3, 5, 7, Signed>();
    }
  }

  // Pixels don't lie evenly where lines of the image and its padding meet.
  template <int which>
  QCORE_INLINE void load_rows(const char* const* x, std::int64_t at) {
    if (__builtin_expect(group[which].even, 1)) return load_tile<4 + which>(group[which].first + at, group[which].step);
    const __mmask64 codes = ~std::uint64_t{0} >> (64 - run);
    const int count = which == 0 && t.rows > kTileRows ? kTileRows : t.rows - which * kTileRows;
    for (int r = 0; r < count; ++r)
      _mm512_store_si512(copies + 64 * r, _mm512_maskz_loadu_epi8(codes, x[which * kTileRows + r] + at));
    load_tile<4 + which>(copies, 64);
  }
};

struct AmxStaticTile {
  using V = CodesAvx512;

  template <bool Cut>
  QCORE_NUMERIC void store(const std::int32_t (*sums)[kAmxSumColumns], const StaticTileArguments& t) {
    const int panels = t.panels;
    for (int r = 0; r < t.rows; ++r) {
      V::Int rounded[V::kStored] = {};
      repeat<kStaticAmxPanels>([&](int v) QCORE_UNROLLED {
        if (v < panels)
          rounded[v] = requantize_sums<V, Cut>(V::load(sums[r] + 16 * v), t.multipliers + 16 * v, t.format);
      });
      V::store_first_bytes(t.out + r * t.out_stride, V::in_order(V::narrow(rounded, t.format)), t.channels);
    }
  }

  template <int RowTiles, bool Signed>
  static void sum_all(const StaticTileArguments& t, std::int32_t (*sums)[kAmxSumColumns]) {
    const int run = amx_run(t.steps);
    configure_tiles(tile_shape(t.rows, run));
    AmxStaticProducts<RowTiles, 2, Signed> pairs{t, run, {}, {}};
    for (int panel = 0; panel + 2 <= t.panels; panel += 2) pairs.sum(panel, sums);
    if (t.panels % 2 == 0) return;
    AmxStaticProducts<RowTiles, 1, Signed>{t, run, {}, {}}.sum(t.panels - 1, sums);
  }

  static void run(const StaticTileArguments& t) {
    alignas(64) std::int32_t sums[kAmxRows][kAmxSumColumns];
    if (t.rows > kTileRows)
      t.x_is_signed ? sum_all<2, true>(t, sums) : sum_all<2, false>(t, sums);
    else
      t.x_is_signed ? sum_all<1, true>(t, sums) : sum_all<1, false>(t, sums);
    if (__builtin_expect(t.format.needs_saturation, 0))
      store<true>(sums, t);
    else
      store<false>(sums, t);
  }
};

}  // namespace
}  // namespace qcore
