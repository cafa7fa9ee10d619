#pragma once

#include <cstdint>
#include <memory>

#include "qcore/tensor_view.h"

// Memory of devices. Without the CUDA backend, anything but the CPU throws CudaError.
namespace qcore {

// Uninitialized memory of the device, freed with the last reference.
std::shared_ptr<void> allocate_on(Device device, std::int64_t bytes);

// Uninitialized memory for work on the device, on `stream` where it has such, until the last reference goes.
std::shared_ptr<void> scratch_on(Device device, std::int64_t bytes, void* stream);

// Blocks until the bytes have arrived.
void copy_between(void* to, Device to_device, const void* from, Device from_device, std::int64_t bytes);

}  // namespace qcore
