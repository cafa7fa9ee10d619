#pragma once

#include <cuda_runtime.h>

#include "lut/lut_storage.h"
#include "numerics/half_bits.h"
#include "numerics/lanes.h"
#include "numerics/lut_eval.h"
#include "runtime/memory.h"

// Tables as kernels read them, and their look-ups.
namespace qcore {

using Reduction = numerics::LutReduction;

// Operations at a GPU's full rate, with the results of ScalarLanes for the numbers that lut_eval has.
struct DeviceLanes : numerics::ScalarLanes {
#if defined(__CUDA_ARCH__)
  QCORE_NUMERIC F at_least(F x, F low) { return fmaxf(x, low); }
  QCORE_NUMERIC F at_most(F x, F high) { return fminf(x, high); }
#endif
  // Truncates the exponents that lut_eval rounds.
  QCORE_NUMERIC I truncate(F x) {
    return static_cast<I>(numerics::floor_to_small_int_bits(x) - numerics::kSmallIntBits);
  }
  QCORE_NUMERIC F floor(F x) { return numerics::small_int_bits_to_float(numerics::floor_to_small_int_bits(x)); }
  QCORE_NUMERIC F to_float(I i) {
    return numerics::small_int_bits_to_float(static_cast<std::uint32_t>(i) + numerics::kSmallIntBits);
  }
};

// Where a kernel keeps a table: in shared memory as pairs of fp16 neighbors or as fp32 values and differences, if it
// is of the ordinary size, or in the device's memory.
enum class TablePlace { halves, floats, memory };

constexpr int kFewIntervals = 10;  // the default: their cuts are constants of the launch
constexpr int kFewRecords = kFewIntervals + 1;
constexpr int kIntervalCopies = 8;  // each takes a quarter of the banks' width: 8 lanes never meet
constexpr std::int32_t kMaxSharedEntries = 1024;
constexpr std::int32_t kMaxSharedBytes = 36 << 10;
constexpr std::int32_t kMinBucketBits = 9, kMaxBucketBits = 11;

struct DeviceTable {
  numerics::LutView view;  // in the device's memory
  std::int32_t entries;
  TablePlace place;
  std::int32_t copies_shift;  // 1 << copies_shift copies of each entry in shared memory: fewer lanes meet in a bank
  // So many of a number's highest bits leave one cut at most to compare it with; 0: compare it with all of them.
  std::int32_t bucket_bits;
  float low, high;
  float later_cuts[kFewIntervals];  // infinite beyond the last one

  QCORE_INLINE std::int32_t buckets_at() const {
    const std::int32_t bytes = (entries << copies_shift) * (place == TablePlace::halves ? 4 : 8);
    return static_cast<std::int32_t>(sizeof(float4)) * kFewRecords * kIntervalCopies + (bytes + 15) / 16 * 16;
  }
  QCORE_INLINE std::int32_t shared_bytes() const {
    if (place == TablePlace::memory) return 0;
    return buckets_at() + (bucket_bits ? 8 << bucket_bits : 0);
  }
};

// Returns DeviceTable::bucket_bits for these cuts.
inline std::int32_t bucket_bits_of(const float (&later_cuts)[kFewIntervals]) {
  // Bits of cuts; of 0, which -0 is no less than, those of -0, too.
  std::uint32_t cuts[kFewIntervals + 1];
  int count = 0;
  for (const float cut : later_cuts) {
    if (cut == numerics::bits_float(numerics::kInfinityBits)) break;
    cuts[count++] = numerics::float_bits(cut);
    if (cut == 0.0f) cuts[count++] = 1u << 31;
  }
  const auto separates = [&](int bits) {
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < i; ++j)
        if (cuts[i] >> (32 - bits) == cuts[j] >> (32 - bits)) return false;
    return true;
  };
  for (std::int32_t bits = kMinBucketBits; bits <= kMaxBucketBits; ++bits)
    if (separates(bits)) return bits;
  return 0;
}

// With up to 1 << `copies_shift` copies of each entry, 5 at most: one for each bank; `buckets`: with those, where cuts
// permit it.
inline DeviceTable device_table(const LutStorage& storage, int device, int copies_shift, bool buckets = false) {
  DeviceTable table{};
  const float* at = storage.on_device(device);
  const auto next = [&](std::int32_t count) {
    const float* begin = at;
    at += count;
    return begin;
  };
  const std::int32_t n = storage.intervals;
  table.view.cuts = next(n + 1);
  table.view.scales = next(n + 1);
  table.view.lengths = next(n + 1);
  table.view.firsts = reinterpret_cast<const std::int32_t*>(next(n + 1));
  table.view.values = next(storage.entries);
  table.view.deltas = next(storage.entries);
  table.view.intervals = n;
  table.entries = storage.entries;
  table.low = storage.cuts.front();
  table.high = storage.cuts.back();
  for (int i = 1; i <= kFewIntervals; ++i)
    table.later_cuts[i - 1] = i <= n ? storage.cuts[i] : numerics::bits_float(numerics::kInfinityBits);
  const bool few = n <= kFewIntervals && storage.entries <= kMaxSharedEntries;
  table.place = !few ? TablePlace::memory : storage.value_dtype == DType::f16 ? TablePlace::halves : TablePlace::floats;
  table.copies_shift = table.place == TablePlace::floats && copies_shift > 4 ? 4 : copies_shift;
  while (table.copies_shift > 0 && table.shared_bytes() > kMaxSharedBytes) --table.copies_shift;
  if (buckets && table.place == TablePlace::halves) table.bucket_bits = bucket_bits_of(table.later_cuts);
  return table;
}

struct alignas(16) TableInterval {
  float cut, scale, length;
  std::int32_t first;  // see behind()
};

// The index of an entry, without the bias of 2^23 that the bits of the float carry.
__device__ __forceinline__ std::int32_t behind(std::int32_t first) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(first) - numerics::kSmallIntBits);
}

// A value and the next one, fp16.
struct HalfEntry {
  std::uint32_t both;

  __device__ __forceinline__ static HalfEntry of(const DeviceTable& table, std::int32_t q) {
    const std::int32_t next = q + 1 < table.entries ? q + 1 : q;
    return {numerics::float_to_half(table.view.values[q]) |
            static_cast<std::uint32_t>(numerics::float_to_half(table.view.values[next])) << 16};
  }
  __device__ __forceinline__ void get(float& value, float& delta) const {
    value = numerics::half_to_float(static_cast<std::uint16_t>(both));
    delta = numerics::half_to_float(static_cast<std::uint16_t>(both >> 16)) - value;
  }
};

struct alignas(8) FloatEntry {
  float value, delta;

  __device__ __forceinline__ static FloatEntry of(const DeviceTable& table, std::int32_t q) {
    return {table.view.values[q], table.view.deltas[q]};
  }
  __device__ __forceinline__ void get(float& v, float& d) const { v = value, d = delta; }
};

// The numbers whose bits begin alike: the interval of the smallest one, and where the next one begins.
struct alignas(8) Bucket {
  float cut;
  std::int32_t interval;
};

// One lane's look-ups in shared memory; see lut_eval.h.
template <class Entry, bool kBuckets = false>
class SharedTable {
 public:
  using L = DeviceLanes;

  __device__ __forceinline__ SharedTable(const DeviceTable& table, const char* shared, int lane)
      : table_(table),
        intervals_(reinterpret_cast<const TableInterval*>(shared) + lane % kIntervalCopies),
        entries_(entries_in(shared) + (lane & ((1 << table.copies_shift) - 1))),
        copies_(1u << table.copies_shift),
        buckets_(reinterpret_cast<const Bucket*>(shared + table.buckets_at())),
        bucket_shift_(32 - table.bucket_bits) {}

  // By all threads of the block, of which this is `thread` of `threads`. Loads of different threads, and what needs
  // none, come in front of the copies.
  __device__ static void fill(const DeviceTable& table, char* shared, int thread, int threads) {
    auto* intervals = reinterpret_cast<TableInterval*>(shared);
    auto* entries = const_cast<Entry*>(entries_in(shared));
    Entry entry{};
    if (thread < table.entries) entry = Entry::of(table, thread);
#pragma unroll 1
    for (int at = threads - 1 - thread; at < kFewRecords * kIntervalCopies; at += threads) {
      const int i = at / kIntervalCopies;
      if (i <= table.view.intervals)
        intervals[at] = {table.view.cuts[i], table.view.scales[i], table.view.lengths[i], behind(table.view.firsts[i])};
    }
    if constexpr (kBuckets) {
      auto* buckets = reinterpret_cast<Bucket*>(shared + table.buckets_at());
#pragma unroll 1
      for (int at = thread; table.bucket_bits && at < 1 << table.bucket_bits; at += threads)
        buckets[at] = bucket_of(table, static_cast<std::uint32_t>(at));
    }
    const int copies = 1 << table.copies_shift;
#pragma unroll 1
    for (int q = thread; q < table.entries; q += threads) {
      if (q != thread) entry = Entry::of(table, q);
      // Neighboring threads begin with different copies, which lie in different banks.
#pragma unroll 4
      for (int i = 0; i < copies; ++i) entries[(q << table.copies_shift) + ((q + i) & (copies - 1))] = entry;
    }
  }

  __device__ __forceinline__ float low() const { return table_.low; }
  __device__ __forceinline__ float high() const { return table_.high; }
  __device__ __forceinline__ std::int32_t interval(float x) const {
    if constexpr (kBuckets) {
      const Bucket bucket = buckets_[numerics::float_bits(x) >> bucket_shift_];
      return bucket.interval + (x >= bucket.cut ? 1 : 0);
    } else {
      return interval_of(table_, x);
    }
  }
  __device__ __forceinline__ float position(float x, std::int32_t i) const {
    const TableInterval& at = intervals_[i * kIntervalCopies];
    return L::at_most((x - at.cut) * at.scale, at.length);
  }
  __device__ __forceinline__ void place(float p, std::int32_t i, std::int32_t& q, float& a) const {
    const std::uint32_t j = numerics::floor_to_small_int_bits(p);
    q = static_cast<std::int32_t>(static_cast<std::uint32_t>(intervals_[i * kIntervalCopies].first) + j);
    a = p - numerics::small_int_bits_to_float(j);
  }
  __device__ __forceinline__ void entry(std::int32_t q, float& value, float& delta) const {
    entries_[static_cast<std::uint32_t>(q) * copies_].get(value, delta);
  }

 private:
  __device__ __forceinline__ static const Entry* entries_in(const char* shared) {
    return reinterpret_cast<const Entry*>(shared + sizeof(TableInterval) * kFewRecords * kIntervalCopies);
  }
  __device__ __forceinline__ static std::int32_t interval_of(const DeviceTable& table, float x) {
    // Counted in floats, which add at twice the rate at which integers do.
    float i = 8388608.0f;
#pragma unroll
    for (int k = 0; k < kFewIntervals; ++k) i += x >= table.later_cuts[k] ? 1.0f : 0.0f;
    return static_cast<std::int32_t>(numerics::float_bits(i) - 0x4b000000u);
  }
  __device__ __forceinline__ static Bucket bucket_of(const DeviceTable& table, std::uint32_t index) {
    const std::uint32_t first = index << (32 - table.bucket_bits);
    const std::uint32_t smallest = first >> 31 ? first | ((1u << (32 - table.bucket_bits)) - 1) : first;
    const std::int32_t i = interval_of(table, numerics::bits_float(smallest));
    return {i < kFewIntervals ? table.later_cuts[i] : numerics::bits_float(numerics::kInfinityBits), i};
  }

  const DeviceTable& table_;
  const TableInterval* intervals_;
  const Entry* entries_;
  std::uint32_t copies_;
  const Bucket* buckets_;
  int bucket_shift_;
};

// Look-ups in the device's memory, of tables of any size.
class MemoryTable : public numerics::LutView {
 public:
  __device__ __forceinline__ explicit MemoryTable(const DeviceTable& table) : numerics::LutView(table.view) {}

  __device__ __forceinline__ std::int32_t interval(float x) const {
    std::int32_t i = 0, end = intervals + 1;  // cuts[i] <= x < cuts[end], where there is such an end
    while (end - i > 1) {
      const std::int32_t middle = (i + end) / 2;
      (x >= cuts[middle] ? i : end) = middle;
    }
    return i;
  }
};

// Called by all threads; the block synchronizes before the table is used. kBuckets: the table may have some.
template <bool kBuckets = false>
__device__ __forceinline__ void fill_table(const DeviceTable& table, char* shared, int thread, int threads) {
  if (table.place == TablePlace::halves) SharedTable<HalfEntry, kBuckets>::fill(table, shared, thread, threads);
  if (table.place == TablePlace::floats) SharedTable<FloatEntry>::fill(table, shared, thread, threads);
}

// Runs function(look-ups).
template <bool kBuckets = false, class Function>
__device__ __forceinline__ void with_table(const DeviceTable& table, const char* shared, int lane,
                                           const Function& function) {
  if constexpr (kBuckets) {
    if (table.place == TablePlace::halves && table.bucket_bits)
      return function(SharedTable<HalfEntry, true>(table, shared, lane));
  }
  if (table.place == TablePlace::halves)
    function(SharedTable<HalfEntry>(table, shared, lane));
  else if (table.place == TablePlace::floats)
    function(SharedTable<FloatEntry>(table, shared, lane));
  else
    function(MemoryTable(table));
}

}  // namespace qcore
