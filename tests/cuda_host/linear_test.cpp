// The CUDA rows of linear's table on the machine against the reference kernel of libqcore: the same bits in y, or for
// float sums in another order a result within the specification's bound; and not a byte changed around y.

#include "linear_cases.h"

namespace qcore {
namespace {

// Every shape of the acceptance list, each with one choice of everything else.
TEST(LinearOnTheMachine, EqualsTheReference) {
  constexpr std::int64_t kM[] = {0, 1, 2, 7, 16, 17, 65}, kN[] = {1, 3, 8, 9, 63, 65};
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr ComputeMode kComputes[] = {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym,
                                       ComputeMode::int16};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const FusedActivation activations[] = {{ActivationKind::none, 0, 0},         {ActivationKind::clamp, 0.0f, kInfinity},
                                         {ActivationKind::clamp, -0.5f, 6.0f}, {ActivationKind::silu, 0, 0},
                                         {ActivationKind::gelu, 0, 0},         {ActivationKind::tanh, 0, 0},
                                         {ActivationKind::sigmoid, 0, 0},      {ActivationKind::gelu_tanh, 0, 0}};
  constexpr int kDepths = 7, kBlockSizes = 6;
  Random random(7);
  unsigned cases = 0;
  for (const std::int64_t m : kM)
    for (const std::int64_t n : kN)
      for (int i = 0; i < kDepths * kBlockSizes; ++i) {
        Case c{};
        c.m = m;
        c.n = n;
        c.seed = ++cases;
        const std::int64_t block_sizes[] = {16, 32, 48, 64, 128, 100}, g = block_sizes[i / kDepths];
        const std::int64_t depths[kDepths] = {1, 31, 33, g - 1, g, g + 1, 300};
        c.k = depths[i % kDepths];
        c.block_size = i / kDepths == kBlockSizes - 1 ? c.k : g;
        c.bits = random.below(2) ? 4 : 8;
        c.scheme = random.below(2) ? Scheme::symmetric : Scheme::asymmetric;
        c.compute = kComputes[random.below(4)];
        c.x_dtype = kDTypes[random.below(3)];
        c.y_dtype = kDTypes[random.below(3)];
        c.bias_dtype = kDTypes[random.below(3)];
        c.bias = random.below(4) != 0;
        c.activation = activations[random.below(8)];
        c.x_layout = kLayouts[random.below(4)];
        c.y_layout = kLayouts[random.below(4)];
        c.special = random.below(5) == 0;
        c.large_tiles = cases % 8 == 0;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Codes, one scale per row and given scales, in every kernel: rows that lie for loads of 16 bytes and others, blocks of
// all kinds, and rows of a single block.
TEST(LinearOnTheMachine, OtherScales) {
  struct Shape {
    std::int64_t m, n, k, block_size;
  };
  constexpr Shape kShapes[] = {{3, 40, 192, 64},  {7, 21, 75, 32},    {20, 40, 256, 128}, {37, 41, 189, 64},
                               {5, 33, 160, 160}, {40, 33, 272, 272}, {6, 18, 100, 20},   {140, 24, 160, 32}};
  unsigned cases = 0;
  for (const Shape& shape : kShapes)
    for (const Scales scales : {Scales::per_row, Scales::fixed, Scales::codes, Scales::row_codes})
      for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
        for (const int bits : {4, 8}) {
          if (compute != ComputeMode::int8 && (scales == Scales::per_row || scales == Scales::fixed)) continue;
          Case c{shape.m, shape.n, shape.k, shape.block_size, bits};
          c.scheme = cases % 3 == 0 ? Scheme::asymmetric : Scheme::symmetric;
          c.compute = compute;
          c.scales = scales;
          c.x_dtype = cases % 2 ? DType::bf16 : DType::f32;
          c.x_layout = cases % 4 < 2 ? Layout::aligned : kLayouts[cases / 4 % 4];
          c.special = cases % 5 == 0;
          c.large_tiles = cases % 4 == 0;
          c.seed = 5000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Rows of x that share memory, which no kernel may take for rows that lie one after the other.
TEST(LinearOnTheMachine, RowsThatOverlap) {
  unsigned cases = 0;
  for (const ComputeMode compute :
       {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
    for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
      for (const std::int64_t m : {2, 6, 20, 70}) {
        Case c{m, 40, 192, 64};
        c.scheme = scheme;
        c.compute = compute;
        c.x_layout = Layout::overlapping;
        c.x_dtype = cases % 2 ? DType::bf16 : DType::f16;
        c.seed = 4000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every combination of mode, bits and scheme, fp32 in and out.
TEST(LinearOnTheMachine, EveryFormatAndMode) {
  for (const ComputeMode compute :
       {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const std::int64_t m : {3, 20}) {
          Case c{m, 21, 75, 32};
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.seed = static_cast<unsigned>(1000 + m);
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Scratch memory so small that rows and blocks go through it a few at a time.
TEST(LinearOnTheMachine, ManyPasses) {
  ScratchBounds few_rows, few_blocks, few_of_both;
  few_rows.products = 24 * 4;
  few_rows.codes = 5 * 112;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  few_blocks.unpacked_bytes = 2 * 16 * 32;
  few_of_both = few_rows;
  few_of_both.unpacked_bytes = 3 * 32 * 16;
  for (const ScratchBounds& bounds : {few_rows, few_blocks, few_of_both})
    for (const ComputeMode compute :
         {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
      for (const std::int64_t m : {1, 4, 23}) {
        Case c{m, 21, 100, 16};
        c.scheme = compute == ComputeMode::int8 && m > 1 ? Scheme::symmetric : Scheme::asymmetric;
        c.compute = compute;
        c.x_layout = c.y_layout = Layout::broken;
        c.seed = static_cast<unsigned>(2000 + m);
        ASSERT_NO_FATAL_FAILURE(check(c, bounds));
      }
}

TEST(LinearOnTheMachine, NoFeatures) {
  for (const ComputeMode compute :
       {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16})
    for (const bool bias : {false, true}) {
      Case c{5, 9, 0, 32};
      c.scheme = Scheme::asymmetric;
      c.compute = compute;
      c.bias = bias;
      c.activation = {ActivationKind::clamp, 0.0f, 0.25f};
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
}

TEST(LinearOnTheMachine, OddAndSingleElementBlocks) {
  for (const std::int64_t block_size : {1, 5, 7, 20}) {
    Case c{4, 18, 23, block_size};
    c.scheme = Scheme::asymmetric;
    for (const ComputeMode compute :
         {ComputeMode::floating, ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::int16}) {
      c.compute = compute;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

// Every instance of the fused kernel: both tile sizes, blocks that a stage holds and others, both kinds of offsets,
// tails everywhere.
TEST(LinearOnTheMachine, Fused) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128, 96})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym}) {
          Case c{37 + 100 * (cases % 2), 41 + 120 * (cases / 2 % 2), 2 * block_size + 61, block_size};
          c.bits = bits;
          c.scheme = scheme;
          c.compute = compute;
          c.large_tiles = true;
          if (cases % 2) c.k = 3 * block_size + 16, c.x_layout = c.y_layout = Layout::aligned;
          c.seed = 4000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
}

// Rounds, segments and tails of K, each number of rows and both kinds of offsets.
TEST(LinearOnTheMachine, FewRows) {
  struct Depth {
    std::int64_t k, block_size;
  };
  unsigned cases = 0;
  for (const Depth depth : {Depth{2600, 32}, Depth{1100, 64}, Depth{2100, 128}, Depth{1300, 96}, Depth{3000, 704},
                            Depth{700, 700}, Depth{40, 64}})
    for (const std::int64_t m : {1, 3, 8, 13, 32})
      for (const int bits : {4, 8}) {
        if (m > 8 && depth.k > 1200) continue;
        Case c{m, 41, depth.k, depth.block_size};
        c.bits = bits;
        c.seed = 3000 + cases;
        c.scheme = cases % 2 ? Scheme::asymmetric : Scheme::symmetric;
        for (const ComputeMode compute :
             {ComputeMode::int8, ComputeMode::int8_asym, ComputeMode::floating, ComputeMode::floating}) {
          c.compute = compute;
          ASSERT_NO_FATAL_FAILURE(check(c));
          c.scheme = c.scheme == Scheme::symmetric ? Scheme::asymmetric : Scheme::symmetric;
        }
        ++cases;
      }
}

// gemv's short way: one round of the warps and several, short last blocks, one block per row, every type of x; and
// its counterpart for floats. So many columns that a thread block has several groups of them.
TEST(LinearOnTheMachine, FewRowsInOneLaunch) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128})
    for (const int bits : {4, 8})
      for (const std::int64_t m : {1, 3, 8})
        for (const std::int64_t k : {std::int64_t{4264}, block_size - 8}) {
          if (m == 8 && k > 1000) continue;
          Case c{m, 41, k, block_size};
          c.bits = bits;
          c.x_dtype = c.y_dtype = kDTypes[cases % 3];
          c.special = cases % 4 == 0;
          c.seed = 5000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::floating})
    for (const int bits : {4, 8})
      for (const std::int64_t block_size : {64, 128, 5000})
        for (const std::int64_t k : {520, 4608}) {
          Case c{1 + cases % 2, 150, k, std::min(block_size, k)};
          c.bits = bits;
          c.compute = compute;
          c.x_dtype = kDTypes[1 + cases % 2];
          c.seed = 5000 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  for (const int bits : {4, 8})
    for (const std::int64_t m : {1, 3, 8})
      for (const std::int64_t k : {8, 136, 264, 4264, 9000}) {
        if (m > 1 && k > 4264) continue;
        Case c{m, 41, k, k};
        c.bits = bits;
        c.x_dtype = c.y_dtype = kDTypes[cases % 3];
        c.special = cases % 4 == 0;
        c.x_layout = cases % 5 == 0 ? Layout::padded : Layout::contiguous;
        c.seed = 5000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every instance of the float kernel on tensor cores: numbers of rows for each size of tiles, blocks of one chunk, of
// whole stages and of neither, tails everywhere.
TEST(LinearOnTheMachine, FloatOnTensorCores) {
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 96, 128})
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
          for (const std::int64_t m : {5, 19, 37, 131}) {
            if (m == 131 && block_size > 64) continue;
            Case c{m, 41 + 96 * (cases % 2), 2 * block_size + 56 + 5 * (cases / 2 % 2), block_size};
            c.bits = bits;
            c.scheme = scheme;
            c.compute = ComputeMode::floating;
            c.x_dtype = dtype;
            c.y_dtype = cases % 3 ? dtype : DType::f32;
            c.large_tiles = m > 32;
            c.special = cases % 5 == 0;
            c.x_layout = cases % 7 ? Layout::contiguous : Layout::padded;
            c.seed = 5000 + ++cases;
            ASSERT_NO_FATAL_FAILURE(check(c));
          }
}

// Every instance of the integer kernel for some rows: each size of tiles, rings that turn, a short last block, every
// type of x and y, no features, several passes.
TEST(LinearOnTheMachine, SomeRows) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  struct Shape {
    std::int64_t m, n, k;
  };
  constexpr Shape kShapes[] = {{5, 41, 4264},   {13, 20, 4700}, {30, 35, 2100}, {50, 70, 1200},
                               {70, 130, 1000}, {9, 16, 40},    {33, 17, 24}};
  constexpr std::int64_t kWholeRow = 8192;
  unsigned cases = 0;
  for (const std::int64_t block_size : {std::int64_t{32}, std::int64_t{64}, std::int64_t{128}, kWholeRow})
    for (const int bits : {4, 8})
      for (const Shape& shape : kShapes) {
        // The two longest rows, and the two with most results, in turn.
        const std::int64_t place = &shape - kShapes, turn = (block_size / 32 + bits / 4) % 2;
        if (place == turn || place == 3 + turn) continue;
        Case c{shape.m, shape.n, shape.k, block_size};
        c.bits = bits;
        c.x_dtype = kDTypes[cases % 3];
        c.y_dtype = kDTypes[cases / 2 % 3];
        c.bias = cases % 2;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
        c.x_layout = cases % 4 == 3 ? Layout::padded : Layout::aligned;
        c.y_layout = kLayouts[cases % 4];
        c.special = cases % 6 == 5;
        c.every_tile = true;
        c.seed = 6000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
  Case c{9, 21, 0, 32};
  c.every_tile = true;
  ASSERT_NO_FATAL_FAILURE(check(c));
  ScratchBounds few_rows;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  c.m = 23, c.k = 100;
  for (const std::int64_t block_size : {std::int64_t{32}, kWholeRow}) {
    c.block_size = block_size;
    ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
  }
}

// sm90_int8_mma with the weight's offsets: every size of tiles, rings that turn, stages that are not full.
TEST(LinearOnTheMachine, SomeRowsWithOffsets) {
  struct Shape {
    std::int64_t m, n, k;
  };
  constexpr Shape kShapes[] = {{9, 16, 40}, {13, 41, 2300}, {33, 20, 1180}, {70, 67, 600}};
  unsigned cases = 0;
  for (const std::int64_t block_size : {32, 64, 128})
    for (const int bits : {4, 8})
      for (const Shape& shape : kShapes) {
        Case c{shape.m, shape.n, shape.k, block_size};
        c.bits = bits, c.scheme = Scheme::asymmetric;
        c.scales = cases % 3 == 2 ? Scales::codes : cases % 7 == 1 ? Scales::per_row : Scales::per_block;
        c.y_layout = kLayouts[cases % 4];
        c.special = cases % 5 == 3 && !c.codes();
        c.every_tile = true;
        c.seed = 6300 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
  Case c{9, 21, 0, 32};
  c.scheme = Scheme::asymmetric, c.every_tile = true;
  ASSERT_NO_FATAL_FAILURE(check(c));
  ScratchBounds few_rows;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  c.m = 23, c.k = 100;
  ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
}

// Blocks of 16, which have tiles of their own: rows of one stage and of several, stages that are not full, odd numbers
// of blocks, k that fills no block, and each kind of scales.
TEST(LinearOnTheMachine, BlocksOf16) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr Scales kScales[] = {Scales::per_block, Scales::per_block, Scales::per_row,
                                Scales::codes,     Scales::row_codes, Scales::fixed};
  struct Shape {
    std::int64_t m, n, k;
  };
  constexpr Shape kShapes[] = {{1, 5, 17}, {17, 33, 208}, {33, 70, 149}, {66, 65, 272}, {40, 130, 1000}};
  unsigned cases = 0;
  for (const ComputeMode compute : {ComputeMode::int8, ComputeMode::int8_asym})
    for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric})
      for (const int bits : {4, 8})
        for (const Shape& shape : kShapes) {
          Case c{shape.m, shape.n, shape.k, 16};
          c.bits = bits, c.scheme = scheme, c.compute = compute;
          c.x_dtype = kDTypes[cases % 3];
          c.y_dtype = kDTypes[cases / 3 % 3];
          c.bias = cases % 2;
          if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
          if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
          c.scales = kScales[cases % 6];
          if (compute == ComputeMode::int8_asym && !c.codes()) c.scales = Scales::per_block;
          c.x_layout = kLayouts[cases % 4];
          c.y_layout = kLayouts[cases / 2 % 4];
          c.special = cases % 7 == 5 && !c.codes();
          c.every_tile = true;
          c.seed = 6500 + ++cases;
          ASSERT_NO_FATAL_FAILURE(check(c));
        }
  // As many tiles as fill three multiprocessors: large ones are chosen, then small ones.
  Case c{130, 70, 400, 16};
  c.large_tiles = true;
  ASSERT_NO_FATAL_FAILURE(check(c));
  ScratchBounds few_rows;
  few_rows.rows = 6;
  few_rows.fewest_rows = 1;
  c.m = 23;
  ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
}

// Every instance of the kernel of warpgroups: each height of tiles, clusters of one and two, blocks of several stages,
// several blocks in a stage, and no more of them than there are.
TEST(LinearOnTheMachine, Warpgroups) {
  struct Shape {
    std::int64_t m, n, k, block_size;
  };
  constexpr Shape kShapes[] = {{130, 200, 160, 32},  {70, 140, 320, 64},  {150, 40, 300, 128},
                               {260, 130, 400, 256}, {33, 300, 200, 200}, {40, 270, 48, 64},
                               {129, 129, 33, 33},   {40, 30, 784, 384},  {300, 150, 700, 700}};
  unsigned cases = 0;
  for (const Shape& shape : kShapes)
    for (const int bits : {4, 8})
      for (const Scheme scheme : {Scheme::symmetric, Scheme::asymmetric}) {
        Case c{shape.m, shape.n, shape.k, shape.block_size};
        c.bits = bits;
        c.scheme = scheme;
        c.compute = cases % 3 ? ComputeMode::int8 : ComputeMode::int8_asym;
        constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
        c.x_dtype = kDTypes[cases / 2 % 3];
        c.y_dtype = kDTypes[cases % 3];
        c.bias = cases % 2;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::silu, 0, 0};
        c.y_layout = cases % 4 == 3 ? Layout::transposed : Layout::aligned;
        c.x_layout = cases % 7 == 3 ? Layout::padded : Layout::aligned;
        c.special = cases % 6 == 5;
        c.large_tiles = true;
        c.seed = 5000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
}

// Every instance of the float kernel of warpgroups: each height of tiles, blocks of one promotion and of several, rings
// that turn, steps that are spread over thread blocks, rows that are gathered first, sums that are not finite.
TEST(LinearOnTheMachine, FloatOnWarpgroups) {
  struct Shape {
    std::int64_t m, n, k, block_size;
    bool large;
  };
  constexpr Shape kShapes[] = {{200, 130, 300, 128, true}, {200, 40, 200, 64, true},    {100, 41, 260, 256, true},
                               {100, 30, 200, 32, true},   {40, 140, 2100, 128, false}, {50, 20, 1990, 64, false},
                               {36, 10, 1700, 32, false},  {33, 130, 77, 77, false}};
  unsigned cases = 0;
  struct Weights {
    int bits;
    Scheme scheme;
    bool zero_points;
  };
  constexpr Weights kWeights[] = {{4, Scheme::symmetric, false},
                                  {4, Scheme::asymmetric, false},
                                  {4, Scheme::asymmetric, true},
                                  {8, Scheme::symmetric, false},
                                  {8, Scheme::asymmetric, false}};
  for (const Shape& shape : kShapes)
    for (const Weights& weights : kWeights)
      for (const DType dtype : {DType::f16, DType::bf16}) {
        Case c{shape.m, shape.n, shape.k, shape.block_size};
        c.bits = weights.bits;
        c.scheme = weights.scheme;
        c.zero_points = weights.zero_points;
        c.compute = ComputeMode::floating;
        c.x_dtype = dtype;
        c.y_dtype = cases % 3 ? dtype : DType::f32;
        c.bias = cases % 2;
        if (cases % 5 == 0) c.activation = {ActivationKind::clamp, -0.5f, 6.0f};
        if (cases % 5 == 1) c.activation = {ActivationKind::gelu_tanh, 0, 0};
        c.x_layout = cases % 7 == 3 ? Layout::padded : Layout::aligned;
        c.y_layout = kLayouts[cases % 4];
        if (cases % 3 == 2) c.y_layout = Layout::aligned;
        c.special = cases % 6 == 5;
        c.large_tiles = shape.large;
        c.seed = 7000 + ++cases;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
  Case c{90, 40, 130, 64};
  c.compute = ComputeMode::floating;
  c.x_dtype = DType::bf16;
  ScratchBounds few_rows;
  few_rows.rows = 40;
  few_rows.fewest_rows = 1;
  ASSERT_NO_FATAL_FAILURE(check(c, few_rows));
}

}  // namespace
}  // namespace qcore
