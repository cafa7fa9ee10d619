#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/single/single_step.cuh"

namespace qcore {

bool run_gru_single_step(const DeviceLayer& layer, const GruSteps& a, const PackPair& pair, int device,
                         cudaStream_t stream) {
  return launch_single_step<GruDeviceCell>(layer, a, pair, device, stream);
}

}  // namespace qcore
