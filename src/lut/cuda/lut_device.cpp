// Compiled with the CUDA backend only.
#include <cstring>

#include "lut/lut_storage.h"
#include "runtime/cuda/cuda_device.h"

namespace qcore {

// With mutex_ held.
LutStorage::Copy& LutStorage::copy_on(int index) const {
  for (Copy& copy : copies_)
    if (copy.device == index) return copy;
  copies_.push_back({index, nullptr, nullptr, nullptr});
  return copies_.back();
}

const float* LutStorage::on_device(int index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<void>& memory = copy_on(index).memory;
  if (!memory) {
    std::vector<float> all(static_cast<std::size_t>(device_floats()));
    float* to = all.data();
    const auto append = [&](const auto& numbers) {
      static_assert(sizeof numbers[0] == sizeof(float));
      std::memcpy(to, numbers.data(), numbers.size() * sizeof(float));
      to += numbers.size();
    };
    append(cuts), append(scales), append(lengths), append(firsts), append(values), append(deltas);
    memory = cuda_upload(index, all.data(), static_cast<std::int64_t>(all.size() * sizeof(float)));
  }
  return static_cast<const float*>(memory.get());
}

const std::uint16_t* LutStorage::lut16_on_device(int index, DType dtype, const std::vector<std::uint16_t>& (*numbers)(),
                                                 const std::function<void(void* memory, void* stream)>& work) const {
  std::lock_guard<std::mutex> lock(mutex_);
  Copy& copy = copy_on(index);
  std::shared_ptr<void>& map = dtype == DType::f16 ? copy.f16_map : copy.bf16_map;
  if (!map)
    map =
        cuda_upload(index, numbers().data(), static_cast<std::int64_t>(numbers().size() * sizeof(std::uint16_t)), work);
  return static_cast<const std::uint16_t*>(map.get());
}

}  // namespace qcore
