#pragma once

#include <immintrin.h>

#include "gemm/cpu/amx/tile_registers.h"
#include "gemm/cpu/pack_rows.h"
#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"
#include "simd/vector_avx512.h"

// Tiles of products on AMX: up to 32 rows by 2 panels. A tile register's products are sums of up to 64 bytes of k;
// those of a block go through memory to the vectors that scale them and add them to the totals, as elsewhere. While
// vectors do that for some blocks, the tile registers multiply the next ones, so that the two are written interleaved.
//
// Kind says what activations and decoded weights are:
//   kCodeBytes            of one of them, or of one byte of an activation's
//   kPlanes               2 if activations are 256 * upper + lower byte, which lie apart in a row: all upper bytes of a
//                         block, then all lower ones. A tile then has 16 rows, and sums of either. Else 1
//   Sum, load_sums<next>  the type of a block's sum, and 16 of them as floats; the lower bytes' are `next` sums further
//   kRowScales            whether activations have a scale (and perhaps an offset) per block
//   kMasksEnds            whether activations behind a block's end must not be multiplied, not even by zero
//   multiply<sums, a, b>  the product of two tile registers
//   kRepairs, repair(t, row, panel, totals)
//                         whether 16 totals must be looked at after a run of blocks, and what does so
namespace qcore {
namespace {

constexpr int kAmxPanels = 2;

// How blocks are cut into runs of k that a tile register takes: as few as possible, of one length.
template <class Kind>
struct AmxRuns {
  std::int64_t k;                // in bytes, a multiple of 4
  std::int64_t per_block, last;  // runs of a block, and of the last one
  std::int64_t block_k, last_k;  // of a block in one plane of a packed row, and of the last one
  std::int64_t end, last_end;    // how much of a block's last run is the block's, and of the last one's

  QCORE_INLINE explicit AmxRuns(const BlockTileArguments& t) {
    const std::int64_t step_bytes = (t.layout->bits == 8 ? 4 : 8) * Kind::kCodeBytes;
    last_k = t.last_block_steps * step_bytes;
    block_k = t.block_steps * step_bytes;
    const std::int64_t longest = t.blocks == 1 ? last_k : block_k;
    per_block = (longest + 63) / 64;
    k = per_block ? ((longest + per_block - 1) / per_block + 3) / 4 * 4 : 4;
    last = (last_k + k - 1) / k;
    end = block_k - (per_block - 1) * k;
    last_end = last_k - (last - 1) * k;
  }

  QCORE_INLINE std::int64_t of_block(const BlockTileArguments& t, std::int64_t p) const {
    return p + 1 < t.blocks ? per_block : last;
  }
  // Returns those of one tap's blocks [t.first_block, t.end_block).
  QCORE_INLINE std::int64_t of_tap(const BlockTileArguments& t) const {
    const std::int64_t blocks = t.end_block - t.first_block;
    return t.end_block < t.blocks || blocks == 0 ? blocks * per_block : (blocks - 1) * per_block + last;
  }
  QCORE_INLINE std::int64_t weight_bytes() const { return k * PackedLayout::kPanelRows; }
};

// Returns the size of a panel's weights, [taps][blocks][runs][k / 4][16 columns][4 bytes of k], which end with zeros
// behind a block's end.
template <class Kind>
[[maybe_unused]] static std::int64_t decoded_panel_bytes(const BlockTileArguments& t) {
  const AmxRuns<Kind> runs(t);
  return t.layout->taps * runs.of_tap(t) * runs.weight_bytes();
}

// Multiplies: gives the sums of one block after the other to memory.
template <class Kind, int RowTiles, int Panels>
class AmxProducts {
 public:
  static constexpr int kOperands = RowTiles * Kind::kPlanes;  // registers of activations
  static_assert(kOperands <= 2);
  static constexpr int kBlockBytes = kOperands * Panels * kTileBytes;

  QCORE_INLINE AmxProducts(const BlockTileArguments& arguments, const AmxRuns<Kind>& block_runs)
      : t(arguments), runs(block_runs), weights(static_cast<const std::int8_t*>(arguments.decoded)) {
    panel_bytes = t.layout->taps * runs.of_tap(t) * runs.weight_bytes();
    begin_tap(t.x);
    begin_block(t.first_block);
  }

  // Does a run of a block whose sums, [operands][panels][16][16], go to `sums`; returns whether it is the last one.
  // They are stored when the next block begins, by when they are there: a store that waits for its products would keep
  // what follows out of the processor's window.
  QCORE_INLINE bool multiply(void* sums) {
    if (run == 0) {
      store();
      waiting = static_cast<char*>(sums);
      zero_all();
    }
    const int bytes = bytes_of_run();
    load_rows<0>(bytes);
    load_tile<6>(weights, PackedLayout::kStepBytes);
    Kind::template multiply<0, 4, 6>();
    if constexpr (Panels == 2) {
      load_tile<7>(weights + panel_bytes, PackedLayout::kStepBytes);
      Kind::template multiply<1, 4, 7>();
    }
    if constexpr (kOperands == 2) {
      load_rows<1>(bytes);
      Kind::template multiply<2, 5, 6>();
      if constexpr (Panels == 2) Kind::template multiply<3, 5, 7>();
    }
    weights += runs.weight_bytes();
    at += runs.k;
    if (++run < runs_left) return false;
    next_block();
    return true;
  }

  // Stores the sums of the block that was multiplied last.
  QCORE_INLINE void store() {
    if (waiting) store_all(waiting);
    waiting = nullptr;
  }

 private:
  QCORE_INLINE void begin_tap(const char* const* rows) {
    x = rows;
    group[0].find(x, t.rows < kTileRows ? t.rows : kTileRows);
    if constexpr (RowTiles == 2) group[1].find(x + kTileRows, t.rows - kTileRows);
  }

  QCORE_INLINE void begin_block(std::int64_t p) {
    block = p;
    at = t.x_offset + t.codes_at + p * Kind::kPlanes * runs.block_k;
    plane = p + 1 < t.blocks ? runs.block_k : runs.last_k;
    run = 0;
    runs_left = runs.of_block(t, p);
  }

  QCORE_INLINE void next_block() {
    if (block + 1 < t.end_block) return begin_block(block + 1);
    if (++tap == t.layout->taps) return;
    begin_tap(x + t.tap_stride);
    begin_block(t.first_block);
  }

  // Returns how much of the run's activations is multiplied, in bytes.
  QCORE_INLINE int bytes_of_run() const {
    if (!Kind::kMasksEnds || run + 1 < runs_left) return static_cast<int>(runs.k);
    return static_cast<int>(block + 1 < t.blocks ? runs.end : runs.last_end);
  }

  // Under a window that meets the edge of an image, rows don't lie evenly. Both planes have the same rows.
  template <int which>
  QCORE_INLINE void load_rows(int bytes) {
    constexpr int kRowTile = Kind::kPlanes == 2 ? 0 : which;
    const AmxRowGroup& from = group[kRowTile];
    const std::int64_t from_at = Kind::kPlanes == 2 && which == 1 ? at + plane : at;
    const bool whole = !Kind::kMasksEnds || bytes == static_cast<int>(runs.k);
    if (__builtin_expect(from.even && whole, 1)) return load_tile<4 + which>(from.first + from_at, from.step);
    const int count = kRowTile == 0 && t.rows > kTileRows ? kTileRows : t.rows - kRowTile * kTileRows;
    const __mmask64 of_block = whole ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
    for (int r = 0; r < count; ++r)
      _mm512_store_si512(copies + 64 * r, _mm512_maskz_loadu_epi8(of_block, x[kRowTile * kTileRows + r] + from_at));
    load_tile<4 + which>(copies, 64);
  }

  QCORE_INLINE void zero_all() {
    zero_tile<0>();
    if constexpr (Panels == 2) zero_tile<1>();
    if constexpr (kOperands == 2) zero_tile<2>();
    if constexpr (kOperands == 2 && Panels == 2) zero_tile<3>();
  }

  QCORE_INLINE void store_all(char* sums) {
    store_tile<0>(sums, 64);
    if constexpr (Panels == 2) store_tile<1>(sums + kTileBytes, 64);
    if constexpr (kOperands == 2) store_tile<2>(sums + Panels * kTileBytes, 64);
    if constexpr (kOperands == 2 && Panels == 2) store_tile<3>(sums + 3 * kTileBytes, 64);
  }

  const BlockTileArguments& t;
  const AmxRuns<Kind>& runs;
  const std::int8_t* weights;
  std::int64_t panel_bytes;
  const char* const* x;
  AmxRowGroup group[RowTiles];
  std::int64_t tap = 0, block, at, plane, run, runs_left;  // `plane`: of the block, in bytes
  char* waiting = nullptr;
  alignas(64) char copies[kTileBytes];
};

// Adds the terms of a few blocks of one tap to the totals.
template <class Kind, int RowTiles, int Panels, bool Offsets>
struct AmxTerms {
  using Sum = typename Kind::Sum;
  static constexpr int kColumns = Panels * 16;

  const BlockTileArguments& t;
  float* totals;  // [rows][kColumns]

  struct Blocks {
    const char* const* x;  // rows under the tap
    const float* weight_sums;
    std::int64_t first;
    int count;
    const Sum* sums;  // kBlockBytes each
  };

  // Adds those of the rows [begin, end).
  template <int Count>
  QCORE_INLINE void add(const Blocks& blocks, int begin, int end) const {
    __m512 scales[Count][Panels], offsets[Count][Panels], weight_sums[Count][Panels];
    repeat<Count>([&](int q) QCORE_UNROLLED {
      repeat<Panels>([&](int v) QCORE_UNROLLED {
        const std::int64_t p = blocks.first + q, at = parameters_at(t, v, p);
        scales[q][v] = load_parameters<Avx512>(t.scales, at);
        if constexpr (Offsets) {
          const __m512 zero = _mm512_setzero_ps();
          offsets[q][v] = t.offsets.data ? load_parameters<Avx512>(t.offsets, at) : zero;
          weight_sums[q][v] = blocks.weight_sums
                                  ? Avx512::load(blocks.weight_sums + (v * t.blocks + p) * PackedLayout::kPanelRows)
                                  : zero;
        }
      });
    });
    for (int r = begin; r < end; ++r) {
      const TileRows<1> row{{blocks.x[r] + t.x_offset}, 0};
      float* const y = totals + r * kColumns;
      __m512 total[Panels];
      repeat<Panels>([&](int v) QCORE_UNROLLED { total[v] = Avx512::load(y + 16 * v); });
      repeat<Count>([&](int q) QCORE_UNROLLED {
        const std::int64_t p = blocks.first + q;
        const auto parameter = [&](PackedRows::Parameter which) QCORE_UNROLLED {
          return Avx512::set1(row.template parameter<float>(0, which, t.blocks, p));
        };
        constexpr int kNext = Panels * 256, kOperands = RowTiles * Kind::kPlanes;
        const Sum* const sums = blocks.sums + (q * kOperands + r / kTileRows) * kNext + r % kTileRows * 16;
        repeat<Panels>([&](int v) QCORE_UNROLLED {
          __m512 scale = scales[q][v];
          if constexpr (Kind::kRowScales) scale = Avx512::mul(parameter(PackedRows::kScale), scale);
          total[v] = Avx512::fma(Kind::template load_sums<kNext>(sums + v * 256), scale, total[v]);
        });
        if constexpr (Offsets) {
          // The order of these terms is numerics/block_product.h's.
          repeat<Panels>([&](int v) QCORE_UNROLLED {
            if (t.offsets.data) total[v] = Avx512::fma(parameter(PackedRows::kScaledSum), offsets[q][v], total[v]);
            if (blocks.weight_sums) total[v] = Avx512::fma(parameter(PackedRows::kOffset), weight_sums[q][v], total[v]);
          });
        }
      });
      repeat<Panels>([&](int v) QCORE_UNROLLED { Avx512::store(y + 16 * v, total[v]); });
    }
  }
};

template <class Kind, int RowTiles, int Panels, bool Offsets>
struct AmxTile {
  using Products = AmxProducts<Kind, RowTiles, Panels>;
  using Terms = AmxTerms<Kind, RowTiles, Panels, Offsets>;
  static constexpr int kTogether = 2;  // blocks whose terms are added at once: each total is loaded and stored once

  // Blocks of one tap in the order in which terms are added.
  struct Cursor {
    const BlockTileArguments& t;
    std::int64_t tap = 0, block = t.first_block;

    QCORE_INLINE bool done() const { return tap == t.layout->taps; }
    QCORE_INLINE int count() const {
      return done() ? 0 : static_cast<int>(t.end_block - block < kTogether ? t.end_block - block : kTogether);
    }
    QCORE_INLINE void next() {
      block += count();
      if (block == t.end_block) ++tap, block = t.first_block;
    }
  };

  static void run(const BlockTileArguments& t) {
    alignas(64) float totals[RowTiles * kTileRows * Terms::kColumns];
    load_totals(t, totals);
    if (t.first_block < t.end_block) add_blocks(t, totals);
    if constexpr (Kind::kRepairs) {
      for (int r = 0; r < t.rows; ++r)
        for (int panel = 0; panel < Panels; ++panel)
          Kind::repair(t, r, panel, totals + r * Terms::kColumns + 16 * panel);
    }
    store_totals(t, totals);
  }

 private:
  static void add_blocks(const BlockTileArguments& t, float* totals) {
    alignas(64) char sums[2][kTogether * Products::kBlockBytes];
    const AmxRuns<Kind> runs(t);
    configure_tiles(tile_shape(t.rows, static_cast<int>(runs.k), Kind::kPlanes));
    Products products(t, runs);
    const Terms terms{t, totals};
    Cursor adding{t}, multiplying{t};
    for (int q = 0; q < multiplying.count(); ++q)
      while (!products.multiply(sums[0] + q * Products::kBlockBytes)) continue;
    for (int half = 0; !adding.done(); half ^= 1) {
      multiplying.next();
      const typename Terms::Blocks blocks{
          t.x + adding.tap * t.tap_stride, t.weight_sums ? t.weight_sums + adding.tap * t.weight_sums_tap : nullptr,
          adding.block, adding.count(), reinterpret_cast<const typename Kind::Sum*>(sums[half])};
      interleave(t, runs, multiplying, products, sums[half ^ 1], terms, blocks);
      adding.next();
    }
  }

  // Multiplies the blocks at `next`, and between runs adds the terms of a share of the rows.
  QCORE_INLINE static void interleave(const BlockTileArguments& t, const AmxRuns<Kind>& runs, const Cursor& next,
                                      Products& products, char* sums, const Terms& terms,
                                      const typename Terms::Blocks& blocks) {
    const int count = next.count();
    int row = 0;
    if (count) {
      const std::int64_t last = next.block + count - 1;
      const std::int64_t shares = (count - 1) * runs.per_block + runs.of_block(t, last);
      // Rounded up, so that the last rows come with the last run at the latest.
      const int share = static_cast<int>((t.rows + shares - 1) / shares);
      for (int q = 0; q < count; ++q)
        for (bool ends = false; !ends;) {
          ends = products.multiply(sums + q * Products::kBlockBytes);
          const int end = row + share < t.rows ? row + share : t.rows;
          if (row < end) add_terms(terms, blocks, row, end);
          row = end;
        }
    }
    if (count == 0) products.store();
    if (row < t.rows) add_terms(terms, blocks, row, t.rows);
  }

  QCORE_INLINE static void add_terms(const Terms& terms, const typename Terms::Blocks& blocks, int begin, int end) {
    if (blocks.count == kTogether)
      terms.template add<kTogether>(blocks, begin, end);
    else
      terms.template add<1>(blocks, begin, end);
  }

  static void load_totals(const BlockTileArguments& t, float* totals) {
    for (int r = 0; r < t.rows; ++r)
      repeat<Panels>([&](int v) QCORE_UNROLLED {
        Avx512::store(totals + r * Terms::kColumns + 16 * v,
                      t.first_block == 0 ? _mm512_setzero_ps() : Avx512::load(t.out + r * t.out_stride + 16 * v));
      });
  }

  // Stores the totals, with bias and clamp after the last block.
  static void store_totals(const BlockTileArguments& t, const float* totals) {
    const bool clamps = t.finishes && t.clamp, adds = t.finishes && t.bias;
    const __m512 lo = Avx512::set1(t.lo), hi = Avx512::set1(t.hi);
    repeat<Panels>([&](int v) QCORE_UNROLLED {
      const __m512 bias = adds ? Avx512::load(t.bias + 16 * v) : _mm512_setzero_ps();
      for (int r = 0; r < t.rows; ++r) {
        __m512 y = Avx512::load(totals + r * Terms::kColumns + 16 * v);
        if (adds) y = Avx512::add(y, bias);
        if (clamps) y = Avx512::at_most(Avx512::at_least(y, lo), hi);
        Avx512::store(t.out + r * t.out_stride + 16 * v, y);
      }
    });
  }
};

template <class Kind, int RowTiles, int Panels>
[[maybe_unused]] static void run_amx_tile(const BlockTileArguments& t) {
  if (t.offsets.data || t.weight_sums)
    AmxTile<Kind, RowTiles, Panels, true>::run(t);
  else
    AmxTile<Kind, RowTiles, Panels, false>::run(t);
}

template <class Kind>
[[maybe_unused]] static void run_amx_tile_of_size(const BlockTileArguments& t) {
  if constexpr (Kind::kPlanes == 1)
    if (t.rows > kTileRows) return t.panels == 2 ? run_amx_tile<Kind, 2, 2>(t) : run_amx_tile<Kind, 2, 1>(t);
  t.panels == 2 ? run_amx_tile<Kind, 1, 2>(t) : run_amx_tile<Kind, 1, 1>(t);
}

// The weights of a run lie in the second-level cache while all tiles of a column multiply them.
constexpr std::int64_t kAmxRunBytes = 128 << 10;

}  // namespace
}  // namespace qcore
