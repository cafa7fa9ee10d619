#include <algorithm>

#include "recurrent/code_access.h"
#include "recurrent/cuda/fixed_codes.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/memory.h"

namespace qcore {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 1 << 16;

struct Arguments {
  TensorView from, to;
  CodeFormat format;
  std::int64_t count;
};

__global__ void __launch_bounds__(kThreads) recurrent_codes_kernel(const __grid_constant__ Arguments a) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.count; i += threads) {
    std::int64_t rest = i, from = 0, to = 0;
#pragma unroll 1
    for (int axis = a.to.rank - 1; axis >= 0; --axis) {
      const std::int64_t outer = rest / a.to.shape[axis], at = rest - outer * a.to.shape[axis];
      from += at * a.from.strides[axis];
      to += at * a.to.strides[axis];
      rest = outer;
    }
    const std::int32_t code = a.from.data ? load_centered(a.from.data, a.from.dtype, from, a.format) : 0;
    store_centered(a.to.data, a.to.dtype, to, code, a.format);
  }
}

}  // namespace

void convert_fixed_cuda(const TensorView& from, const CodeFormat& format, const TensorView& to, void* stream) {
  const std::int64_t count = to.size();
  if (count == 0) return;
  DeviceGuard guard(to.device.index);
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(count, kThreads), kMaxBlocks));
  launch("recurrent_codes", recurrent_codes_kernel, {dim3(blocks), dim3(kThreads)}, static_cast<cudaStream_t>(stream),
         Arguments{from, to, format, count});
}

}  // namespace qcore
