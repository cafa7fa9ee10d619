#include <algorithm>
#include <cmath>
#include <string>

#include "formats/element.h"
#include "lut/builtin_data.h"
#include "lut/lut_storage.h"
#include "numerics/half_bits.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

static_assert(static_cast<int>(LutReduction::periodic) == static_cast<int>(numerics::LutReduction::periodic));

constexpr std::int64_t kMaxIntervals = 256, kMaxEntries = 1 << 16;

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape[0]));
  for (std::int64_t i = 0; i < view.shape[0]; ++i) values[i] = load_float(view.data, view.dtype, i * view.strides[0]);
  return values;
}

void check_parts(const TensorView& cuts, const TensorView& values) {
  QCORE_CHECK_VALUE(cuts.device == kCpu, "lut table: cuts are on ", name(cuts.device), ", expected cpu");
  QCORE_CHECK_VALUE(values.device == kCpu, "lut table: values are on ", name(values.device), ", expected cpu");
  check_dtype("lut table", "cuts", cuts, DType::f32);
  QCORE_CHECK_TYPE(values.dtype == DType::f16 || values.dtype == DType::f32, "lut table: values have dtype ",
                   name(values.dtype), ", expected float16 or float32");
  QCORE_CHECK_VALUE(cuts.rank == 1 && cuts.shape[0] >= 3 && cuts.shape[0] <= kMaxIntervals + 1,
                    "lut table: cuts have shape ", shape_string(cuts), ", expected [n + 1] with 2 to ", kMaxIntervals,
                    " intervals n");
  const std::int64_t inner = cuts.shape[0] - 3;
  const bool fits = values.rank == 1 && values.shape[0] <= kMaxEntries &&
                    (inner == 0 ? values.shape[0] == 3 : values.shape[0] > 3 && (values.shape[0] - 3) % inner == 0);
  QCORE_CHECK_VALUE(fits, "lut table: values have shape ", shape_string(values), ", expected [3 + ", inner,
                    " * s] for ", cuts.shape[0], " cuts with s >= 1 segments, at most ", kMaxEntries);
}

void check_numbers(const std::vector<float>& cuts, const std::vector<float>& values) {
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    QCORE_CHECK_VALUE(std::isfinite(cuts[i]), "lut table: cuts[", i, "] is ", cuts[i], ", expected a finite number");
    QCORE_CHECK_VALUE(i == 0 || cuts[i] > cuts[i - 1], "lut table: cuts[", i, "] is ", cuts[i], " after ",
                      cuts[i ? i - 1 : 0], ", expected increasing numbers");
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    QCORE_CHECK_VALUE(std::fabs(values[i]) <= numerics::kLutLimit, "lut table: values[", i, "] is ", values[i],
                      ", expected a number within +-65504");
}

// Returns whether interpolating up to the last cut gives the last entry, so that no comparison has to find it.
bool reaches_last_entry(const LutStorage& table) {
  const numerics::LutView view = table.arrays().view;
  const std::int32_t i = table.intervals - 1;
  std::int32_t q;
  float a, value, delta;
  view.place(view.position(view.high(), i), i, q, a);
  view.entry(q, value, delta);
  return numerics::float_bits(numerics::fma_once(a, delta, value)) == numerics::float_bits(table.values.back());
}

// Returns the least number of a cell's range, and the largest one in `most`.
float range_of_cell(const LutRegisters& table, std::uint32_t cell, float& most) {
  constexpr std::uint32_t kLargest = 0x7f7fffffu;
  if (table.unit) {
    constexpr auto kCells = static_cast<float>(LutRegisters::kCells);
    most = static_cast<float>(cell + 1) / kCells;  // which a number just below it may be rounded to
    return static_cast<float>(cell) / kCells;
  }
  const std::uint32_t k = cell & table.cell_limit;
  const auto begin = [&](std::uint32_t of) { return (table.cell_base + (of << table.cell_shift)) << 16; };
  const float low = numerics::bits_float(k == 0 ? 0 : begin(k));
  const float high = numerics::bits_float(k == table.cell_limit ? kLargest : begin(k + 1) - 1);
  most = k == cell ? high : -low;
  return k == cell ? low : -high;
}

// Fills the cells for the chosen numbering.
void fill_cells(LutRegisters& table) {
  const auto cuts_up_to = [&](float x) {
    return static_cast<int>(std::count_if(table.next_cuts, table.next_cuts + LutRegisters::kIntervals,
                                          [&](float cut) { return cut <= x; }));
  };
  table.cell_steps = 0;
  for (std::uint32_t cell = 0; cell < LutRegisters::kCells; ++cell) {
    float most;
    const int first = cuts_up_to(range_of_cell(table, cell, most));
    table.cells[cell] = static_cast<std::uint16_t>(first);
    table.cell_steps = std::max(table.cell_steps, cuts_up_to(most) - first);
  }
}

// Chooses the numbering of cells that takes the fewest steps.
void choose_cells(LutRegisters& table) {
  table.cell_base = 0;
  table.cell_shift = 8;
  table.cell_factor = 1 << 8;
  table.cell_limit = table.unit || table.low >= 0 ? LutRegisters::kCells - 1 : LutRegisters::kCells / 2 - 1;
  fill_cells(table);
  if (table.unit) return;
  LutRegisters best = table;
  for (std::uint16_t shift = 1; shift <= 7; ++shift)
    for (const float cut : table.next_cuts) {
      if (!std::isfinite(cut)) continue;
      const std::uint32_t top = numerics::float_bits(std::fabs(cut)) >> 16 >> shift << shift;
      const std::uint32_t below = std::uint32_t{table.cell_limit} << shift;
      table.cell_shift = shift;
      table.cell_factor = static_cast<std::uint16_t>(1 << (16 - shift));
      table.cell_base = static_cast<std::uint16_t>(top > below ? top - below : 0);
      fill_cells(table);
      if (table.cell_steps < best.cell_steps) best = table;
    }
  table = best;
}

bool is_power_of_two(std::int32_t x) { return x > 0 && (x & (x - 1)) == 0; }

std::unique_ptr<LutRegisters> registers_of(const LutStorage& table) {
  constexpr int kLanes = LutRegisters::kLanes;
  if (table.intervals > LutRegisters::kIntervals || table.entries > LutRegisters::kInner + 3 ||
      table.value_dtype != DType::f16 || !is_power_of_two(table.segments))
    return nullptr;
  auto made = std::make_unique<LutRegisters>();
  for (int i = 0; i < kLanes; ++i) {
    const bool used = i <= table.intervals;
    made->cuts[i] = used ? table.cuts[i] : numerics::bits_float(numerics::kInfinityBits);
    made->scales[i] = used ? table.scales[i] : 0.0f;
    made->firsts[i] = LutRegisters::kCount + static_cast<float>(used ? table.firsts[i] : 0);
  }
  for (int i = 0; i < LutRegisters::kCutVectors; ++i)
    std::fill(std::begin(made->cut_vectors[i]), std::end(made->cut_vectors[i]), made->cuts[i + 1]);
  for (int i = 0; i < kLanes; ++i) made->next_cuts[i] = made->cuts[std::min(i + 1, kLanes - 1)];
  if (reaches_last_entry(table)) made->next_cuts[table.intervals - 1] = made->cuts[kLanes - 1];
  const auto half = [&](std::int32_t entry) {
    return numerics::float_to_half(table.values[std::min(entry, table.entries - 1)]);
  };
  constexpr int kInner = LutRegisters::kInner;
  for (int i = 0; i < kInner; ++i) made->inner[i] = half(i), made->inner_next[i] = half(i + 1);
  for (int i = 0; i < LutRegisters::kEdges; ++i)
    made->edges[i] = half(kInner + i), made->edges_next[i] = half(kInner + i + 1);
  made->low = table.cuts.front();
  made->high = table.cuts.back();
  made->unit = table.reduction == LutReduction::exp && made->low <= 0.0f && made->high >= 1.0f;
  choose_cells(*made);
  return made;
}

std::shared_ptr<const LutStorage> make_storage(std::vector<float> cuts, std::vector<float> values, DType value_dtype,
                                               LutReduction reduction) {
  auto made = std::make_shared<LutStorage>();
  LutStorage& table = *made;
  table.reduction = reduction;
  table.value_dtype = value_dtype;
  table.intervals = static_cast<std::int32_t>(cuts.size()) - 1;
  table.entries = static_cast<std::int32_t>(values.size());
  table.segments = table.intervals == 2 ? 1 : (table.entries - 3) / (table.intervals - 2);
  std::int32_t first = 0;
  for (std::int32_t i = 0; i < table.intervals; ++i) {
    const std::int32_t length = i == 0 || i == table.intervals - 1 ? 1 : table.segments;
    const float scale = static_cast<float>(length) / (cuts[i + 1] - cuts[i]);
    QCORE_CHECK_VALUE(std::isnormal(scale), "lut table: cuts[", i, "] to cuts[", i + 1, "] are ", cuts[i], " and ",
                      cuts[i + 1], ", too close together or too far apart");
    table.lengths.push_back(static_cast<float>(length));
    table.scales.push_back(scale);
    table.firsts.push_back(first);
    first += length;
  }
  table.lengths.push_back(0.0f);
  table.scales.push_back(0.0f);
  table.firsts.push_back(first);
  for (std::int32_t q = 0; q < table.entries; ++q)
    table.deltas.push_back(q + 1 < table.entries ? values[q + 1] - values[q] : 0.0f);
  table.cuts = std::move(cuts);
  table.values = std::move(values);
  table.registers = registers_of(table);
  return made;
}

void write_floats(const std::vector<float>& values, const char* argument, const TensorView& out) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  check_dtype("lut table", argument, out, DType::f32);
  check_shape("lut table", argument, out, 1, shape);
  check_output("lut table", argument, out);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_float(out.data, out.dtype, static_cast<std::int64_t>(i) * out.strides[0], values[i]);
}

}  // namespace

const std::uint16_t* LutStorage::lut16(bool bfloat, std::int64_t count,
                                       const std::function<void(std::uint16_t*)>& fill) const {
  constexpr std::int64_t kNumbers = 1 << 16;
  Results& all = results_[bfloat];
  if (all.ready.load(std::memory_order_acquire)) return all.of.data();
  if (all.asked.fetch_add(count, std::memory_order_relaxed) + count < kNumbers) return nullptr;
  std::call_once(all.made, [&] {
    std::vector<std::uint16_t> made(kNumbers);
    fill(made.data());
    all.of = std::move(made);
    all.ready.store(true, std::memory_order_release);
  });
  return all.of.data();
}

LutTable::LutTable(std::shared_ptr<const LutStorage> storage) : storage_(std::move(storage)) {}

LutTable LutTable::from_parts(const TensorView& cuts, const TensorView& values, LutReduction reduction) {
  check_parts(cuts, values);
  std::vector<float> cut_points = floats_of(cuts), entries = floats_of(values);
  check_numbers(cut_points, entries);
  return LutTable(make_storage(std::move(cut_points), std::move(entries), values.dtype, reduction));
}

LutTable LutTable::builtin(const std::string& wanted, bool range_reduction) {
  // Made once; a C++ compiler initializes a static object once, whatever the number of threads.
  static const std::vector<LutTable> tables = [] {
    std::vector<LutTable> made;
    for (const BuiltinData& data : kBuiltinLuts) {
      std::vector<float> values;
      for (const std::uint16_t bits : data.values) values.push_back(numerics::half_to_float(bits));
      made.push_back(LutTable(
          make_storage({std::begin(data.cuts), std::end(data.cuts)}, std::move(values), DType::f16, data.reduction)));
    }
    return made;
  }();
  std::string names;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const bool reduced = kBuiltinLuts[i].reduction != LutReduction::none;
    if (wanted == kBuiltinLuts[i].name && reduced == range_reduction) return tables[i];
    if (reduced == range_reduction) names += (names.empty() ? "" : ", ") + std::string(kBuiltinLuts[i].name);
  }
  throw ValueError(message("lut table: there is no table '", wanted, "' ", range_reduction ? "with" : "without",
                           " range reduction, expected one of ", names));
}

int LutTable::intervals() const { return storage_->intervals; }
int LutTable::segments() const { return storage_->segments; }
int LutTable::entries() const { return storage_->entries; }
LutReduction LutTable::reduction() const { return storage_->reduction; }
DType LutTable::value_dtype() const { return storage_->value_dtype; }
void LutTable::cuts(const TensorView& out) const { write_floats(storage_->cuts, "cuts", out); }
void LutTable::values(const TensorView& out) const { write_floats(storage_->values, "values", out); }

bool LutTable::equal(const LutTable& other) const {
  const LutStorage &a = *storage_, &b = *other.storage_;
  const auto same_bits = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](float u, float v) { return numerics::float_bits(u) == numerics::float_bits(v); });
  };
  return a.reduction == b.reduction && a.value_dtype == b.value_dtype && same_bits(a.cuts, b.cuts) &&
         same_bits(a.values, b.values);
}

std::vector<BuiltinLut> builtin_luts() {
  std::vector<BuiltinLut> found;
  for (const BuiltinData& data : kBuiltinLuts) found.push_back({data.name, data.reduction != LutReduction::none});
  return found;
}

}  // namespace qcore
