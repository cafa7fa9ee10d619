#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "qcore/tensor_view.h"

// CUDA devices and their memory, in terms that need no CUDA header.
namespace qcore {

// Number of devices; 0 without a driver. Asked for once: the first call initializes the driver, so nothing that a
// program without CUDA work runs may call it.
int cuda_device_count();
inline bool cuda_available() { return cuda_device_count() > 0; }

// 75 for sm_75, 90 for sm_90.
int compute_capability(int index);
int multiprocessors(int index);
int most_shared_bytes(int index);  // of a thread block that asks

// Makes `index` the calling thread's device for the lifetime of the object.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_;
  bool changed_;
};

// Uninitialized, at least 256-byte aligned.
std::shared_ptr<void> cuda_allocate(int index, std::int64_t bytes);

// Uninitialized memory for work enqueued on `stream` until the last reference goes; see cuda_scratch.h.
std::shared_ptr<void> cuda_scratch(int index, std::int64_t bytes, void* stream);

// In any direction, between devices too. Waits for all earlier work of the device that it reads; work enqueued on any
// stream after it returns sees the bytes.
void cuda_copy(void* to, Device to_device, const void* from, Device from_device, std::int64_t bytes);

// Memory of the device with a copy of the CPU's bytes, on which `work(memory, stream)` has then been done, if given:
// any stream's work may use it afterwards. Allowed while a stream is being captured, and no part of what is captured.
std::shared_ptr<void> cuda_upload(int index, const void* from, std::int64_t bytes,
                                  const std::function<void(void* memory, void* stream)>& work = {});

}  // namespace qcore
