#pragma once

#include <cstdint>
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

  std::vector<float> cuts, scales, lengths, values, deltas;
  std::vector<std::int32_t> firsts;
  std::unique_ptr<LutRegisters> registers;  // where the table fits them

  LutArrays arrays() const;

  // All of the above but `registers` in one piece of the device's memory, made at its first use: floats in the order
  // cuts, scales, lengths, firsts (as int32), values, deltas.
  const float* on_device(int index) const;
  std::int32_t device_floats() const { return 1 + 4 * intervals + 2 * entries; }

 private:
  struct Copy {
    int device;
    std::shared_ptr<void> memory;
  };
  mutable std::mutex mutex_;
  mutable std::vector<Copy> copies_;
};

}  // namespace qcore
