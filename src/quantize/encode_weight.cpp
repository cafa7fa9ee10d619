#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "formats/element.h"
#include "qcore/quantize.h"
#include "quantize/encoded_search.h"
#include "quantize/problem.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

// Weights quantized into an encoding: codes of any width, parameters of any type.
namespace qcore {
namespace {

constexpr const char* kOp = "quantize_encoded";

// The arrays of EncodedParts, contiguous.
class PartArrays {
 public:
  PartArrays(const WeightEncoding& encoding, std::int64_t n, std::int64_t k, std::int64_t blocks)
      : codes(std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(n * k))),
        scales_(encoding.scales, n * blocks),
        offsets_(encoding.offsets, n * blocks),
        n_(n),
        k_(k),
        blocks_(blocks),
        supers_(encoding.super_block ? ceil_div(blocks, encoding.super_block) : 0),
        super_scales_(is_integer(encoding.scales) ? static_cast<std::size_t>(n * supers_) : 0),
        super_offsets_(is_integer(encoding.offsets) ? static_cast<std::size_t>(n * supers_) : 0) {}

  const std::unique_ptr<std::uint8_t[]> codes;  // [n, k]

  void set(std::int64_t row, std::int64_t p, const StoredParameters& parameters) {
    scales_.set(row * blocks_ + p, parameters.scale_number);
    offsets_.set(row * blocks_ + p, parameters.offset_number);
  }
  void set(std::int64_t row, std::int64_t i, const SuperParameters& super) {
    const auto at = static_cast<std::size_t>(row * supers_ + i);
    if (!super_scales_.empty()) super_scales_[at] = super.scale;
    if (!super_offsets_.empty()) super_offsets_[at] = super.offset;
  }

  QuantizedTensor weight(const WeightEncoding& encoding, std::int64_t block_size) {
    const TensorView offsets = offsets_.view(n_, blocks_);
    const TensorView super_scales(super_scales_.data(), DType::f16, {n_, supers_});
    const TensorView super_offsets(super_offsets_.data(), DType::f16, {n_, supers_});
    EncodedParts parts;
    parts.codes = TensorView(codes.get(), DType::u8, {n_, k_});
    parts.scales = scales_.view(n_, blocks_);
    if (encoding.offsets != ParameterType::none) parts.offsets = &offsets;
    if (is_integer(encoding.scales)) parts.super_scales = &super_scales;
    if (is_integer(encoding.offsets)) parts.super_offsets = &super_offsets;
    return QuantizedTensor::from_encoded(encoding, parts, block_size);
  }

 private:
  // One number for each block.
  class Numbers {
   public:
    Numbers(ParameterType type, std::int64_t count)
        : type_(type),
          size_(type == ParameterType::none ? 0 : std::max(1, parameter_bits(type) / 8)),
          data_(std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(count * size_))) {}

    void set(std::int64_t at, std::uint32_t number) {
      std::memcpy(data_.get() + at * size_, &number, static_cast<std::size_t>(size_));  // little-endian
    }
    TensorView view(std::int64_t n, std::int64_t blocks) const {
      const DType dtype = type_ == ParameterType::f32    ? DType::f32
                          : type_ == ParameterType::f16  ? DType::f16
                          : type_ == ParameterType::bf16 ? DType::bf16
                                                         : DType::u8;
      return TensorView(data_.get(), dtype, {n, blocks});
    }

   private:
    ParameterType type_;
    std::int64_t size_;
    std::unique_ptr<std::uint8_t[]> data_;
  };

  Numbers scales_, offsets_;
  std::int64_t n_, k_, blocks_, supers_;
  std::vector<std::uint16_t> super_scales_, super_offsets_;
};

// The values of a super-block's blocks, padded.
class SuperBlock {
 public:
  SuperBlock(const TensorView& weight, const TensorView* importance, std::int64_t block_size, std::int64_t count)
      : weight_(weight),
        importance_(importance),
        block_size_(block_size),
        padded_(round_up(block_size, EncodingCodes::kLanes)),
        values_(static_cast<std::size_t>(padded_ * count)),
        importances_(static_cast<std::size_t>(padded_ * count)),
        blocks_(static_cast<std::size_t>(count)) {}

  // Reads `count` blocks of a row, from block `first` on.
  EncodedBlock* read(std::int64_t row, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = (first + i) * block_size_, length = std::min(weight_.shape[1] - begin, block_size_);
      float* values = values_.data() + i * padded_;
      float* importances = importances_.data() + i * padded_;
      for (std::int64_t j = 0; j < padded_; ++j) {
        values[j] = importances[j] = 0.0f;
        if (j >= length) continue;
        values[j] =
            load_float(weight_.data, weight_.dtype, row * weight_.strides[0] + (begin + j) * weight_.strides[1]);
        importances[j] =
            importance_ ? load_float(importance_->data, DType::f32, (begin + j) * importance_->strides[0]) : 1.0f;
      }
      const auto [lo, hi] = std::minmax_element(values, values + length);
      blocks_[static_cast<std::size_t>(i)] = {values, importances, round_up(length, EncodingCodes::kLanes), *lo, *hi,
                                              {},     0.0};
    }
    return blocks_.data();
  }

 private:
  const TensorView& weight_;
  const TensorView* importance_;
  std::int64_t block_size_, padded_;
  std::vector<float> values_, importances_;
  std::vector<EncodedBlock> blocks_;
};

void write_codes(const EncodedBlock& block, const EncodingCodes& codes, std::int64_t length, std::uint8_t* out) {
  constexpr int kLanes = EncodingCodes::kLanes;
  for (std::int64_t first = 0; first < length; first += kLanes) {
    float q[kLanes];
    codes.nearest(block.values + first, block.parameters.inverse(), block.parameters.offset, q);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, length - first); ++i)
      out[first + i] = codes.stored(q[i]);
  }
}

}  // namespace

QuantizedTensor QuantizedTensor::quantize_encoded(const TensorView& weight, const WeightEncoding& encoding,
                                                  std::int64_t block_size, Method method,
                                                  const TensorView* importance) {
  check_floating(kOp, "weight", weight);
  check_device(kOp, "weight", weight, kCpu, "every weight to quantize");
  QCORE_CHECK_VALUE(weight.rank == 2, kOp, ": weight has shape ", shape_string(weight), ", expected [N, K]");
  encoding.check(kOp);
  constexpr std::int64_t kMaxBlock = 0x7fffffff;
  QCORE_CHECK_VALUE(block_size >= 1 && block_size <= kMaxBlock, kOp, ": block_size is ", block_size,
                    ", expected an integer from 1 to ", kMaxBlock);
  check_finite(kOp, "weight", weight);
  check_importance(kOp, method, importance, weight.shape[1]);

  const std::int64_t n = weight.shape[0], k = weight.shape[1], blocks = ceil_div(k, block_size);
  const std::int64_t together = std::max<std::int64_t>(encoding.super_block, 1);
  const EncodedSearch search(encoding, method != Method::rtn);
  PartArrays parts(encoding, n, k, blocks);
  parallel_for(n, [&](std::int64_t row) {
    SuperBlock super_block(weight, importance, std::min(block_size, k), std::min(together, blocks));
    for (std::int64_t first = 0; first < blocks; first += together) {
      const std::int64_t count = std::min(together, blocks - first);
      EncodedBlock* here = super_block.read(row, first, count);
      SuperParameters super;
      QCORE_CHECK_VALUE(search.run(here, count, super), kOp,
                        ": the encoding cannot hold the scale or the offset of row ", row, ", block ", first,
                        count > 1 ? " or one after it" : "",
                        ", expected types of a larger range for such a weight, or a larger tensor_scale");
      parts.set(row, first / together, super);
      for (std::int64_t p = first; p < first + count; ++p) {
        const EncodedBlock& block = here[p - first];
        parts.set(row, p, block.parameters);
        const std::int64_t begin = p * block_size;
        write_codes(block, search.codes(), std::min(k - begin, block_size), parts.codes.get() + row * k + begin);
      }
    }
  });
  return parts.weight(encoding, block_size);
}

}  // namespace qcore
