#include <algorithm>

#include "decoder/cpu/row_access.h"
#include "decoder/dispatch.h"
#include "numerics/attention.h"
#include "numerics/rms_norm.h"
#include "numerics/rotary.h"
#include "runtime/memory.h"

// The decoder's operators but attention, element by element.
namespace qcore {
namespace {

using numerics::ScalarLanes;

float load_element(const ConstElements& x, std::int64_t i) {
  return load_float(x.data, x.dtype, x.offset + i * x.stride);
}
void store_element(const Elements& y, std::int64_t i, float value) {
  store_float(y.data, y.dtype, y.offset + i * y.stride, value);
}

float rounded(float value, DType dtype) {
  std::uint32_t memory = 0;
  store_float(&memory, dtype, 0, value);
  return load_float(&memory, dtype, 0);
}

float gate(float x, GateActivation activation) {
  switch (activation) {
    case GateActivation::gelu:
      return numerics::gate<ScalarLanes, numerics::kGateGelu>(x);
    case GateActivation::gelu_tanh:
      return numerics::gate<ScalarLanes, numerics::kGateGeluTanh>(x);
    case GateActivation::relu:
      return numerics::gate<ScalarLanes, numerics::kGateRelu>(x);
    case GateActivation::silu:
      break;
  }
  return numerics::gate<ScalarLanes, numerics::kGateSilu>(x);
}

}  // namespace

void run_norm_reference(const NormProblem& p) {
  Scratch scratch;
  float* row = scratch.take<float>(p.count);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    float sums[numerics::kNormSums] = {};
    for (std::int64_t i = 0; i < p.count; ++i) {
      row[i] = load_element(row_of(p.x, r), i);
      if (p.multiplier != 1.0f) row[i] *= p.multiplier;
      if (p.residual.data) {
        row[i] = rounded(row[i] + load_element(row_of(p.residual, r), i), p.residual.dtype);
        store_element(writable_row_of(p.residual, r), i, row[i]);
      }
      float& sum = sums[i % numerics::kNormSums];
      sum = numerics::fma_once(row[i], row[i], sum);
    }
    if (!p.y.data) continue;
    const float total = numerics::add_by_halves<numerics::kNormSums>(sums);
    const float factor = numerics::norm_factor(total, p.count, p.eps);
    for (std::int64_t i = 0; i < p.count; ++i) {
      float y = row[i];
      if (p.normalize) {
        y *= factor;
        if (p.round_normalized) y = rounded(y, p.y.dtype);
        if (p.weight.rank) {
          float weight = load_float(p.weight.data, p.weight.dtype, i * p.weight.strides[0]);
          if (p.offset != 0.0f) weight += p.offset;
          y *= weight;
        }
      }
      store_element(writable_row_of(p.y, r), i, y);
    }
  }
}

void run_rotary_reference(const RotaryProblem& p) {
  const std::int64_t size = p.x.shape[3], rotary = p.cos.shape[1];
  Scratch scratch;
  float* row = scratch.take<float>(size);
  for (std::int64_t b = 0; b < p.x.shape[0]; ++b)
    for (std::int64_t t = 0; t < p.x.shape[1]; ++t) {
      const std::int64_t position = load_index(p.positions, b, t);
      const auto angle = [&](const TensorView& table, std::int64_t i) {
        return static_cast<const float*>(table.data)[position * table.strides[0] + i * table.strides[1]];
      };
      for (std::int64_t head = 0; head < p.x.shape[2]; ++head) {
        for (std::int64_t i = 0; i < size; ++i) row[i] = load_element(head_of(p.x, b, t, head), i);
        const Elements y = writable_head_of(p.y, b, t, head);
        for (std::int64_t i = 0; i < rotary / 2; ++i) {
          const bool halves = p.layout == RotaryLayout::halves;
          const std::int64_t first = halves ? i : 2 * i, second = halves ? i + rotary / 2 : 2 * i + 1;
          const float x1 = row[first], x2 = row[second];
          store_element(y, first,
                        numerics::rotated_first<ScalarLanes>(x1, x2, angle(p.cos, first), angle(p.sin, first)));
          store_element(y, second,
                        numerics::rotated_second<ScalarLanes>(x1, x2, angle(p.cos, second), angle(p.sin, second)));
        }
        for (std::int64_t i = rotary; i < size; ++i) store_element(y, i, row[i]);
      }
    }
}

void run_gate_reference(const GateProblem& p) {
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.count; ++i) {
      const float x = load_element(row_of(p.x, r), i), up = load_element(row_of(p.x, r), p.count + i);
      store_element(writable_row_of(p.y, r), i, gate(x, p.activation) * up);
    }
}

void run_cap_reference(const CapProblem& p) {
  for (std::int64_t r = 0; r < p.rows; ++r)
    for (std::int64_t i = 0; i < p.count; ++i) {
      const float x = load_element(row_of(p.x, r), i);
      store_element(writable_row_of(p.y, r), i, numerics::attention_score<ScalarLanes>(x, p.multiplier, p.soft_cap));
    }
}

void run_cache_reference(const CacheProblem& p) {
  const std::int64_t size = p.keys.shape[3];
  const auto write = [&](const ConstElements& x, const TensorView& cache, const TensorView& scales, std::int64_t b,
                         std::int64_t head, std::int64_t position) {
    const Elements y{cache.data, cache.dtype,
                     b * cache.strides[0] + head * cache.strides[1] + position * cache.strides[2], 1};
    if (cache.dtype != DType::i8) {
      for (std::int64_t i = 0; i < size; ++i) store_element(y, i, load_element(x, i));
      return;
    }
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < size; ++i)
      largest = std::max(largest, numerics::float_bits(load_element(x, i)) & 0x7fffffffu);
    const float scale = numerics::cache_scale(numerics::bits_float(largest)), factor = numerics::cache_factor(scale);
    for (std::int64_t i = 0; i < size; ++i)
      static_cast<std::int8_t*>(cache.data)[y.offset + i] =
          static_cast<std::int8_t>(numerics::cache_code(load_element(x, i), factor));
    static_cast<float*>(scales.data)[b * scales.strides[0] + head * scales.strides[1] + position * scales.strides[2]] =
        scale;
  };
  for (std::int64_t b = 0; b < p.keys.shape[0]; ++b)
    for (std::int64_t t = 0; t < p.keys.shape[1]; ++t)
      for (std::int64_t head = 0; head < p.keys.shape[2]; ++head) {
        const std::int64_t position = load_index(p.past, b) + t;
        write(head_of(p.keys, b, t, head), p.cache.keys, p.cache.key_scales, b, head, position);
        write(head_of(p.values, b, t, head), p.cache.values, p.cache.value_scales, b, head, position);
      }
}

}  // namespace qcore
