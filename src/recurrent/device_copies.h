#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace qcore {

struct RecurrentDeviceArrays;  // cuda/device_layer.h

// One device's copy of a layer: pointers into one piece of its memory.
struct DeviceCopy {
  std::shared_ptr<void> memory;
  std::shared_ptr<const RecurrentDeviceArrays> arrays;
};

// A layer's copies on devices, each made at its first use. Safe to use from many threads.
class DeviceCopies {
 public:
  // `make()` returns the copy for the device.
  template <class Make>
  const RecurrentDeviceArrays& on(int index, const Make& make) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.device == index) return *entry.copy.arrays;
    entries_.push_back({index, make()});
    return *entries_.back().copy.arrays;
  }

 private:
  struct Entry {
    int device;
    DeviceCopy copy;
  };
  mutable std::mutex mutex_;
  mutable std::vector<Entry> entries_;
};

}  // namespace qcore
