#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "qcore/export.h"

namespace qcore {

enum class DType : std::uint8_t { f32, f16, bf16, i8, u8, i32, i16, i64 };

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  friend bool operator==(Device a, Device b) { return a.type == b.type && a.index == b.index; }
  friend bool operator!=(Device a, Device b) { return !(a == b); }
};

constexpr Device kCpu{};

// A non-owning description of a dense strided array. Strides are in elements and may be zero or
// negative for inputs.
struct TensorView {
  static constexpr int kMaxRank = 8;

  void* data = nullptr;
  DType dtype = DType::f32;
  bool read_only = false;
  Device device;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};

  TensorView() = default;

  // A C-contiguous array. The view of a const pointer is read-only.
  QCORE_API TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = kCpu);
  QCORE_API TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = kCpu);

  QCORE_API std::int64_t size() const;  // number of elements
  QCORE_API bool is_contiguous() const;
};

QCORE_API std::int64_t item_size(DType dtype);               // bytes
QCORE_API const char* name(DType dtype);                     // "float32", "bfloat16", "int8", ...
QCORE_API std::string name(Device device);                   // "cpu", "cuda:0"
QCORE_API std::string shape_string(const TensorView& view);  // "[3, 64]"

}  // namespace qcore
