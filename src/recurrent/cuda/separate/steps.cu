#include "recurrent/cuda/input_product.cuh"
#include "recurrent/cuda/separate/steps.cuh"
#include "runtime/memory.h"

namespace qcore {

void run_separate_step(const DeviceLayer& layer, const RecurrentSteps& a, cudaStream_t stream,
                       const std::function<void(int half)>& run_half) {
  const SeparateStep& s = a.separate;
  multiply_inputs(a, {a.arrays.r, layer.rh, layer.state_gates, layer.weight_planes, a.channels, s.rh},
                  {a.state, layer.state_planes, a.batch, a.rows, a.state_bytes}, stream);
  run_half(0);
  if (layer.second.features == 0) return;
  multiply_inputs(a, {a.arrays.second, s.product.range, 1, layer.weight_planes, s.outputs, s.results},
                  {s.inputs, s.product.planes, a.batch, a.rows, s.row_bytes}, stream);
  run_half(1);
}

LaunchShape separate_shape(const RecurrentSteps& a, std::int64_t outputs) {
  LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.batch * outputs, kSeparateThreads))), dim3(kSeparateThreads)};
  shape.overlap = a.overlap;
  return shape;
}

}  // namespace qcore
