#pragma once

#include "linear/tile_kernels.h"
#include "linear/tile_parameters.h"
#include "simd/unroll.h"

// A tile of the integer product: Rows rows of activations by Panels panels of 16 columns, over all of K.
//
// V is the vector set. Dot says how codes are multiplied:
//   Code               int8 or int16, the activations' codes in memory
//   kMaxBlock          the longest run of k whose products of stored (unsigned) codes fit in int32
//   Weights split(Int) prepares one vector of stored 8-bit codes
//   multiply(acc, w, a) adds the products with the four codes at `a`
namespace qcore {
namespace {

template <class V, class Dot, int Rows, int Panels, int Bits>
struct IntegerTile {
  using Int = typename V::Int;
  using Float = typename V::Float;
  using Code = typename Dot::Code;
  static constexpr int kVectorsPerPanel = static_cast<int>(PackedLayout::kPanelRows) / V::kLanes;
  static constexpr int kVectors = Panels * kVectorsPerPanel;
  static constexpr int kQuads = Bits == 8 ? 1 : 2;

  QCORE_NUMERIC void start(Int (&acc)[Rows][kVectors], const std::int32_t* starts) {
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      const Int first = V::all(starts[r.value]);
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { acc[r.value][v.value] = first; });
    });
  }

  QCORE_NUMERIC void add_steps(Int (&acc)[Rows][kVectors], const std::uint8_t* w, std::int64_t panel_bytes,
                               const std::int64_t* ahead, const Code* a, std::int64_t row_stride, std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      Int stored[kVectors];
      unroll<Panels>([&](auto panel) QCORE_UNROLLED {
        __builtin_prefetch(w + panel.value * panel_bytes + ahead[panel.value], 0, 2);
      });
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        stored[v.value] =
            V::load(w + v.value / kVectorsPerPanel * panel_bytes + v.value % kVectorsPerPanel * (4 * V::kLanes));
      });
      unroll<kQuads>([&](auto quad) QCORE_UNROLLED {
        typename Dot::Weights codes[kVectors];
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          Int bytes = stored[v.value];
          if constexpr (Bits == 4) {
            if constexpr (quad.value == 1) bytes = V::shift_right_16(bytes, 4);
            bytes = V::both(bytes, V::all(0x0f0f0f0f));
          }
          codes[v.value] = Dot::split(bytes);
        });
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            Dot::multiply(acc[r.value][v.value], codes[v.value], a + 4 * quad.value + r.value * row_stride);
          });
        });
      });
      w += PackedLayout::kStepBytes;
      a += 4 * kQuads;
    }
  }

  // The same for a block too long for int32: runs of kMaxBlock, summed in int64, rounded once. Out of line, because
  // its arrays would crowd the registers of the ordinary case.
  __attribute__((noinline, cold)) static void add_long_block(float* sums, const std::uint8_t* w,
                                                             std::int64_t panel_bytes, const Code* a,
                                                             std::int64_t row_stride, std::int64_t steps,
                                                             const std::int32_t* code_sums) {
    std::int64_t total[Rows * kVectors * V::kLanes];
    std::int32_t part[Rows * kVectors * V::kLanes];
    constexpr int kResults = sizeof(total) / sizeof(total[0]), kResultsPerRow = kVectors * V::kLanes;
    for (int i = 0; i < kResults; ++i) total[i] = -std::int64_t{1 << (Bits - 1)} * code_sums[i / kResultsPerRow];
    constexpr std::int64_t kNothingAhead[Panels] = {};
    constexpr std::int64_t kMaxSteps = Dot::kMaxBlock / (4 * kQuads);
    for (std::int64_t done = 0; done < steps;) {
      const std::int64_t run = steps - done < kMaxSteps ? steps - done : kMaxSteps;
      const std::int32_t zeros[Rows] = {};
      Int acc[Rows][kVectors];
      start(acc, zeros);
      add_steps(acc, w, panel_bytes, kNothingAhead, a, row_stride, run);
      unroll<Rows>([&](auto r) QCORE_UNROLLED {
        unroll<kVectors>([&](auto v) QCORE_UNROLLED {
          V::store(part + (r.value * kVectors + v.value) * V::kLanes, acc[r.value][v.value]);
        });
      });
      for (int i = 0; i < kResults; ++i) total[i] += part[i];
      w += run * PackedLayout::kStepBytes;
      a += run * 4 * kQuads;
      done += run;
    }
    for (int i = 0; i < kResults; ++i) sums[i] = static_cast<float>(total[i]);
  }

  static void run(const TileArguments& t) {
    const PackedLayout& layout = *t.layout;
    const std::int64_t blocks = layout.blocks(), panel_bytes = layout.panel_bytes();
    const std::int64_t first_step = t.first_block * t.block_steps;
    const auto* a = static_cast<const Code*>(t.rows.codes) + first_step * 4 * kQuads;
    const std::uint8_t* w = t.codes + first_step * PackedLayout::kStepBytes;
    Float y[Rows][kVectors];
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        y[r.value][v.value] = t.first_block == 0 ? V::all(0.0f) : V::load(result(t, r.value, v.value));
      });
    });

    std::int64_t ahead[Panels];
    unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] = t.ahead[panel.value]; });
    for (std::int64_t p = t.first_block; p < t.end_block; ++p) {
      if (p == t.turn_block) unroll<Panels>([&](auto panel) QCORE_UNROLLED { ahead[panel.value] += t.turn; });
      const std::int64_t steps = p + 1 < blocks ? t.block_steps : t.last_block_steps;
      Float sums[Rows][kVectors];
      if (__builtin_expect(steps * 4 * kQuads <= Dot::kMaxBlock, 1)) {
        Int acc[Rows][kVectors];
        start(acc, t.rows.starts + p * Rows);
        add_steps(acc, w, panel_bytes, ahead, a, t.rows.row_stride, steps);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          unroll<kVectors>([&](auto v) QCORE_UNROLLED { sums[r.value][v.value] = V::to_float(acc[r.value][v.value]); });
        });
      } else {
        float rounded[Rows * kVectors * V::kLanes];
        add_long_block(rounded, w, panel_bytes, a, t.rows.row_stride, steps, t.rows.sums + p * Rows);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          unroll<kVectors>([&](auto v) QCORE_UNROLLED {
            sums[r.value][v.value] = V::load(rounded + (r.value * kVectors + v.value) * V::kLanes);
          });
        });
      }
      w += steps * PackedLayout::kStepBytes;
      a += steps * 4 * kQuads;

      // The order of these three is numerics/block_product.h's.
      unroll<kVectors>([&](auto v) QCORE_UNROLLED {
        const std::int64_t at = (v.value / kVectorsPerPanel * blocks + p) * PackedLayout::kPanelRows +
                                v.value % kVectorsPerPanel * V::kLanes;
        const Float scale_b = load_parameters<V>(t.scales, at);
        prefetch_parameters(t.scales, at + t.parameters_ahead);
        unroll<Rows>([&](auto r) QCORE_UNROLLED {
          const Float scale = V::mul(V::all(t.rows.scales[p * Rows + r.value]), scale_b);
          y[r.value][v.value] = V::fma(sums[r.value][v.value], scale, y[r.value][v.value]);
        });
        if (t.offsets.data) {
          const Float offset_b = load_parameters<V>(t.offsets, at);
          unroll<Rows>([&](auto r) QCORE_UNROLLED {
            y[r.value][v.value] = V::fma(V::all(t.rows.scaled_sums[p * Rows + r.value]), offset_b, y[r.value][v.value]);
          });
        }
        if (t.weight_sums) {
          const Float weight_sum = V::load(t.weight_sums + at);
          unroll<Rows>([&](auto r) QCORE_UNROLLED {
            y[r.value][v.value] = V::fma(V::all(t.rows.offsets[p * Rows + r.value]), weight_sum, y[r.value][v.value]);
          });
        }
      });
    }
    unroll<Rows>([&](auto r) QCORE_UNROLLED {
      unroll<kVectors>([&](auto v) QCORE_UNROLLED { V::store(result(t, r.value, v.value), y[r.value][v.value]); });
    });
  }

  QCORE_NUMERIC float* result(const TileArguments& t, int r, int v) {
    return t.out + r * Panels * PackedLayout::kPanelRows + v * V::kLanes;
  }
};

}  // namespace
}  // namespace qcore
