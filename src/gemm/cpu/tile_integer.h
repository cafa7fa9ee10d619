#pragma once

#include "gemm/cpu/pack_rows.h"
#include "gemm/cpu/tile.h"
#include "gemm/cpu/tile_table.h"

// A tile of the integer product: a block's sum is exact, and enters the totals by the scales of both sides.
//
// V is the vector set. Dot says how codes are multiplied:
//   Code               int8 or int16, the activations' codes in memory
//   kMaxBlock          the longest run of k whose products of stored (unsigned) codes fit in int32
//   Weights split(Int) prepares one vector of stored 8-bit codes
//   multiply(acc, w, a) adds the products with the four codes at `a`
namespace qcore {
namespace {

constexpr int kIntegerRows = 4;  // of tiles that read BlockTileArguments::integers, for which memory is the limit

template <class Vectors, class Dot, int Rows, int Panels, int Bits, class Parameters = StoredParameters>
struct IntegerBlock {
  using V = Vectors;
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  using Group = typename Parameters::template Group<Panels>;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;
  static constexpr int kVectors = Panels * kVectorsPerPanel;
  static constexpr int kQuads = Bits == 8 ? 1 : 2;
  static constexpr int kStepK = 4 * kQuads;
  static constexpr std::int64_t kStepBytes = kStepK * static_cast<std::int64_t>(sizeof(Code));

  // Stored codes of the panels' blocks: from panel to panel panel_bytes further, prefetched so many bytes ahead.
  struct Weights {
    const std::uint8_t* codes;
    std::int64_t panel_bytes;
    const std::int64_t* ahead;
  };

  QCORE_INLINE explicit IntegerBlock(const BlockTileArguments& arguments)
      : t(arguments),
        blocks(arguments.blocks),
        panel_bytes(arguments.panel_bytes),
        parameters_begin(arguments.parameters_begin),
        parameters_panel(arguments.parameters_panel),
        weight_sums(arguments.weight_sums),
        parameters(arguments) {
    repeat<Panels>([&](int panel) QCORE_UNROLLED { ahead[panel] = t.prefetch_distance[panel]; });
  }

  QCORE_INLINE void add(Float (&y)[Rows][kVectors], const TileRows<Rows>& rows, const std::uint8_t* codes,
                        std::int64_t p, std::int64_t steps) {
    if (p == t.prefetch_switch_block)
      repeat<Panels>([&](int panel) QCORE_UNROLLED { ahead[panel] += t.prefetch_switch_bytes; });
    Float sums[Rows][kVectors];
    sum(sums, {codes, panel_bytes, ahead}, rows, p, steps);
    add_terms(y, sums, rows, p);
  }

  QCORE_INLINE void next_tap() {
    if (weight_sums) weight_sums += t.weight_sums_tap;
  }

  // Adds the products of a step's stored codes.
  QCORE_NUMERIC void multiply_step(Int (&acc)[Rows][kVectors], const Int (&stored)[kVectors],
                                   const TileRows<Rows>& rows) {
    repeat<kQuads>([&](int quad) QCORE_UNROLLED {
      typename Dot::Weights codes[kVectors];
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        Int bytes = stored[v];
        if constexpr (Bits == 4) bytes = quad == 1 ? V::high_nibbles(bytes) : V::bit_and(bytes, V::set1(0x0f0f0f0f));
        codes[v] = Dot::split(bytes);
      });
      repeat<Rows>([&](int r) QCORE_UNROLLED {
        repeat<kVectors>([&](int v) QCORE_UNROLLED {
          Dot::multiply(acc[r][v], codes[v], rows.template values<Code>(r) + 4 * quad);
        });
      });
    });
  }

  QCORE_NUMERIC void add_steps(Int (&acc)[Rows][kVectors], Weights w, TileRows<Rows> rows, std::int64_t steps) {
    do {
      Int stored[kVectors];
      repeat<Panels>([&](int panel) QCORE_UNROLLED {
        __builtin_prefetch(w.codes + panel * w.panel_bytes + w.ahead[panel], 0, 2);
      });
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        stored[v] = V::load(w.codes + v / kVectorsPerPanel * w.panel_bytes + v % kVectorsPerPanel * (4 * V::kLanes));
      });
      multiply_step(acc, stored, rows);
      w.codes += PackedLayout::kStepBytes;
      rows.at += kStepBytes;
    } while (--steps > 0);
  }

 protected:
  // Computes float(acc) of a block.
  QCORE_INLINE void sum(Float (&sums)[Rows][kVectors], const Weights& w, const TileRows<Rows>& rows, std::int64_t p,
                        std::int64_t steps) const {
    Int acc[Rows][kVectors];
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      const Int first = V::set1(rows.template parameter<std::int32_t>(r, PackedRows::kStart, blocks, p));
      repeat<kVectors>([&](int v) QCORE_UNROLLED { acc[r][v] = first; });
    });
    add_steps(acc, w, rows, steps);
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<kVectors>([&](int v) QCORE_UNROLLED { sums[r][v] = V::to_float(acc[r][v]); });
    });
  }

  // Adds block p's terms to the totals y; the order of these three is numerics/block_product.h's.
  QCORE_INLINE void add_terms(Float (&y)[Rows][kVectors], const Float (&sums)[Rows][kVectors],
                              const TileRows<Rows>& rows, std::int64_t p) {
    const auto parameter = [&](int r, PackedRows::Parameter which)
                               QCORE_UNROLLED { return V::set1(rows.template parameter<float>(r, which, blocks, p)); };
    if constexpr (!Group::kStored) parameters.begin_block(t, p);
    repeat<kVectors>([&](int v) QCORE_UNROLLED {
      const int panel = v / kVectorsPerPanel, lane = v % kVectorsPerPanel * V::kLanes;
      const std::int64_t at = panel * parameters_panel + (p - parameters_begin) * PackedLayout::kPanelRows + lane;
      Float scale_b;
      if constexpr (Group::kStored) {
        scale_b = load_parameters<V>(t.scales, at);
        prefetch_parameters(t.scales, at + t.prefetch_parameters);
      } else {
        scale_b = parameters.scale(panel, p);
      }
      repeat<Rows>([&](int r) QCORE_UNROLLED {
        const Float scale = V::mul(parameter(r, PackedRows::kScale), scale_b);
        y[r][v] = V::fma(sums[r][v], scale, y[r][v]);
      });
      const auto add_offset = [&](Float offset_b) QCORE_UNROLLED {
        repeat<Rows>([&](int r)
                         QCORE_UNROLLED { y[r][v] = V::fma(parameter(r, PackedRows::kScaledSum), offset_b, y[r][v]); });
      };
      if constexpr (!Group::kStored) {
        if constexpr (Group::kOffsets) add_offset(parameters.offset(panel, p));
      } else if (t.offsets.data) {
        add_offset(load_parameters<V>(t.offsets, at));
      }
      if (weight_sums) {
        const Float weight_sum = V::load(weight_sums + (panel * blocks + p) * PackedLayout::kPanelRows + lane);
        repeat<Rows>([&](int r)
                         QCORE_UNROLLED { y[r][v] = V::fma(parameter(r, PackedRows::kOffset), weight_sum, y[r][v]); });
      }
    });
  }

  const BlockTileArguments& t;
  const std::int64_t blocks, panel_bytes, parameters_begin, parameters_panel;
  const float* weight_sums;  // of the tap
  std::int64_t ahead[Panels];
  Group parameters;
};

// ---- blocks so long that int32 may not hold their sums

// Runs of such a block are summed
// in int64 and rounded once. Only a run is unrolled for the rows and panels of a tile, because it takes nearly all of
// the time; what surrounds it is here once for all sizes.

// The parts of a long block's sums that depend on a tile's size and on the instructions.
struct LongRuns {
  // Writes the sums of products of `steps` steps: [rows][panels * 16].
  void (*sum)(const BlockTileArguments& t, const char* const* x, std::int64_t x_at, const std::uint8_t* codes,
              std::int64_t steps, std::int32_t* sums);
  std::int64_t max_steps;   // of a run
  std::int64_t step_bytes;  // of a row of x
  int zero;                 // what stored codes exceed their values by
};

template <class V>
struct LongTile {
  using Float = typename V::Float;

  // Computes a tile; `sums` and `totals` have room for its results. Hot, because its only callers are cold.
  __attribute__((noinline, hot)) static void run(const BlockTileArguments& t, const LongRuns& runs, std::int32_t* sums,
                                                 std::int64_t* totals) {
    const std::int64_t first_step = t.first_block * t.block_steps;
    const std::uint8_t* codes = t.codes;
    const char* const* x = t.x;
    const float* weight_sums = t.weight_sums;
    if (t.first_block == 0) for_each_vector(t, [](int, int, float* y) QCORE_UNROLLED { V::store(y, V::set1(0.0f)); });
    for (std::int64_t tap = 0; tap < t.layout->taps; ++tap, x += t.tap_stride) {
      std::int64_t x_at = t.codes_at + first_step * runs.step_bytes;
      for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
        const std::int64_t steps = p + 1 < t.blocks ? t.block_steps : t.last_block_steps;
        sum_block(t, runs, x, x_at, codes, p, steps, sums, totals);
        add_terms(t, x, weight_sums, p, totals);
        codes += steps * PackedLayout::kStepBytes;
        x_at += steps * runs.step_bytes;
      }
      if (weight_sums) weight_sums += t.weight_sums_tap;
    }
    if (t.finishes && t.bias)
      for_each_vector(t, [&](int, int column, float* y)
                             QCORE_UNROLLED { V::store(y, V::add(V::load(y), V::load(t.bias + column))); });
    if (t.finishes && t.clamp)
      for_each_vector(t, [&](int, int, float* y) QCORE_UNROLLED {
        V::store(y, V::at_most(V::at_least(V::load(y), V::set1(t.lo)), V::set1(t.hi)));
      });
  }

 private:
  // Calls f(row, column, y) for each vector of results.
  template <class F>
  QCORE_NUMERIC void for_each_vector(const BlockTileArguments& t, const F& f) {
    for (int row = 0; row < t.rows; ++row)
      for (int column = 0; column < t.panels * static_cast<int>(PackedLayout::kPanelRows); column += V::kLanes)
        f(row, column, t.out + row * t.out_stride + column);
  }

  template <class T>
  QCORE_NUMERIC T parameter(const BlockTileArguments& t, const char* const* x, int row, PackedRows::Parameter which,
                            std::int64_t p) {
    return TileRows<1>{{x[row] + t.x_offset}, 0}.template parameter<T>(0, which, t.blocks, p);
  }

  static void sum_block(const BlockTileArguments& t, const LongRuns& runs, const char* const* x, std::int64_t x_at,
                        const std::uint8_t* codes, std::int64_t p, std::int64_t steps, std::int32_t* sums,
                        std::int64_t* totals) {
    const int columns = t.panels * static_cast<int>(PackedLayout::kPanelRows), results = t.rows * columns;
    for (int row = 0; row < t.rows; ++row) {
      const std::int64_t code_sum = parameter<std::int32_t>(t, x, row, PackedRows::kSum, p);
      for (int i = 0; i < columns; ++i) totals[row * columns + i] = -runs.zero * code_sum;
    }
    for (std::int64_t done = 0; done < steps; done += runs.max_steps) {
      const std::int64_t run = steps - done < runs.max_steps ? steps - done : runs.max_steps;
      runs.sum(t, x, x_at + done * runs.step_bytes, codes + done * PackedLayout::kStepBytes, run, sums);
      for (int i = 0; i < results; ++i) totals[i] += sums[i];
    }
  }

  // Adds block p's terms to the results; the order of these three is numerics/block_product.h's.
  static void add_terms(const BlockTileArguments& t, const char* const* x, const float* weight_sums, std::int64_t p,
                        const std::int64_t* totals) {
    for_each_vector(t, [&](int row, int column, float* y) QCORE_UNROLLED {
      const auto of_row = [&](PackedRows::Parameter which)
                              QCORE_UNROLLED { return V::set1(parameter<float>(t, x, row, which, p)); };
      const int panel = column / static_cast<int>(PackedLayout::kPanelRows);
      const int lane = column % static_cast<int>(PackedLayout::kPanelRows);
      const std::int64_t at = parameters_at(t, panel, p) + lane;
      float rounded[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) rounded[i] = static_cast<float>(totals[i]);
      totals += V::kLanes;
      const Float scale = V::mul(of_row(PackedRows::kScale), load_parameters<V>(t.scales, at));
      Float result = V::fma(V::load(rounded), scale, V::load(y));
      if (t.offsets.data) result = V::fma(of_row(PackedRows::kScaledSum), load_parameters<V>(t.offsets, at), result);
      if (weight_sums) {
        const float* of_weight = weight_sums + (panel * t.blocks + p) * PackedLayout::kPanelRows + lane;
        result = V::fma(of_row(PackedRows::kOffset), V::load(of_weight), result);
      }
      V::store(y, result);
    });
  }
};

// ----

template <class V, class Dot, int Rows, int Panels, int Bits>
struct IntegerTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Block = IntegerBlock<V, Dot, Rows, Panels, Bits>;
  static constexpr int kVectors = Block::kVectors, kVectorsPerPanel = Block::kVectorsPerPanel, kStepK = Block::kStepK;
  static constexpr int kGroup = 4;  // steps that run_plain_row() unrolls

  static void run(const BlockTileArguments& t) {
    if constexpr (V::kLooksUpNibbles && sizeof(typename Dot::Code) == 1 && Bits == 4 && Rows <= kIntegerRows)
      if (t.integers) return add_blocks<IntegerBlock<V, Dot, Rows, Panels, Bits, IntegerParameters<V, 6, 6>>, Rows>(t);
    if constexpr (Rows == 1)
      if (is_plain_row(t)) return run_plain_row(t);
    if constexpr (Dot::kMaxBlock < kLongestBlock)
      if (t.block_steps * kStepK > Dot::kMaxBlock) return run_long(t);
    add_blocks<Block, Rows>(t);
  }

  // Out of line and cold, so that what it keeps does not crowd the registers of the ordinary case.
  __attribute__((noinline, cold)) static void run_long(const BlockTileArguments& t) {
    std::int32_t sums[Rows * Panels * PackedLayout::kPanelRows];
    std::int64_t totals[Rows * Panels * PackedLayout::kPanelRows];
    constexpr LongRuns kRuns{sum_run, Dot::kMaxBlock / kStepK, Block::kStepBytes, 1 << (Bits - 1)};
    LongTile<V>::run(t, kRuns, sums, totals);
  }

  static void sum_run(const BlockTileArguments& t, const char* const* x, std::int64_t x_at, const std::uint8_t* codes,
                      std::int64_t steps, std::int32_t* sums) {
    constexpr std::int64_t kNothingAhead[Panels] = {};
    TileRows<Rows> rows;
    repeat<Rows>([&](int r) QCORE_UNROLLED { rows.row[r] = x[r] + t.x_offset; });
    rows.at = x_at;
    Int acc[Rows][kVectors];
    repeat<Rows>([&](int r)
                     QCORE_UNROLLED { repeat<kVectors>([&](int v) QCORE_UNROLLED { acc[r][v] = V::set1(0); }); });
    Block::add_steps(acc, {codes, t.panel_bytes, kNothingAhead}, rows, steps);
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<kVectors>([&](int v) QCORE_UNROLLED { V::store(sums + (r * kVectors + v) * V::kLanes, acc[r][v]); });
    });
  }

  // Returns whether there is one row alone and a weight with fp16 scales and no offsets, whose blocks are whole groups
  // of steps: what a decoder multiplies for each token.
  static bool is_plain_row(const BlockTileArguments& t) {
    return t.prefetch_switch_block >= 0 && t.scales.half && !t.offsets.data && !t.weight_sums &&
           t.block_steps % kGroup == 0 && t.last_block_steps == t.block_steps &&
           t.block_steps * kStepK <= Dot::kMaxBlock && t.first_block == 0 && t.end_block == t.blocks;
  }

  // Computes such a row. The general loop decides for every block whether scales are fp16, whether there are offsets
  // and where it prefetches, which takes as long as the products of a single row.
  static void run_plain_row(const BlockTileArguments& t) {
    const std::int64_t blocks = t.end_block, groups = t.block_steps / kGroup;
    const std::uint8_t* codes[Panels];
    const std::uint16_t* scales[Panels];
    repeat<Panels>([&](int panel) QCORE_UNROLLED {
      codes[panel] = t.codes + panel * t.panel_bytes;
      scales[panel] = static_cast<const std::uint16_t*>(t.scales.data) + panel * blocks * PackedLayout::kPanelRows;
    });
    TileRows<1> row{{t.x[0] + t.x_offset}, t.codes_at};
    std::int64_t ahead = t.prefetch_distance[0];  // the same for all panels of a single tile
    Float y[1][kVectors];
    repeat<kVectors>([&](int v) QCORE_UNROLLED { y[0][v] = V::set1(0.0f); });
    for (std::int64_t p = 0; p < blocks; ++p) {
      if (p == t.prefetch_switch_block) ahead += t.prefetch_switch_bytes;
      Int acc[1][kVectors];
      const Int first = V::set1(row.template parameter<std::int32_t>(0, PackedRows::kStart, blocks, p));
      repeat<kVectors>([&](int v) QCORE_UNROLLED { acc[0][v] = first; });
      for (std::int64_t group = 0; group < groups; ++group) {
        repeat<kGroup>([&](int step) QCORE_UNROLLED {
          const std::int64_t at = step * PackedLayout::kStepBytes;
          Int stored[kVectors];
          repeat<Panels>([&](int panel) QCORE_UNROLLED { __builtin_prefetch(codes[panel] + at + ahead, 0, 2); });
          repeat<kVectors>([&](int v) QCORE_UNROLLED {
            stored[v] =
                V::load(codes[v / kVectorsPerPanel] + at + v % kVectorsPerPanel * static_cast<int>(sizeof(Int)));
          });
          Block::multiply_step(acc, stored, row);
          row.at += Block::kStepBytes;
        });
        repeat<Panels>([&](int panel) QCORE_UNROLLED { codes[panel] += kGroup * PackedLayout::kStepBytes; });
      }
      const Float row_scale = V::set1(row.template parameter<float>(0, PackedRows::kScale, blocks, p));
      repeat<kVectors>([&](int v) QCORE_UNROLLED {
        const std::uint16_t* scale = scales[v / kVectorsPerPanel] + v % kVectorsPerPanel * V::kLanes;
        y[0][v] = V::fma(V::to_float(acc[0][v]), V::mul(row_scale, V::load_half(scale)), y[0][v]);
      });
      repeat<Panels>([&](int panel) QCORE_UNROLLED {
        __builtin_prefetch(scales[panel] + t.prefetch_parameters, 0, 2);
        scales[panel] += PackedLayout::kPanelRows;
      });
    }
    TileTotals<V, 1, kVectors>::store(t, y);
  }
};

// A block of an encoded weight for few rows, which decodes codes in registers: memory then works all the time. Blocks
// are half a group of steps, or whole groups.
template <class V, class Dot, int Rows, int Panels, int Bits, bool LookedUp, class Parameters>
struct EncodedBlock : IntegerBlock<V, Dot, Rows, Panels, 8, Parameters> {
  using Base = IntegerBlock<V, Dot, Rows, Panels, 8, Parameters>;
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  using Codes = Expand<V>;
  static constexpr int kVectors = Base::kVectors, kVectorsPerPanel = Base::kVectorsPerPanel,
                       kGroup = PackedLayout::kGroupSteps;

  QCORE_INLINE explicit EncodedBlock(const BlockTileArguments& arguments)
      : Base(arguments),
        table(V::load_table(arguments.encoded->table)),
        zero(arguments.encoded->zero),
        prefetch(arguments.encoded->prefetch_distance) {
    if (arguments.first_block > arguments.prefetch_switch_block) prefetch += arguments.prefetch_switch_bytes;
  }

  QCORE_INLINE void add(Float (&y)[Rows][kVectors], const TileRows<Rows>& rows, const std::uint8_t*, std::int64_t p,
                        std::int64_t steps) {
    if (p == this->t.prefetch_switch_block) prefetch += this->t.prefetch_switch_bytes;
    const std::int64_t first = (p - this->t.first_block) * this->t.block_steps;
    const std::uint8_t* codes = this->t.codes + first / kGroup * (Bits * PackedLayout::kStepBytes);
    Int acc[Rows][kVectors];
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      const auto row_parameter = [&](PackedRows::Parameter which) QCORE_UNROLLED {
        return rows.template parameter<std::int32_t>(r, which, this->blocks, p);
      };
      // The table holds codes plus 128, as weights of 8 bits are stored. Without a table the dot products take u
      // itself, so that the start corrects by the encoding's own zero.
      const Int start = V::set1(LookedUp ? row_parameter(PackedRows::kStart) : -zero * row_parameter(PackedRows::kSum));
      repeat<kVectors>([&](int v) QCORE_UNROLLED { acc[r][v] = start; });
    });
    TileRows<Rows> x = rows;
    if (steps < kGroup && first % kGroup == 0) {
      add_group<0, kGroup / 2>(acc, codes, x);
    } else if (steps < kGroup) {
      add_group<kGroup / 2, kGroup>(acc, codes, x);
    } else {
      for (; steps > 0; steps -= kGroup) {
        add_group<0, kGroup>(acc, codes, x);
        codes += Bits * PackedLayout::kStepBytes;
        x.at += kGroup * Base::kStepBytes;
      }
    }
    Float sums[Rows][kVectors];
    repeat<Rows>([&](int r) QCORE_UNROLLED {
      repeat<kVectors>([&](int v) QCORE_UNROLLED { sums[r][v] = V::to_float(acc[r][v]); });
    });
    this->add_terms(y, sums, rows, p);
  }

 private:
  // Adds the products of steps [begin, end) of a group.
  template <int begin, int end>
  QCORE_INLINE void add_group(Int (&acc)[Rows][kVectors], const std::uint8_t* group, const TileRows<Rows>& x) const {
    repeat<kVectors>([&](int v) QCORE_UNROLLED {
      const std::uint8_t* from =
          group + v / kVectorsPerPanel * this->panel_bytes + v % kVectorsPerPanel * static_cast<int>(sizeof(Int));
      if (v % kVectorsPerPanel == 0 && begin == 0)
        repeat<Bits>([&](int i)
                         QCORE_UNROLLED { __builtin_prefetch(from + prefetch + i * PackedLayout::kStepBytes, 0, 2); });
      const typename Codes::template GroupPlanes<Bits> planes(from);
      repeat<end - begin>([&](int i) QCORE_UNROLLED {
        const Int u = Codes::template code<Bits>(planes, begin + i);
        const auto w = Dot::split(LookedUp ? V::look_up(table, u) : u);
        repeat<Rows>([&](int r) QCORE_UNROLLED { Dot::multiply(acc[r][v], w, x.template values<Code>(r) + 4 * i); });
      });
    });
  }

  const Int table;
  const std::int32_t zero;
  std::int64_t prefetch;
};

// The tile of an encoded weight, for a number of rows up to MaxRows. NarrowDot multiplies codes as they are stored,
// which are below 64, Dot those of 8 bits that a table gives.
template <class V, class Dot, int MaxRows, int Panels, class NarrowDot = Dot>
struct EncodedTile {
  static constexpr int kRows = MaxRows, kPanels = Panels;

  // The integers that k-quants have beside codes of this width.
  template <int Bits>
  using Integers = IntegerParameters<V,
                                     Bits == 2   ? 4
                                     : Bits == 6 ? 8
                                                 : 6,
                                     Bits == 2   ? 4
                                     : Bits == 5 ? 6
                                                 : 0>;

  template <int Rows, int Bits, bool LookedUp, class Parameters>
  static void run_rows(const BlockTileArguments& t) {
    if constexpr (LookedUp)
      add_blocks<EncodedBlock<V, Dot, Rows, Panels, Bits, true, Parameters>, Rows>(t);
    else
      add_blocks<EncodedBlock<V, NarrowDot, Rows, Panels, Bits, false, Parameters>, Rows>(t);
  }

  template <int Bits, bool LookedUp>
  static void run_bits(const BlockTileArguments& t) {
    unroll<MaxRows>([&](auto row) QCORE_UNROLLED {
      if (t.rows != row.value + 1) return;
      if constexpr (V::kLooksUpNibbles)
        if (t.integers) return run_rows<row.value + 1, Bits, LookedUp, Integers<Bits>>(t);
      run_rows<row.value + 1, Bits, LookedUp, StoredParameters>(t);
    });
  }

  static void tile(const BlockTileArguments& t) {
    switch (t.encoded->bits) {
      case 2:
        return run_bits<2, false>(t);
      case 3:
        return run_bits<3, false>(t);
      case 4:
        return run_bits<4, true>(t);
      case 5:
        return run_bits<5, false>(t);
      default:
        return run_bits<6, false>(t);
    }
  }
};

// A set whose instructions suit weights of one width only has tiles of that one.
template <class Vectors, class Dot, int Wide = 8, int Narrow = 4, class EncodedTiles = NoEncodedTile>
struct IntegerTiles : PlainTiles {
  using V = Vectors;
  using Encoded = EncodedTiles;
  using Code = typename Dot::Code;
  static constexpr int kIntegerRows = V::kLooksUpNibbles && sizeof(Code) == 1 ? qcore::kIntegerRows : 0;
  template <int Rows, int Panels>
  using W8 = IntegerTile<V, Dot, Rows, Panels, Wide>;
  template <int Rows, int Panels>
  using W4 = IntegerTile<V, Dot, Rows, Panels, Narrow>;
  static constexpr int kBytesPerCode = sizeof(Code);
  static constexpr decltype(BlockKernels::pack) pack = PackRows<V, Code>::run;
};

// Tiles of an instruction set whose products take signed bytes only: Dot::split() subtracts 128 from stored codes of 8
// bits, so that their sums need no correction. Codes of 4 bits, and those of an encoded weight without a table, are
// positive as signed bytes too: NarrowDot takes them as they are, and their sums are corrected as everywhere.
template <class Vectors, class Dot, class NarrowDot, int EncodedRows>
struct SignedIntegerTiles : PlainTiles {
  using V = Vectors;
  using Encoded = EncodedTile<V, Dot, EncodedRows, 1, NarrowDot>;
  template <int Rows, int Panels>
  using W8 = IntegerTile<V, Dot, Rows, Panels, 8>;
  template <int Rows, int Panels>
  using W4 = IntegerTile<V, NarrowDot, Rows, Panels, 4>;
  static constexpr int kBytesPerCode = 1;

  static void pack(const float* values, std::int64_t stride, std::int64_t count, const PackedLayout& layout, int mode,
                   const PackedRows& rows) {
    PackedRows corrected = rows;
    if (layout.bits == 8) corrected.zero_code -= layout.zero_code();
    PackRows<V, std::int8_t>::run(values, stride, count, layout, mode, corrected);
  }
};

}  // namespace
}  // namespace qcore
