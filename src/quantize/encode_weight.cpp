#include <algorithm>
#include <memory>
#include <vector>

#include "formats/element.h"
#include "qcore/quantize.h"
#include "quantize/dispatch.h"
#include "quantize/encoded_search.h"
#include "runtime/check.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/view_checks.h"

// Weights quantized into an encoding: codes of any width, parameters of any type.
namespace qcore {
namespace {

// Memory for EncodedParts, contiguous arrays.
class PartArrays {
 public:
  PartArrays(const WeightEncoding& encoding, std::int64_t n, std::int64_t k, std::int64_t blocks) {
    const std::int64_t supers = encoding.super_block ? ceil_div(blocks, encoding.super_block) : 0;
    parts_.codes = take(ParameterType::u8, n, k);
    parts_.scales = take(encoding.scales, n, blocks);
    if (encoding.offsets != ParameterType::none) {
      offsets_ = take(encoding.offsets, n, blocks);
      parts_.offsets = &offsets_;
    }
    if (is_integer(encoding.scales)) {
      super_scales_ = take(ParameterType::f16, n, supers);
      parts_.super_scales = &super_scales_;
    }
    if (is_integer(encoding.offsets)) {
      super_offsets_ = take(ParameterType::f16, n, supers);
      parts_.super_offsets = &super_offsets_;
    }
  }

  const EncodedParts& parts() const { return parts_; }

 private:
  TensorView take(ParameterType type, std::int64_t n, std::int64_t columns) {
    const DType dtype = array_dtype(type);
    memory_.push_back(allocate_long_lived(n * columns * item_size(dtype)));
    return TensorView(memory_.back().get(), dtype, {n, columns});
  }

  std::vector<std::shared_ptr<void>> memory_;
  TensorView offsets_, super_scales_, super_offsets_;
  EncodedParts parts_;
};

// Writes one number of a part, as its dtype has it.
void store_number(const TensorView& part, std::int64_t row, std::int64_t column, std::uint32_t number) {
  const std::int64_t at = row * part.shape[1] + column;
  switch (item_size(part.dtype)) {
    case 4:
      static_cast<std::uint32_t*>(part.data)[at] = number;
      break;
    case 2:
      static_cast<std::uint16_t*>(part.data)[at] = static_cast<std::uint16_t>(number);
      break;
    default:
      static_cast<std::uint8_t*>(part.data)[at] = static_cast<std::uint8_t>(number);
  }
}

// The values of blocks that are searched together, padded.
class EncodedReader {
 public:
  EncodedReader(const EncodeProblem& problem, std::int64_t longest, std::int64_t count)
      : problem_(problem),
        padded_(round_up(longest, kEncodedLanes)),
        values_(static_cast<std::size_t>(padded_ * count)),
        importances_(values_.size()),
        wide_(values_.size()),
        blocks_(static_cast<std::size_t>(count)) {}

  // Reads `count` blocks of a row, from block `first` on.
  EncodedBlock* read(std::int64_t row, std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = (first + i) * problem_.block_size;
      blocks_[static_cast<std::size_t>(i)] =
          read(row, begin, std::min(problem_.weight.shape[1] - begin, problem_.block_size), i * padded_);
    }
    return blocks_.data();
  }

 private:
  EncodedBlock read(std::int64_t row, std::int64_t begin, std::int64_t length, std::int64_t to) {
    float* values = values_.data() + to;
    float* importances = importances_.data() + to;
    double* wide = wide_.data() + to;
    const std::int64_t padded = round_up(length, kEncodedLanes);
    load(row, begin, length, values);
    load_importance(begin, length, importances);
    std::fill(values + length, values + padded, 0.0f);
    std::fill(importances + length, importances + padded, 0.0f);
    std::copy(values, values + padded, wide);
    EncodedBlock block;
    block.data = {values, importances, wide, padded, !problem_.importance && padded == length};
    block.lo = block.hi = values[0];
    for (std::int64_t j = 0; j < length; ++j) {
      const double importance = importances[j];
      block.lo = values[j] < block.lo ? values[j] : block.lo;
      block.hi = values[j] < block.hi ? block.hi : values[j];
      block.one += importance;
      block.value += importance * wide[j];
      block.square += importance * wide[j] * wide[j];
    }
    return block;
  }

  void load(std::int64_t row, std::int64_t begin, std::int64_t length, float* values) const {
    const TensorView& weight = problem_.weight;
    const std::int64_t at = row * weight.strides[0] + begin * weight.strides[1], stride = weight.strides[1];
    if (weight.dtype == DType::f32 && stride == 1) {
      std::copy_n(static_cast<const float*>(weight.data) + at, length, values);
      return;
    }
    for (std::int64_t j = 0; j < length; ++j) values[j] = load_float(weight.data, weight.dtype, at + j * stride);
  }

  void load_importance(std::int64_t begin, std::int64_t length, float* importances) const {
    const TensorView* given = problem_.importance;
    if (!given) {
      std::fill_n(importances, length, 1.0f);
      return;
    }
    for (std::int64_t j = 0; j < length; ++j)
      importances[j] = load_float(given->data, DType::f32, (begin + j) * given->strides[0]);
  }

  const EncodeProblem& problem_;
  std::int64_t padded_;
  std::vector<float> values_, importances_;
  std::vector<double> wide_;
  std::vector<EncodedBlock> blocks_;
};

// q [padded] is written to.
void write_block(const EncodeProblem& problem, const EncodingCodes& codes, const EncodedKernels& kernels,
                 const EncodedBlock& block, std::int64_t row, std::int64_t p, float* q) {
  const EncodedParts& parts = problem.parts;
  const StoredParameters& chosen = block.parameters;
  store_number(parts.scales, row, p, chosen.scale_number);
  if (parts.offsets) store_number(*parts.offsets, row, p, chosen.offset_number);
  const std::int64_t k = parts.codes.shape[1], begin = p * problem.block_size;
  const std::int64_t length = std::min(k - begin, problem.block_size);
  kernels.codes(codes.table(), {&block.data, chosen.scale, chosen.inverse, chosen.offset}, q);
  codes.store(q, length, static_cast<std::uint8_t*>(parts.codes.data) + row * k + begin);
}

}  // namespace

void run_encode(const EncodeProblem& problem, const EncodedKernels& kernels) {
  const WeightEncoding& encoding = problem.encoding;
  const std::int64_t n = problem.weight.shape[0], k = problem.weight.shape[1];
  const std::int64_t blocks = ceil_div(k, problem.block_size);
  // Blocks without super-parameters are searched together, too, because the kernels take many at once.
  constexpr std::int64_t kTogether = 256;  // values
  const std::int64_t wanted = encoding.super_block ? encoding.super_block : kTogether / problem.block_size;
  const std::int64_t together = std::min(std::max<std::int64_t>(wanted, 1), blocks);
  const EncodedSearch search(encoding, problem.method != Method::rtn, kernels);
  parallel_for(n, [&](std::int64_t row) {
    const std::int64_t longest = std::min(problem.block_size, k);
    EncodedReader reader(problem, longest, together);
    std::vector<float> q(static_cast<std::size_t>(round_up(longest, kEncodedLanes)));
    for (std::int64_t first = 0; first < blocks; first += together) {
      const std::int64_t count = std::min(together, blocks - first);
      EncodedBlock* here = reader.read(row, first, count);
      SuperParameters super;
      QCORE_CHECK_VALUE(search.run(here, count, super), problem.op,
                        ": the encoding cannot hold the scale or the offset of row ", row, ", block ", first,
                        count > 1 ? " or one after it" : "",
                        ", expected types of a larger range for such a weight, or a larger tensor_scale");
      const EncodedParts& parts = problem.parts;
      if (parts.super_scales) store_number(*parts.super_scales, row, first / together, super.scale);
      if (parts.super_offsets) store_number(*parts.super_offsets, row, first / together, super.offset);
      for (std::int64_t i = 0; i < count; ++i)
        write_block(problem, search.codes(), kernels, here[i], row, first + i, q.data());
    }
  });
}

QuantizedTensor encode_weight(const char* op, const TensorView& weight, const WeightEncoding& encoding,
                              std::int64_t block_size, Method method, const TensorView* importance) {
  check_floating(op, "weight", weight);
  check_device(op, "weight", weight, kCpu, "every weight to quantize");
  QCORE_CHECK_VALUE(weight.rank == 2, op, ": weight has shape ", shape_string(weight), ", expected [N, K] with ",
                    encoding.bits, " bits of an encoding");
  encoding.check(op);
  constexpr std::int64_t kMaxBlock = 0x7fffffff;
  QCORE_CHECK_VALUE(block_size >= 1 && block_size <= kMaxBlock, op, ": block_size is ", block_size,
                    ", expected an integer from 1 to ", kMaxBlock);
  check_finite(op, "weight", weight);
  check_importance(op, method, importance, weight.shape[1]);
  const PartArrays arrays(encoding, weight.shape[0], weight.shape[1], ceil_div(weight.shape[1], block_size));
  quantize_encoded_dispatch().run({op, weight, encoding, block_size, method, importance, arrays.parts()});
  return QuantizedTensor::from_encoded(encoding, arrays.parts(), block_size);
}

QuantizedTensor QuantizedTensor::quantize_encoded(const TensorView& weight, const WeightEncoding& encoding,
                                                  std::int64_t block_size, Method method,
                                                  const TensorView* importance) {
  return encode_weight("quantize_encoded", weight, encoding, block_size, method, importance);
}

}  // namespace qcore
