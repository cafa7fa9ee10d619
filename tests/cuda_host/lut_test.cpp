// The CUDA rows of lut, softmax and rms_norm on the machine against their reference kernels: the same bits in y, and
// not a byte changed around it.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "device_arrays.h"
#include "lut/cuda/device_elements.cuh"
#include "lut/cuda/device_table.cuh"
#include "lut/cuda/kernels.h"
#include "lut/dispatch.h"
#include "runtime/cuda/cuda_check.h"

namespace qcore {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr float kPi = 3.14159265f;

// The function's values at the ends of all segments.
LutTable table_of(const std::vector<float>& cuts, int segments, DType dtype, LutReduction reduction,
                  const std::function<double(double)>& function) {
  std::vector<float> values;
  const int intervals = static_cast<int>(cuts.size()) - 1;
  for (int i = 0; i < intervals; ++i) {
    const int length = i == 0 || i == intervals - 1 ? 1 : segments;
    for (int j = 0; j < length; ++j)
      values.push_back(static_cast<float>(function(cuts[i] + (double{cuts[i + 1]} - cuts[i]) * j / length)));
  }
  values.push_back(static_cast<float>(function(cuts.back())));
  std::vector<char> stored(values.size() * static_cast<std::size_t>(item_size(dtype)));
  for (std::size_t q = 0; q < values.size(); ++q)
    store_float(stored.data(), dtype, static_cast<std::int64_t>(q), values[q]);
  return LutTable::from_parts(TensorView(cuts.data(), DType::f32, {intervals + 1}),
                              TensorView(stored.data(), dtype, {static_cast<std::int64_t>(values.size())}), reduction);
}

std::vector<float> evenly(float low, float high, int intervals) {
  std::vector<float> cuts;
  for (int i = 0; i <= intervals; ++i)
    cuts.push_back(low + (high - low) * static_cast<float>(i) / static_cast<float>(intervals));
  return cuts;
}

LutTable silu() {
  return table_of({-20.359375f, -17.109375f, -8.3671875f, -1.9755859375f, -0.255615234375f, -0.007244110107421875f,
                   0.0072174072265625f, 0.228515625f, 1.58203125f, 10.46875f, 65504.0f},
                  32, DType::f16, LutReduction::none, [](double x) { return x / (1 + std::exp(-x)); });
}
LutTable exp_table(DType dtype = DType::f16) {
  return table_of(evenly(0, 1, 10), 32, dtype, LutReduction::exp, [](double x) { return std::exp2(x); });
}
LutTable reciprocal_table() {
  return table_of(evenly(1, 2, 10), 32, DType::f16, LutReduction::reciprocal, [](double x) { return 1 / x; });
}
LutTable rsqrt_table() {
  return table_of(evenly(1, 4, 10), 32, DType::f16, LutReduction::rsqrt, [](double x) { return 1 / std::sqrt(x); });
}

// One of the ordinary size for every reduction.
std::vector<LutTable> ordinary_tables() {
  return {
      silu(),
      exp_table(),
      table_of(evenly(0.70710677f, 1.4142135f, 10), 32, DType::f16, LutReduction::log,
               [](double x) { return std::log(x); }),
      reciprocal_table(),
      table_of(evenly(1, 4, 10), 32, DType::f16, LutReduction::sqrt, [](double x) { return std::sqrt(x); }),
      rsqrt_table(),
      table_of(evenly(-kPi, kPi, 10), 32, DType::f16, LutReduction::periodic, [](double x) { return std::sin(x); })};
}

// Returns tables of other sizes and dtypes, which fit in shared memory or do not.
std::vector<LutTable> odd_tables() {
  const auto cube = [](double x) { return 65504 * x * x * x; };
  std::vector<LutTable> tables{table_of({-1, 0, 1}, 1, DType::f16, LutReduction::none, cube),
                               table_of({-1, -0.5f, 0, 1}, 5, DType::f32, LutReduction::none, cube),
                               table_of(evenly(-1, 1, 11), 7, DType::f16, LutReduction::none, cube),
                               table_of(evenly(-1, 1, 10), 127, DType::f32, LutReduction::none, cube),
                               table_of(evenly(-1, 1, 10), 128, DType::f16, LutReduction::none, cube),
                               table_of(evenly(-1, 1, 256), 250, DType::f32, LutReduction::none, cube),
                               exp_table(DType::f32)};
  return tables;
}

// x and y in larger buffers, y's filled with a pattern.
struct Arrays {
  DType x_dtype, y_dtype;
  std::vector<char> x, y;                 // no y: in place
  std::int64_t x_first = 0, y_first = 0;  // in elements
};

std::vector<char> stored(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * static_cast<std::size_t>(item_size(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i)
    store_float(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  return bytes;
}

LutProblem& arrays_of(LutProblem& problem) { return problem; }
LutProblem& arrays_of(RowProblem& problem) { return problem.rows; }

template <class Problem>
Problem pointed_at(Problem problem, const Arrays& at, const void* x, void* y, Device device) {
  LutProblem& arrays = arrays_of(problem);
  arrays.x_dtype = at.x_dtype;
  arrays.y_dtype = at.y_dtype;
  arrays.x = static_cast<const char*>(x) + at.x_first * item_size(at.x_dtype);
  arrays.y = static_cast<char*>(y) + at.y_first * item_size(at.y_dtype);
  arrays.device = problem.device = device;
  return problem;
}

// The CUDA row against the reference; in place if `at` has no y.
template <class Problem>
void check(const Problem& problem, const Arrays& at, void (*reference)(const Problem&), void (*run)(const Problem&),
           const std::string& what) {
  const bool in_place = at.y.empty();
  std::vector<char> x = at.x, y = at.y;
  reference(pointed_at(problem, at, x.data(), in_place ? x.data() : y.data(), kCpu));
  const std::vector<char>& expected = in_place ? x : y;

  const DeviceArray<char> device_x(at.x), device_y(at.y);
  run(pointed_at(problem, at, device_x.get(), in_place ? device_x.get() : device_y.get(), kCuda));
  if (!in_place) {
    EXPECT_EQ(device_x.host(), at.x) << what << ": x has changed";
  }
  const std::vector<char> given = in_place ? device_x.host() : device_y.host();
  if (given == expected) return;
  const std::int64_t item = item_size(at.y_dtype);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.size()) / item; ++i)
    ASSERT_EQ(std::memcmp(given.data() + i * item, expected.data() + i * item, static_cast<std::size_t>(item)), 0)
        << what << ": element " << i << " of the buffer is " << load_float(given.data(), at.y_dtype, i) << ", expected "
        << load_float(expected.data(), at.y_dtype, i);
}

void check_lut(LutProblem problem, const LutTable& table, const Arrays& at, const std::string& what) {
  problem.table = &table.storage();
  check(problem, at, run_lut_reference, run_lut_cuda, what);
}

LutProblem contiguous(std::int64_t count) {
  LutProblem problem;
  problem.rank = 1;
  problem.shape[0] = count;
  problem.x_strides[0] = problem.y_strides[0] = 1;
  return problem;
}

Arrays arrays(const std::vector<float>& values, DType x_dtype, DType y_dtype) {
  return {x_dtype, y_dtype, stored(values, x_dtype), std::vector<char>(values.size() * item_size(y_dtype), '\xcd')};
}

// All 65,536 values of a dtype.
std::vector<float> all_of(DType dtype) {
  std::vector<float> values(1 << 16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    values[i] = load_float(&bits, dtype, 0);
  }
  return values;
}

// Random bits, zeros, infinities, the smallest and the largest.
std::vector<float> any_floats(Random& random, std::int64_t count) {
  std::vector<float> values{0.0f, -0.0f, kInfinity, -kInfinity, kNaN, -kNaN, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f};
  for (std::int64_t i = static_cast<std::int64_t>(values.size()); i < count; ++i) {
    const std::uint32_t high = static_cast<std::uint32_t>(random.below(1 << 16)),
                        low = static_cast<std::uint32_t>(random.below(1 << 16));
    values.push_back(i % 2 ? 5.0f * random.normal() : numerics::bits_float(high << 16 | low));
  }
  values.resize(static_cast<std::size_t>(count));
  return values;
}

std::string of(std::size_t table, DType dtype) { return "table " + std::to_string(table) + ", " + name(dtype); }

// Every fp16 and bf16 number through every reduction, in its dtype and as fp32, vectors and in place. Elements are many
// enough for copies of the tables in shared memory.
TEST(LutCuda, EveryNumberOfSixteenBits) {
  const std::vector<LutTable> tables = ordinary_tables();
  for (std::size_t t = 0; t < tables.size(); ++t)
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const std::vector<float> values = all_of(dtype);
      const LutProblem problem = contiguous(static_cast<std::int64_t>(values.size()));
      check_lut(problem, tables[t], arrays(values, dtype, dtype), of(t, dtype));
      check_lut(problem, tables[t], arrays(values, DType::f32, DType::f32), of(t, dtype) + " as fp32");
    }
}

TEST(LutCuda, EveryFunctionOnEveryFp16Number) {
  const std::vector<float> values = all_of(DType::f16);
  const LutProblem problem = contiguous(static_cast<std::int64_t>(values.size()));
  ASSERT_GE(builtin_luts().size(), 29u);
  for (const BuiltinLut& known : builtin_luts())
    check_lut(problem, LutTable::builtin(known.name, known.range_reduction), arrays(values, DType::f16, DType::f16),
              known.name + (known.range_reduction ? ", reduced" : ""));
}

TEST(LutCuda, EveryTableAndSize) {
  Random random(1);
  std::vector<LutTable> tables = ordinary_tables();
  for (LutTable& table : odd_tables()) tables.push_back(table);
  for (std::size_t t = 0; t < tables.size(); ++t)
    for (const DType dtype : kFloats)
      for (const std::int64_t count : {1, 7, 8, 9, 1000, 4099}) {
        Arrays at = arrays(any_floats(random, count), dtype, dtype);
        check_lut(contiguous(count), tables[t], at, of(t, dtype));
        at.y.clear();
        check_lut(contiguous(count), tables[t], at, of(t, dtype) + " in place");
      }
}

// 32 copies of each entry, more vectors than the grid has threads.
TEST(LutCuda, ManyElements) {
  Random random(2);
  const std::int64_t count = (1 << 22) + 5;
  const std::vector<float> values = any_floats(random, count);
  check_lut(contiguous(count), silu(), arrays(values, DType::f32, DType::f32), "many");
  check_lut(contiguous(count), exp_table(DType::f32), arrays(values, DType::f32, DType::f32), "many");
}

// Every fp16 and bf16 number by the map of all results; more vectors than threads, and a few elements more.
TEST(LutCuda, DirectMap) {
  static constexpr auto run = [](const LutProblem& problem) { run_lut_cuda(problem, 1000); };
  const std::vector<LutTable> tables = ordinary_tables();
  for (std::size_t t = 0; t < tables.size(); ++t)
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<float> values = all_of(dtype);
      if (t == 0) {
        for (int i = 0; i < 2; ++i) values.insert(values.end(), values.begin(), values.end());
        values.resize(values.size() - 3);
      }
      LutProblem problem = contiguous(static_cast<std::int64_t>(values.size()));
      problem.table = &tables[t].storage();
      Arrays at = arrays(values, dtype, dtype);
      check<LutProblem>(problem, at, run_lut_reference, run, of(t, dtype) + " direct");
      at.y.clear();
      check<LutProblem>(problem, at, run_lut_reference, run, of(t, dtype) + " direct, in place");
    }
}

// Every fp16 number as fp32, numbers beside the cuts, and any others, by the buckets of their highest bits.
TEST(LutCuda, Buckets) {
  static constexpr auto run = [](const LutProblem& problem) { run_lut_cuda(problem, 1000); };
  Random random(5);
  std::vector<float> values = all_of(DType::f16);
  for (const float x : any_floats(random, 5000)) values.push_back(x);
  for (const float x : {0.0f, -0.0f, 1e-45f, -1e-45f}) values.push_back(x);
  int with_buckets = 0;
  for (const BuiltinLut& known : builtin_luts()) {
    if (known.range_reduction) continue;
    const LutTable table = LutTable::builtin(known.name, false);
    with_buckets += device_table(table.storage(), 0, 0, true).bucket_bits != 0;
    std::vector<float> own = values;
    for (const float cut : table.storage().cuts)
      for (const float x : {std::nextafter(cut, -1e30f), cut, std::nextafter(cut, 1e30f)}) own.push_back(x);
    LutProblem problem = contiguous(static_cast<std::int64_t>(own.size()));
    problem.table = &table.storage();
    check<LutProblem>(problem, arrays(own, DType::f32, DType::f32), run_lut_reference, run, known.name + ", buckets");
  }
  EXPECT_EQ(with_buckets, 15);
}

TEST(LutCuda, DTypesAndPlaces) {
  Random random(3);
  const std::int64_t count = 531, room = 600;
  for (const DType x_dtype : kFloats)
    for (const DType y_dtype : kFloats)
      for (const std::int64_t first : {0, 1, 16}) {
        Arrays at = arrays(any_floats(random, room), x_dtype, y_dtype);
        at.x_first = first;
        at.y_first = first == 1 ? 3 : first;
        const std::string what =
            std::string(name(x_dtype)) + " to " + name(y_dtype) + ", first " + std::to_string(first);
        check_lut(contiguous(count), silu(), at, what);
        LutProblem apart = contiguous(count / 3);
        apart.x_strides[0] = 3;
        check_lut(apart, silu(), at, what + ", x apart");
        std::swap(apart.x_strides[0], apart.y_strides[0]);
        check_lut(apart, silu(), at, what + ", y apart");
      }
}

// A problem of several axes, one of them backwards, one of no stride in x.
TEST(LutCuda, Axes) {
  Random random(4);
  for (const LutTable& table : ordinary_tables())
    for (const DType dtype : kFloats) {
      Arrays at = arrays(any_floats(random, 3000), dtype, dtype);
      LutProblem problem;
      problem.rank = 4;
      const std::int64_t shape[] = {2, 5, 3, 11}, x[] = {400, -40, 0, 2}, y[] = {601, 101, 33, -3};
      std::copy(shape, shape + 4, problem.shape);
      std::copy(x, x + 4, problem.x_strides);
      std::copy(y, y + 4, problem.y_strides);
      at.x_first = 300;
      at.y_first = 40;
      check_lut(problem, table, at, name(dtype));
    }
  LutProblem scalar;
  check_lut(scalar, silu(), arrays({-2.5f}, DType::f16, DType::f16), "scalar");
  check_lut(contiguous(0), silu(), arrays({1.0f}, DType::f16, DType::f16), "empty");
}

// Checks that a call too large for one launch is cut into pieces that cover it.
TEST(LutCuda, Pieces) {
  LutProblem problem;
  problem.rank = 2;
  problem.shape[0] = 5, problem.shape[1] = 37;
  problem.x_strides[0] = 40, problem.x_strides[1] = 1;
  problem.y_strides[0] = 1, problem.y_strides[1] = 5;
  problem.y_dtype = DType::f16;
  float x[200] = {};
  std::uint16_t y[185] = {};
  problem.x = x, problem.y = y;
  for_pieces(problem, 10, [&](const LutProblem& piece) {
    EXPECT_LE(piece.size(), 10);
    for (std::int64_t i = 0; i < piece.size(); ++i) {
      const LutOffsets at = offsets_at(piece, i);
      const std::int64_t x_at = static_cast<const float*>(piece.x) - x + at.x;
      const std::int64_t y_at = static_cast<std::uint16_t*>(piece.y) - y + at.y;
      EXPECT_EQ(y_at, x_at / 40 + x_at % 40 * 5);
      ++y[y_at];
    }
  });
  for (const std::uint16_t count : y) EXPECT_EQ(count, 1);
}

TEST(LutCuda, TablesAreUploadedOnce) {
  const int before = cuda_host::live_allocations();
  {
    const LutTable table = silu();
    const float* first = table.storage().on_device(0);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
    EXPECT_EQ(table.storage().on_device(0), first);
    EXPECT_EQ(first[0], -20.359375f);
    const LutTable unlucky = silu();
    cuda_host::fail_next("cudaMemcpyAsync", cudaErrorInvalidValue);
    EXPECT_THROW(unlucky.storage().on_device(0), CudaError);
    EXPECT_EQ(cuda_host::live_allocations(), before + 1);
    EXPECT_EQ(unlucky.storage().on_device(0)[0], first[0]);
  }
  EXPECT_EQ(cuda_host::live_allocations(), before);
}

struct RowCase {
  std::int64_t rows, count;
  DType x_dtype, y_dtype;
  std::int64_t x_stride = 1, y_stride = 1, x_apart = 0, y_apart = 0;  // further apart than rows are long
  bool in_place = false;
  DType weight_dtype = DType::f32;
  std::int64_t weight_stride = 1;
};

void check_rows(Random& random, const RowCase& c, const LutTable& exp) {
  RowProblem problem;
  problem.count = c.count;
  problem.x_stride = c.x_stride;
  problem.y_stride = c.y_stride;
  problem.rows.rank = 1;
  problem.rows.shape[0] = c.rows;
  // Along the last axis, or along the first one, between whose elements the rows lie.
  problem.rows.x_strides[0] = c.x_stride >= c.rows && c.rows > 1 ? 1 : c.count * c.x_stride + c.x_apart;
  problem.rows.y_strides[0] = c.y_stride >= c.rows && c.rows > 1 ? 1 : c.count * c.y_stride + c.y_apart;
  const auto room = [&](std::int64_t stride, std::int64_t row_stride) {
    return (c.rows - 1) * row_stride + (c.count - 1) * stride + 9;
  };
  std::vector<float> values;
  for (std::int64_t i = room(c.x_stride, problem.rows.x_strides[0]); i > 0; --i)
    values.push_back(4.0f * random.normal());
  Arrays at{c.x_dtype, c.y_dtype, {}, {}};
  if (!c.in_place)
    at.y.assign(static_cast<std::size_t>(room(c.y_stride, problem.rows.y_strides[0]) * item_size(c.y_dtype)), '\xcd');
  // Rows with an infinity of either sign, with a NaN first and last, of nothing but -inf.
  const auto x_of = [&](std::int64_t row, std::int64_t i) -> float& {
    return values[static_cast<std::size_t>(row * problem.rows.x_strides[0] + i * c.x_stride)];
  };
  for (std::int64_t row = 1; row < c.rows; ++row) {
    if (row == 1) x_of(row, c.count / 2) = -kInfinity;
    if (row == 2) x_of(row, c.count / 2) = kInfinity;
    if (row == 3) x_of(row, 0) = kNaN;
    if (row == 4) x_of(row, c.count - 1) = kNaN;
    if (row == 5)
      for (std::int64_t i = 0; i < c.count; ++i) x_of(row, i) = -kInfinity;
  }
  at.x = stored(values, c.x_dtype);
  const std::string what = std::to_string(c.rows) + " rows of " + std::to_string(c.count) + ", " + name(c.x_dtype) +
                           " to " + name(c.y_dtype) + (c.in_place ? ", in place" : "") + ", strides " +
                           std::to_string(c.x_stride) + " " + std::to_string(c.y_stride);
  const LutTable reciprocal = reciprocal_table(), rsqrt = rsqrt_table();
  problem.first = &exp.storage();
  problem.second = &reciprocal.storage();
  check(problem, at, run_softmax_reference, run_softmax_cuda, "softmax: " + what);

  problem.first = &rsqrt.storage();
  problem.second = nullptr;
  problem.eps = 1e-5f;
  check(problem, at, run_rms_norm_reference, run_rms_norm_cuda, "rms_norm: " + what);
  std::vector<float> scales;
  for (std::int64_t i = 0; i < c.count * c.weight_stride; ++i) scales.push_back(random.normal());
  const std::vector<char> weight = stored(scales, c.weight_dtype);
  problem.weight = weight.data();
  problem.weight_dtype = c.weight_dtype;
  problem.weight_stride = c.weight_stride;
  check(problem, at, run_rms_norm_reference, run_rms_norm_cuda, "rms_norm: weighted, " + what);
}

TEST(RowsCuda, EveryLength) {
  Random random(5);
  const LutTable exp = exp_table();
  for (const DType dtype : kFloats)
    for (const std::int64_t count : {1, 8, 31, 32, 33, 1000, 1024, 1025, 5000}) {
      RowCase c{count > 1000 ? 6 : 11, count, dtype, dtype};
      c.weight_dtype = kFloats[count % 3];
      check_rows(random, c, exp);
      c.in_place = true;
      check_rows(random, c, exp);
    }
}

// Longer than what waits in shared memory.
TEST(RowsCuda, LongRows) {
  Random random(6);
  for (const DType dtype : kFloats) check_rows(random, {3, 20011, dtype, dtype}, exp_table());
  RowCase c{2, 20008, DType::f16, DType::f16};
  c.in_place = true;
  check_rows(random, c, exp_table());
  c.x_stride = c.y_stride = 2;
  check_rows(random, c, exp_table());
}

TEST(RowsCuda, DTypesStridesAndAxes) {
  Random random(7);
  for (const DType x_dtype : kFloats)
    for (const DType y_dtype : kFloats) {
      check_rows(random, {6, 70, x_dtype, y_dtype}, exp_table());
      RowCase c{6, 96, x_dtype, y_dtype, 1, 1, 8, 16};
      check_rows(random, c, exp_table());
      c.y_apart = 3;
      check_rows(random, c, exp_table());
      check_rows(random, {6, 40, x_dtype, y_dtype, 9, 1, 0, 0, false, y_dtype, 2}, exp_table());
      check_rows(random, {6, 1100, x_dtype, y_dtype, 7, 8, 0, 0, false, x_dtype}, exp_table());
    }
}

// Tables of all three places.
TEST(RowsCuda, OtherTables) {
  Random random(8);
  const auto exp2 = [](double x) { return std::exp2(x); };
  for (const LutTable& exp :
       {exp_table(DType::f32), table_of(evenly(0, 1, 40), 20, DType::f32, LutReduction::exp, exp2)})
    for (const DType dtype : kFloats)
      for (const std::int64_t count : {64, 1500}) check_rows(random, {6, count, dtype, dtype}, exp);
}

TEST(RowsCuda, NothingToDo) {
  Random random(9);
  RowProblem problem;
  problem.rows.rank = 1;
  problem.count = 3;
  const LutTable exp = exp_table();
  problem.first = problem.second = &exp.storage();
  run_softmax_cuda(pointed_at(problem, arrays({1.0f}, DType::f32, DType::f32), nullptr, nullptr, kCuda));
  run_rms_norm_cuda(pointed_at(problem, arrays({1.0f}, DType::f32, DType::f32), nullptr, nullptr, kCuda));
}

TEST(RowsCuda, OtherDevicesAreRefused) {
  EXPECT_STREQ(lut_cuda_unsupported_reason(LutProblem{}), "it runs on CUDA devices");
  EXPECT_STREQ(row_cuda_unsupported_reason(RowProblem{}), "it runs on CUDA devices");
}

}  // namespace
}  // namespace qcore
