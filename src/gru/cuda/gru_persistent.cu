#include "gru/cuda/device_cell.cuh"
#include "gru/cuda/step_kernels.cuh"
#include "recurrent/cuda/persistent.cuh"

namespace qcore {

void run_gru_persistent(const DeviceLayer& layer, const GruSteps& a, const PersistentPlan& plan, cudaStream_t stream) {
  launch_persistent<GruDeviceCell>(layer, a, plan, stream);
}

}  // namespace qcore
