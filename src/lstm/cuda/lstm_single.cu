#include "lstm/cuda/device_cell.cuh"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/single/single_step.cuh"

namespace qcore {

bool run_lstm_single_step(const DeviceLayer& layer, const LstmSteps& a, const PackPair& pair, int device,
                          cudaStream_t stream) {
  return launch_single_step<LstmDeviceCell>(layer, a, pair, device, stream);
}

}  // namespace qcore
