#include <algorithm>
#include <cstring>

#include "formats/packed_weight.h"
#include "qcore/quantize.h"
#include "quantize/block_reader.h"
#include "quantize/dequantize.h"
#include "quantize/pack_weight.h"
#include "runtime/check.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

namespace qcore {
namespace {

template <class Visit>
void for_each_parameter(const PackedLayout& layout, Visit&& visit) {
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t p = 0; p < layout.blocks(); ++p) visit(row, p);
}

void check_codes(const TensorView& codes, const PackedLayout& layout, int bits) {
  const int lowest = -(1 << (bits - 1)), highest = (1 << (bits - 1)) - 1;
  for (std::int64_t row = 0; row < layout.n; ++row)
    for (std::int64_t k = 0; k < layout.k; ++k)
      for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
        const int code = static_cast<const std::int8_t*>(codes.data)[WeightRows{codes}.offset(row, k, tap)];
        QCORE_CHECK_VALUE(code >= lowest && code <= highest, "from_parts: codes holds ", code, " at row ", row, ", k ",
                          k, ", expected ", lowest, " to ", highest, " for bits=", bits);
      }
}

}  // namespace

QuantizedTensor::QuantizedTensor(std::shared_ptr<const PackedWeight> packed) : packed_(std::move(packed)) {}

QuantizedTensor QuantizedTensor::from_parts(const TensorView& codes, const TensorView& scales,
                                            const TensorView* offsets, int bits, std::int64_t block_size) {
  check_device("from_parts", "codes", codes, kCpu, "every part");
  check_dtype("from_parts", "codes", codes, DType::i8);
  auto packed = allocate_weight("from_parts", "codes", codes, bits, block_size,
                                offsets ? Scheme::asymmetric : Scheme::symmetric, are_half(scales, offsets));
  const PackedLayout& layout = packed->layout;
  if (bits == 4) check_codes(codes, layout, bits);
  check_parameter_arrays("from_parts", *packed, scales, offsets);

  PackedWriter writer(*packed);
  for_each_block(layout, [&](std::int64_t row, std::int64_t p, std::int64_t tap) {
    const std::int64_t length = layout.block_length(p), stride = codes.strides[1];
    const auto* from =
        static_cast<const std::int8_t*>(codes.data) + WeightRows{codes}.offset(row, layout.block_begin(p), tap);
    Scratch scratch;
    if (stride != 1) {
      std::int8_t* together = scratch.take<std::int8_t>(length);
      for (std::int64_t i = 0; i < length; ++i) together[i] = from[i * stride];
      from = together;
    }
    writer.set_block(row, p, tap, from, length);
  });
  set_parameters(*packed, scales, offsets);
  finish_weight(*packed);
  return QuantizedTensor(std::move(packed));
}

QuantizedTensor QuantizedTensor::from_packed(std::shared_ptr<PackedWeight> packed) {
  if (packed->device == kCpu) finish_weight(*packed);
  return QuantizedTensor(std::move(packed));
}

int QuantizedTensor::rank() const { return packed_->rank; }
std::int64_t QuantizedTensor::shape(int axis) const { return packed_->shape[axis]; }
std::int64_t QuantizedTensor::rows() const { return packed_->layout.n; }
std::int64_t QuantizedTensor::features() const { return packed_->layout.k; }
std::int64_t QuantizedTensor::taps() const { return packed_->layout.taps; }
std::int64_t QuantizedTensor::blocks() const { return packed_->layout.blocks(); }
int QuantizedTensor::bits() const { return packed_->encoded ? packed_->encoded->encoding.bits : packed_->layout.bits; }
std::int64_t QuantizedTensor::block_size() const { return packed_->layout.block_size; }
Scheme QuantizedTensor::scheme() const { return packed_->scheme; }
Device QuantizedTensor::device() const { return packed_->device; }
const WeightEncoding* QuantizedTensor::encoding() const {
  return packed_->encoded ? &packed_->encoded->encoding : nullptr;
}
DType QuantizedTensor::scale_dtype() const { return packed_->scales.half ? DType::f16 : DType::f32; }

DType QuantizedTensor::offset_dtype() const { return packed_->offsets.half ? DType::f16 : DType::f32; }

std::int64_t QuantizedTensor::nbytes() const {
  const PackedLayout& layout = packed_->layout;
  if (packed_->encoded) {
    std::int64_t total = 0;
    packed_->encoded->parts(layout, &total);
    return total;
  }
  const std::int64_t bytes = packed_->scales.item_size() + (packed_->offsets ? packed_->offsets.item_size() : 0);
  return layout.code_bytes() + layout.parameter_count() * bytes;
}

double QuantizedTensor::bits_per_weight() const {
  const PackedLayout& layout = packed_->layout;
  const double weights = static_cast<double>(layout.n) * static_cast<double>(layout.k * layout.taps);
  return weights > 0 ? 8.0 * static_cast<double>(nbytes()) / weights : 0.0;
}

void QuantizedTensor::codes(const TensorView& out) const {
  QCORE_CHECK_VALUE(device() == kCpu, "codes: the weight is on ", name(device()), ", expected cpu: call to() first");
  check_dtype("codes", "out", out, DType::i8);
  check_shape("codes", "out", out, rank(), packed_->shape);
  check_output("codes", "out", out);
  const PackedLayout& layout = packed_->layout;
  const BlockReader reader(*packed_);
  for_each_block(layout, [&](std::int64_t row, std::int64_t p, std::int64_t tap) {
    const std::int64_t length = layout.block_length(p), stride = out.strides[1];
    auto* to = static_cast<std::int8_t*>(out.data) + WeightRows{out}.offset(row, layout.block_begin(p), tap);
    if (stride == 1) return reader.read(row, p, tap, to);
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(length);
    reader.read(row, p, tap, codes);
    for (std::int64_t i = 0; i < length; ++i) to[i * stride] = codes[i];
  });
}

void QuantizedTensor::nibbles(const TensorView& out) const {
  QCORE_CHECK_VALUE(device() == kCpu, "nibbles: the weight is on ", name(device()), ", expected cpu: call to() first");
  QCORE_CHECK_VALUE(!encoding(), "nibbles: the weight is encoded, expected plain codes of 4 bits: call plain() first");
  QCORE_CHECK_VALUE(bits() == 4, "nibbles: the weight has ", bits(), " bits, expected 4");
  const PackedLayout& layout = packed_->layout;
  const std::int64_t columns = layout.k * layout.taps, bytes = ceil_div(columns, 2);
  const std::int64_t expected[] = {layout.n, bytes};
  check_dtype("nibbles", "out", out, DType::u8);
  check_shape("nibbles", "out", out, 2, expected);
  check_output("nibbles", "out", out);
  const BlockReader reader(*packed_);
  parallel_for(layout.n, [&](std::int64_t row) {
    Scratch scratch;
    std::int8_t* codes = scratch.take<std::int8_t>(columns);  // [K, taps]
    std::int8_t* block = scratch.take<std::int8_t>(layout.blocks() ? layout.block_length(0) : 0);
    for (std::int64_t p = 0; p < layout.blocks(); ++p)
      for (std::int64_t tap = 0; tap < layout.taps; ++tap) {
        std::int8_t* to = codes + layout.block_begin(p) * layout.taps + tap;
        if (layout.taps == 1) {
          reader.read(row, p, tap, to);
          continue;
        }
        reader.read(row, p, tap, block);
        for (std::int64_t i = 0; i < layout.block_length(p); ++i) to[i * layout.taps] = block[i];
      }
    auto* to = static_cast<std::uint8_t*>(out.data) + row * out.strides[0];
    if (out.strides[1] == 1) return pair_nibbles(codes, columns, to);
    std::uint8_t* pairs = scratch.take<std::uint8_t>(bytes);
    pair_nibbles(codes, columns, pairs);
    for (std::int64_t i = 0; i < bytes; ++i) to[i * out.strides[1]] = pairs[i];
  });
}

namespace {

template <class Value>
void copy_parameters(const char* op, const QuantizedTensor& weight, const TensorView& out, Value&& value) {
  QCORE_CHECK_VALUE(weight.device() == kCpu, op, ": the weight is on ", name(weight.device()),
                    ", expected cpu: call to() first");
  check_dtype(op, "out", out, DType::f32);
  const std::int64_t expected[] = {weight.rows(), weight.blocks()};
  check_shape(op, "out", out, 2, expected);
  check_output(op, "out", out);
  for_each_parameter(weight.packed().layout, [&](std::int64_t row, std::int64_t p) {
    static_cast<float*>(out.data)[row * out.strides[0] + p * out.strides[1]] = value(row, p);
  });
}

}  // namespace

void QuantizedTensor::scales(const TensorView& out) const {
  copy_parameters("scales", *this, out, [&](std::int64_t row, std::int64_t p) { return packed_->scale(row, p); });
}

void QuantizedTensor::offsets(const TensorView& out) const {
  copy_parameters("offsets", *this, out, [&](std::int64_t row, std::int64_t p) { return packed_->offset(row, p); });
}

void QuantizedTensor::dequantize(const TensorView& out) const {
  QCORE_CHECK_VALUE(device() == kCpu, "dequantize: the weight is on ", name(device()),
                    ", expected cpu: call to() first");
  check_floating("dequantize", "out", out);
  check_shape("dequantize", "out", out, rank(), packed_->shape);
  check_output("dequantize", "out", out);
  dequantize_dispatch().run({*packed_, out});
}

QuantizedTensor QuantizedTensor::to(Device target) const {
  if (target == device()) return *this;
  auto moved = std::make_shared<PackedWeight>();
  moved->layout = packed_->layout;
  moved->rank = packed_->rank;
  std::copy(packed_->shape, packed_->shape + packed_->rank, moved->shape);
  moved->scheme = packed_->scheme;
  moved->device = target;
  // Looked for once, for the kernels of devices.
  moved->has_zero_points = packed_->has_zero_points || (device() == kCpu && packed_->finds_zero_points());
  if (packed_->encoded) {
    const std::int64_t bytes = packed_->storage_bytes();
    auto copied = target == kCpu ? allocate_long_lived(bytes) : allocate_on(target, bytes);
    copy_between(copied.get(), target, packed_->memory.get(), device(), bytes);
    moved->set_encoded_memory(*encoding(), std::move(copied));
    return QuantizedTensor(std::move(moved));
  }
  // Kernels of a device read fp32 parameters.
  const bool widens = target.type != DeviceType::cpu;
  const bool half_scales = packed_->scales.half && !widens, half_offsets = packed_->offsets.half && !widens;
  const bool has_offsets = static_cast<bool>(packed_->offsets);
  const StorageLayout parts(packed_->layout, half_scales ? 2 : 4, !has_offsets ? 0 : half_offsets ? 2 : 4);
  auto memory = allocate_on(target, parts.bytes);
  moved->set_memory(memory, half_scales, half_offsets);
  const auto copy = [&](const void* to, const void* from, std::int64_t bytes) {
    copy_between(const_cast<void*>(to), target, from, device(), bytes);
  };
  const auto copy_parameters = [&](const BlockParameters& to, const BlockParameters& from) {
    const std::int64_t count = packed_->layout.parameter_count();
    if (to.half == from.half) return copy(to.data, from.data, count * to.item_size());
    auto wide = allocate_aligned(count * static_cast<std::int64_t>(sizeof(float)));
    for (std::int64_t i = 0; i < count; ++i) static_cast<float*>(wide.get())[i] = from[i];
    copy(to.data, wide.get(), count * static_cast<std::int64_t>(sizeof(float)));
  };
  copy(moved->codes, packed_->codes, packed_->layout.code_bytes());
  copy_parameters(moved->scales, packed_->scales);
  if (has_offsets) copy_parameters(moved->offsets, packed_->offsets);
  if (target == kCpu) finish_weight(*moved);
  return QuantizedTensor(std::move(moved));
}

bool QuantizedTensor::equal(const QuantizedTensor& other) const {
  const PackedWeight &a = *packed_, &b = *other.packed_;
  if (&a == &b) return true;
  if (a.rank != b.rank || !std::equal(a.shape, a.shape + a.rank, b.shape) || a.layout.bits != b.layout.bits ||
      a.layout.block_size != b.layout.block_size || a.scheme != b.scheme)
    return false;
  if (a.device != kCpu) return to(kCpu).equal(other);
  if (b.device != kCpu) return equal(other.to(kCpu));
  if (a.encoded || b.encoded)
    return a.encoded && b.encoded && a.encoded->encoding == b.encoded->encoding &&
           std::memcmp(a.memory.get(), b.memory.get(), static_cast<std::size_t>(a.storage_bytes())) == 0;
  // Padding is written alike in every weight, and parameters that can be narrow are: the storage can be compared whole.
  const auto same = [&](const BlockParameters& x, const BlockParameters& y) {
    return x.half == y.half && std::memcmp(x.data, y.data, a.layout.parameter_count() * x.item_size()) == 0;
  };
  return std::memcmp(a.codes, b.codes, a.layout.code_bytes()) == 0 && same(a.scales, b.scales) &&
         (!a.offsets || same(a.offsets, b.offsets));
}

}  // namespace qcore
