#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/step.cuh"

namespace qcore {

void run_gru_step(const DeviceLayer& layer, const GruSteps& a, std::int64_t step, cudaStream_t stream) {
  launch_step<GruDeviceCell>(layer, a, step, stream);
}

}  // namespace qcore
