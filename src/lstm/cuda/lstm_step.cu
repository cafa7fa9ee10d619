#include "lstm/cuda/device_cell.cuh"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/step.cuh"

namespace qcore {

void run_lstm_step(const DeviceLayer& layer, const LstmSteps& a, std::int64_t step, cudaStream_t stream) {
  launch_step<LstmDeviceCell>(layer, a, step, stream);
}

}  // namespace qcore
