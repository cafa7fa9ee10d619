#include "lstm/cuda/device_cell.cuh"
#include "lstm/cuda/step_kernels.cuh"
#include "recurrent/cuda/persistent.cuh"

namespace qcore {

void run_lstm_persistent(const DeviceLayer& layer, const LstmSteps& a, const PersistentPlan& plan,
                         cudaStream_t stream) {
  launch_persistent<LstmDeviceCell>(layer, a, plan, stream);
}

}  // namespace qcore
