#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/row/row_kernel.cuh"

namespace qcore {

bool run_gru_row(const DeviceLayer& layer, const GruSteps& a, int device, cudaStream_t stream) {
  return launch_row<GruDeviceCell>(layer, a, device, stream);
}

}  // namespace qcore
