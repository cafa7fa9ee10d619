#include "lstm/cuda/device_cell.cuh"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/row/row_kernel.cuh"

namespace qcore {

bool run_lstm_row(const DeviceLayer& layer, const LstmSteps& a, int device, cudaStream_t stream) {
  return launch_row<LstmDeviceCell>(layer, a, device, stream);
}

}  // namespace qcore
