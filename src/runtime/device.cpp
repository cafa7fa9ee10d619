#include "runtime/device.h"

#include <cstring>

#include "qcore/kernels.h"
#include "runtime/check.h"
#include "runtime/memory.h"

#if defined(QCORE_CUDA_BACKEND)
#include "runtime/cuda/cuda_device.h"
#endif

namespace qcore {

#if !defined(QCORE_CUDA_BACKEND)
namespace {
[[noreturn]] void throw_no_backend(Device device) {
  throw CudaError(
      message("device ", name(device), ": this build of qcore has no CUDA backend; build it with QCORE_CUDA=on"));
}
}  // namespace

CudaInfo cuda_info() { return {false, 0, "this build of qcore has no CUDA backend", {}}; }
#endif

std::shared_ptr<void> allocate_on(Device device, std::int64_t bytes) {
  if (device.type == DeviceType::cpu) return allocate_aligned(bytes);
#if defined(QCORE_CUDA_BACKEND)
  return cuda_allocate(device.index, bytes);
#else
  throw_no_backend(device);
#endif
}

std::shared_ptr<void> scratch_on(Device device, std::int64_t bytes, [[maybe_unused]] void* stream) {
  if (device.type == DeviceType::cpu) return allocate_aligned(bytes);
#if defined(QCORE_CUDA_BACKEND)
  return cuda_scratch(device.index, bytes, stream);
#else
  throw_no_backend(device);
#endif
}

void copy_between(void* to, Device to_device, const void* from, Device from_device, std::int64_t bytes) {
  if (bytes == 0) return;
  if (to_device.type == DeviceType::cpu && from_device.type == DeviceType::cpu) {
    std::memcpy(to, from, bytes);
    return;
  }
#if defined(QCORE_CUDA_BACKEND)
  cuda_copy(to, to_device, from, from_device, bytes);
#else
  throw_no_backend(to_device.type == DeviceType::cpu ? from_device : to_device);
#endif
}

}  // namespace qcore
