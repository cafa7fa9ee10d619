#pragma once

#include "formats/packed_layout.h"
#include "gemm/cpu/tile_parameters.h"
#include "simd/unroll.h"

// One block of an integer product: Rows rows of activations by Panels panels of 16 columns. Operators differ in where
// their rows lie, which they say by two small classes:
//   Codes    code(r): the row's next codes; advance(n): n codes further
//   Block    start(r), sum(r), scale(r), scaled_sum(r), offset(r): what tile_data.h says of rows, of this block
//
// V is the vector set. Dot says how codes are multiplied:
//   Code               int8 or int16, the activations' codes in memory
//   kMaxBlock          the longest run of k whose products of stored (unsigned) codes fit in int32
//   Weights split(Int) prepares one vector of stored 8-bit codes
//   multiply(acc, w, a) adds the products with the four codes at `a`
namespace qcore {
namespace {

template <class V, class Dot, int Rows, int Panels, int Bits>
struct IntegerBlock {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;
  static constexpr int kVectors = Panels * kVectorsPerPanel;
  static constexpr int kQuads = Bits == 8 ? 1 : 2;
  static constexpr int kStepK = 4 * kQuads;

  // Of the panels' blocks: stored codes from panel to panel panel_bytes further, prefetched so many bytes ahead.
  struct Weights {
    const std::uint8_t* codes;
    std::int64_t panel_bytes;
    const std::int64_t* ahead;
  };

  // Of a column of panels, whatever the block.
  struct Parameters {
    TileParameters scales, offsets;
    const float* weight_sums;
    std::int64_t blocks;
    std::int64_t prefetch;  // elements ahead
  };

  // float(acc) of a block.
  template <class Codes, class Block>
  QCORE_NUMERIC void sum(Float (&sums)[Rows][kVectors], const Weights& w, const Codes& a, std::int64_t steps,
                         const Block& block) {
    if (__builtin_expect(steps * kStepK <= Dot::kMaxBlock, 1)) {
      Int acc[Rows][kVectors];
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        const Int first = V::set1(block.start(r.value));
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { acc[r.value][v.value] = first; });
      });
      add_steps(acc, w, a, steps);
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { sums[r.value][v.value] = V::to_float(acc[r.value][v.value]); });
      });
    } else {
      float rounded[Rows * kVectors * V::kLanes];
      std::int32_t code_sums[Rows];
      unroll<Rows>([&](auto r) QCORE_UNROLLED { code_sums[r.value] = block.sum(r.value); });
      sum_long(rounded, w, a, steps, code_sums);
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          sums[r.value][v.value] = V::load(rounded + (r.value * kVectors + v.value) * V::kLanes);
        });
      });
    }
  }

  // Adds the products of a step's stored codes.
  template <class Codes>
  QCORE_NUMERIC void multiply_step(Int (&acc)[Rows][kVectors], const Int (&stored)[kVectors], const Codes& a) {
    unroll<kQuads>([&](auto quad) QCORE_UNROLLED {
      typename Dot::Weights codes[kVectors];
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        Int bytes = stored[v.value];
        if constexpr (Bits == 4) {
          if constexpr (quad.value == 1) bytes = V::shift_right_16(bytes, 4);
          bytes = V::bit_and(bytes, V::set1(0x0f0f0f0f));
        }
        codes[v.value] = Dot::split(bytes);
      });
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          Dot::multiply(acc[r.value][v.value], codes[v.value], a.code(r.value) + 4 * quad.value);
        });
      });
    });
  }

  // Adds block p's terms to the totals y; the order of these three is numerics/block_product.h's.
  template <class Block>
  QCORE_NUMERIC void add_terms(Float (&y)[Rows][kVectors], const Float (&sums)[Rows][kVectors], const Parameters& w,
                               std::int64_t p, const Block& block) {
    unroll<kVectors>([&](auto v) QCORE_UNROLLED {
      const std::int64_t at = (v.value / kVectorsPerPanel * w.blocks + p) * PackedLayout::kPanelRows +
                              v.value % kVectorsPerPanel * V::kLanes;
      const Float scale_b = load_parameters<V>(w.scales, at);
      prefetch_parameters(w.scales, at + w.prefetch);
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        const Float scale = V::mul(V::set1(block.scale(r.value)), scale_b);
        y[r.value][v.value] = V::fma(sums[r.value][v.value], scale, y[r.value][v.value]);
      });
      if (w.offsets.data) {
        const Float offset_b = load_parameters<V>(w.offsets, at);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          y[r.value][v.value] = V::fma(V::set1(block.scaled_sum(r.value)), offset_b, y[r.value][v.value]);
        });
      }
      if (w.weight_sums) {
        const Float weight_sum = V::load(w.weight_sums + at);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          y[r.value][v.value] = V::fma(V::set1(block.offset(r.value)), weight_sum, y[r.value][v.value]);
        });
      }
    });
  }

 private:
  template <class Codes>
  QCORE_NUMERIC void add_steps(Int (&acc)[Rows][kVectors], Weights w, Codes a, std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      Int stored[kVectors];
      unroll<Panels>([&](auto panel) QCORE_UNROLLED {
        __builtin_prefetch(w.codes + panel.value * w.panel_bytes + w.ahead[panel.value], 0, 2);
      });
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        stored[v.value] = V::load(w.codes + v.value / kVectorsPerPanel * w.panel_bytes +
                                  v.value % kVectorsPerPanel * (4 * V::kLanes));
      });
      multiply_step(acc, stored, a);
      w.codes += PackedLayout::kStepBytes;
      a.advance(kStepK);
    }
  }

  // For a block too long for int32: runs of kMaxBlock, summed in int64, rounded once. Out of line, because its arrays
  // would crowd the registers of the ordinary case.
  template <class Codes>
  __attribute__((noinline, cold)) static void sum_long(float* sums, Weights w, Codes a, std::int64_t steps,
                                                       const std::int32_t* code_sums) {
    std::int64_t total[Rows * kVectors * V::kLanes];
    std::int32_t part[Rows * kVectors * V::kLanes];
    constexpr int kResults = sizeof(total) / sizeof(total[0]), kResultsPerRow = kVectors * V::kLanes;
    for (int i = 0; i < kResults; ++i) total[i] = -std::int64_t{1 << (Bits - 1)} * code_sums[i / kResultsPerRow];
    constexpr std::int64_t kNothingAhead[Panels] = {};
    w.ahead = kNothingAhead;
    constexpr std::int64_t kMaxSteps = Dot::kMaxBlock / kStepK;
    for (std::int64_t done = 0; done < steps;) {
      const std::int64_t run = steps - done < kMaxSteps ? steps - done : kMaxSteps;
      Int acc[Rows][kVectors];
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED { acc[r.value][v.value] = V::set1(0); });
      });
      add_steps(acc, w, a, run);
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          V::store(part + (r.value * kVectors + v.value) * V::kLanes, acc[r.value][v.value]);
        });
      });
      for (int i = 0; i < kResults; ++i) total[i] += part[i];
      w.codes += run * PackedLayout::kStepBytes;
      a.advance(run * kStepK);
      done += run;
    }
    for (int i = 0; i < kResults; ++i) sums[i] = static_cast<float>(total[i]);
  }
};

}  // namespace
}  // namespace qcore
