#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "formats/element.h"
#include "formats/packed_weight.h"
#include "linear/problem.h"
#include "qcore/qcore.h"
#include "random_numbers.h"
#include "runtime/cuda/cuda_device.h"

namespace qcore {

constexpr Device kCuda{DeviceType::cuda, 0};
// Devices of compute capability 8.0 and 7.5 that have attributes and run nothing.
constexpr Device kAmpere{DeviceType::cuda, 1}, kTuring{DeviceType::cuda, 2};

// A copy in the machine's device memory, fenced by AddressSanitizer.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.data(), host.size()) {}
  DeviceArray(const T* host, std::size_t count) : count_(count), memory_(cuda_allocate(0, count * sizeof(T))) {
    cuda_copy(memory_.get(), kCuda, host, kCpu, count * sizeof(T));
  }
  T* get() const { return static_cast<T*>(memory_.get()); }
  std::vector<T> host() const { return {get(), get() + count_}; }

 private:
  std::size_t count_;
  std::shared_ptr<void> memory_;
};

// The weight as QuantizedTensor::to(cuda) would make it.
inline std::shared_ptr<PackedWeight> on_device(const PackedWeight& weight) {
  auto moved = std::make_shared<PackedWeight>();
  moved->layout = weight.layout;
  moved->scheme = weight.scheme;
  moved->device = kCuda;
  moved->has_zero_points = weight.finds_zero_points();
  const std::int64_t count = weight.layout.parameter_count();
  const StorageLayout parts(weight.layout, sizeof(float), weight.offsets ? sizeof(float) : 0);
  auto memory = cuda_allocate(0, parts.bytes);
  const auto copy_parameters = [&](const BlockParameters& from, std::int64_t at) {
    std::vector<float> wide(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) wide[static_cast<std::size_t>(i)] = from[i];
    cuda_copy(static_cast<char*>(memory.get()) + at, kCuda, wide.data(), kCpu, count * sizeof(float));
  };
  cuda_copy(memory.get(), kCuda, weight.codes, kCpu, weight.layout.code_bytes());
  copy_parameters(weight.scales, parts.scales);
  if (weight.offsets) copy_parameters(weight.offsets, parts.offsets);
  moved->set_memory(memory, false, false);
  return moved;
}

// Blocks of every kind: ordinary, with an outlier, zero, constant, tiny.
inline std::vector<float> block_values(Random& random, std::int64_t rows, std::int64_t k, std::int64_t block_size) {
  std::vector<float> values(static_cast<std::size_t>(rows * k));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t begin = 0; begin < k; begin += block_size) {
      const int kind = random.below(12);
      const float constant = random.normal();
      for (std::int64_t i = begin; i < k && i < begin + block_size; ++i) {
        float value = random.normal();
        if (kind == 0) value = 0.0f;
        if (kind == 1) value = constant;
        if (kind == 2) value *= 1e-30f;
        if (kind == 3 && i == begin) value = 1e5f;
        if (kind == 4) value = std::fabs(value);
        values[static_cast<std::size_t>(row * k + i)] = value;
      }
    }
  return values;
}

// QuantizedTensor of random values [N, K].
inline QuantizedTensor random_weight(Random& random, std::int64_t n, std::int64_t k, std::int64_t block_size, int bits,
                                     Scheme scheme) {
  const std::vector<float> values = block_values(random, n, k, block_size);
  QuantizeOptions options;
  options.bits = bits;
  options.block_size = block_size;
  options.scheme = scheme;
  return QuantizedTensor::quantize(TensorView(values.data(), DType::f32, {n, k}), options);
}

// QuantizedTensor of 4-bit codes with zero points: offsets scale * (8 - z). Scales are of every kind that fp16 has.
inline QuantizedTensor weight_with_zero_points(Random& random, std::int64_t n, std::int64_t k,
                                               std::int64_t block_size) {
  const std::int64_t blocks = (k + block_size - 1) / block_size;
  std::vector<std::int8_t> codes(static_cast<std::size_t>(n * k));
  for (std::int8_t& code : codes) code = static_cast<std::int8_t>(random.below(16) - 8);
  std::vector<float> scales(static_cast<std::size_t>(n * blocks)), offsets(scales.size());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const int kind = random.below(12), bits = kind == 0 ? 0 : kind == 1 ? 1 : 0x1c00 + random.below(0x800);
    scales[i] = numerics::half_to_float(static_cast<std::uint16_t>(bits | random.below(2) << 15));
    offsets[i] = scales[i] * static_cast<float>(8 - random.below(16));
  }
  const TensorView offsets_view(offsets.data(), DType::f32, {n, blocks});
  return QuantizedTensor::from_parts(TensorView(codes.data(), DType::i8, {n, k}),
                                     TensorView(scales.data(), DType::f32, {n, blocks}), &offsets_view, 4, block_size);
}

}  // namespace qcore
