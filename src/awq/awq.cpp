#include "qcore/awq.h"

#include <algorithm>

#include "awq/dispatch.h"
#include "awq/pack.h"
#include "numerics/awq.h"
#include "qcore/linear.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

#if defined(QCORE_CUDA_BACKEND)
#include "awq/cuda/kernels.h"
#endif

namespace qcore {
namespace {

AwqWeight weight_of(const TensorView& qweight, const TensorView& scales, const TensorView& qzeros, void* stream) {
  AwqWeight weight;
  weight.k = qweight.shape[0];
  weight.n = scales.shape[1];
  weight.group_size = weight.k / scales.shape[0];
  weight.qweight = static_cast<const std::uint32_t*>(qweight.data);
  weight.scales = static_cast<const std::uint16_t*>(scales.data);
  weight.qzeros = static_cast<const std::uint32_t*>(qzeros.data);
  weight.qweight_row = qweight.strides[0];
  weight.qweight_column = qweight.strides[1];
  weight.scales_row = scales.strides[0];
  weight.scales_column = scales.strides[1];
  weight.qzeros_row = qzeros.strides[0];
  weight.qzeros_column = qzeros.strides[1];
  // A dimension of one word may have any stride.
  if (qweight.shape[1] == 1) weight.qweight_column = weight.qzeros_column = 1;
  weight.device = qweight.device;
  weight.stream = stream;
  return weight;
}

QuantizedTensor packed_in(const AwqWeight& weight, [[maybe_unused]] AwqStorage storage, const char* op) {
#if defined(QCORE_CUDA_BACKEND)
  if (weight.device.type == DeviceType::cuda) {
    auto packed = allocate_awq_weight(weight, storage);
    pack_awq_on_cuda(weight, *packed);
    return QuantizedTensor::from_packed(std::move(packed));
  }
#endif
  return QuantizedTensor::from_packed(pack_awq_on_cpu(weight, op));
}

}  // namespace

AwqDescriptor AwqDescriptor::create(const TensorView& qweight, const TensorView& scales, const TensorView& qzeros,
                                    const char* op) {
  check_dtype(op, "qweight", qweight, DType::i32);
  check_dtype(op, "scales", scales, DType::f16);
  check_dtype(op, "qzeros", qzeros, DType::i32);
  QCORE_CHECK_VALUE(qweight.rank == 2 && qweight.shape[0] > 0 && qweight.shape[1] > 0, op, ": qweight has shape ",
                    shape_string(qweight), ", expected [K, N/8] with both at least 1");
  const std::int64_t k = qweight.shape[0], words = qweight.shape[1], n = words * numerics::kAwqColumns;
  QCORE_CHECK_VALUE(scales.rank == 2 && scales.shape[1] == n, op, ": scales has shape ", shape_string(scales),
                    ", expected [K/g, N] with N = 8 * ", words, " = ", n, " of qweight ", shape_string(qweight));
  const std::int64_t groups = scales.shape[0];
  QCORE_CHECK_VALUE(groups > 0 && k % groups == 0, op, ": scales has shape ", shape_string(scales),
                    ", expected [K/g, N] with K/g a divisor of K = ", k);
  const std::int64_t expected[] = {groups, words};
  check_shape(op, "qzeros", qzeros, 2, expected);
  check_device(op, "scales", scales, qweight.device, "qweight");
  check_device(op, "qzeros", qzeros, qweight.device, "qweight");
  constexpr std::int64_t kMaxGroup = 0x7fffffff;
  QCORE_CHECK_VALUE(k / groups <= kMaxGroup, op, ": g = K / ", groups, " is ", k / groups, ", expected at most ",
                    kMaxGroup);
  AwqDescriptor made;
  made.op_ = op;
  made.qweight_ = qweight;
  made.scales_ = scales;
  made.qzeros_ = qzeros;
  return made;
}

void AwqDescriptor::dequantize(const TensorView& out, bool transpose, void* stream) const {
  const char* op = op_;
  check_dtype(op, "out", out, DType::f16);
  check_device(op, "out", out, device(), "qweight");
  const std::int64_t straight[] = {features(), columns()}, turned[] = {columns(), features()};
  check_shape(op, "out", out, 2, transpose ? turned : straight);
  check_output(op, "out", out);
  check_disjoint(op, "out", out, "qweight", qweight_);
  check_disjoint(op, "out", out, "scales", scales_);
  check_disjoint(op, "out", out, "qzeros", qzeros_);
  AwqProblem problem;
  problem.weight = weight_of(qweight_, scales_, qzeros_, stream);
  problem.out = static_cast<std::uint16_t*>(out.data);
  problem.device = device();
  problem.out_k = out.strides[transpose ? 1 : 0];
  problem.out_n = out.strides[transpose ? 0 : 1];
  awq_dispatch().run(problem);
}

QuantizedTensor AwqDescriptor::pack(void* stream) const {
  const AwqWeight weight = weight_of(qweight_, scales_, qzeros_, stream);
  const QuantizedTensor packed = packed_in(weight, AwqStorage::kept, op_);
#if defined(QCORE_CUDA_BACKEND)
  if (weight.device.type == DeviceType::cuda) wait_for_awq_pack(weight);
#endif
  return packed;
}

void AwqDescriptor::linear(const TensorView& x, const TensorView* bias, const TensorView& y, void* stream) const {
  const char* op = op_;
  check_floating(op, "x", x);
  QCORE_CHECK_VALUE(x.rank >= 1 && x.shape[x.rank - 1] == features(), op, ": x has shape ", shape_string(x),
                    ", expected [..., K] with K = ", features(), " of qweight ", shape_string(qweight_));
  check_device(op, "x", x, device(), "qweight");
  check_floating(op, "out", y);
  check_device(op, "out", y, device(), "qweight");
  std::int64_t expected[TensorView::kMaxRank];
  std::copy(x.shape, x.shape + x.rank, expected);
  expected[x.rank - 1] = columns();
  check_shape(op, "out", y, x.rank, expected);
  check_output(op, "out", y);
  check_disjoint(op, "out", y, "x", x);
  check_disjoint(op, "out", y, "qweight", qweight_);
  check_disjoint(op, "out", y, "scales", scales_);
  check_disjoint(op, "out", y, "qzeros", qzeros_);
  if (bias) {
    check_floating(op, "bias", *bias);
    check_device(op, "bias", *bias, device(), "qweight");
    check_shape(op, "bias", *bias, 1, expected + x.rank - 1);
    check_disjoint(op, "out", y, "bias", *bias);
  }
  if (y.size() == 0) return;

  const AwqWeight weight = weight_of(qweight_, scales_, qzeros_, stream);
  const std::int64_t m = y.size() / columns();
  if (device() != kCpu || m >= kAwqFewRows) {
    LinearOptions options;
    options.compute = ComputeMode::floating;
    options.stream = stream;
    return qcore::linear(x, packed_in(weight, AwqStorage::of_the_stream, op), bias, y, options);
  }
  AwqLinearProblem problem;
  problem.weight = weight;
  problem.m = m;
  problem.device = device();
  problem.x = x;
  problem.y = y;
  if (bias) problem.bias = *bias;
  awq_linear_dispatch().run(problem);
}

}  // namespace qcore
