#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lut/table_arrays.h"
#include "qcore/lut.h"

namespace qcore {

// A table as kernels want it.
struct LutStorage {
  LutReduction reduction = LutReduction::none;
  DType value_dtype = DType::f16;
  std::int32_t intervals = 0, segments = 0, entries = 0;

  std::vector<float> cuts, scales, lengths;  // [intervals + 1], as firsts; see numerics::LutView
  std::vector<std::int32_t> firsts;
  std::vector<float> values, deltas;        // [entries]
  std::unique_ptr<LutRegisters> registers;  // where the table fits them

  LutArrays arrays() const {
    const numerics::LutView view{cuts.data(),   scales.data(), lengths.data(), firsts.data(),
                                 values.data(), deltas.data(), intervals};
    return {view, static_cast<numerics::LutReduction>(reduction), registers.get()};
  }

  // Results of all 65,536 fp16 or bf16 numbers, in their order as unsigned bits: for such x and y one load each. Null
  // until `count` elements, of this and of earlier calls, are as many as that; then `fill` makes them.
  const std::uint16_t* lut16(bool bfloat, std::int64_t count, const std::function<void(std::uint16_t*)>& fill) const;

  // All of the above but `registers` in one piece of the device's memory, made at its first use: floats in the order
  // cuts, scales, lengths, firsts (as int32), values, deltas.
  const float* on_device(int index) const;
  std::int32_t device_floats() const { return 4 * (intervals + 1) + 2 * entries; }

  // The table's result for each of the 65,536 numbers of a 16-bit dtype, likewise: what work(memory, stream) makes, in
  // place, of `numbers` [65536].
  const std::uint16_t* lut16_on_device(int index, DType dtype, const std::vector<std::uint16_t>& (*numbers)(),
                                       const std::function<void(void* memory, void* stream)>& work) const;

 private:
  struct Copy {
    int device;
    std::shared_ptr<void> memory, f16_map, bf16_map;
  };
  Copy& copy_on(int index) const;
  struct Results {
    std::once_flag made;
    std::atomic<bool> ready{false};
    std::atomic<std::int64_t> asked{0};
    std::vector<std::uint16_t> of;
  };
  mutable Results results_[2];
  mutable std::mutex mutex_;
  mutable std::vector<Copy> copies_;
};

}  // namespace qcore
