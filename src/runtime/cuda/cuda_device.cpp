#include "runtime/cuda/cuda_device.h"

#include <atomic>
#include <cstring>
#include <string>

#include "qcore/kernels.h"
#include "runtime/check.h"
#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_check.h"

namespace qcore {

void throw_cuda_error(const char* expression, cudaError_t status) {
  const char* end = std::strchr(expression, '(');
  const std::string function = end ? std::string(expression, end) : std::string(expression);
  cudaGetLastError();
  throw CudaError(message(function, " failed: ", cudaGetErrorString(status), " (", static_cast<int>(status), ")"));
}

namespace {

struct DeviceCount {
  int count = 0;
  cudaError_t status;

  DeviceCount() : status(cudaGetDeviceCount(&count)) {
    if (status == cudaSuccess) return;
    count = 0;
    cudaGetLastError();
  }
};

const DeviceCount& device_count() {
  static const DeviceCount found;
  return found;
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  QCORE_CHECK_CUDA(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

// Caches attributes of devices that never change. Two threads that find one at the same time find the same value.
class AttributeCache {
 public:
  template <class Find>
  int get(int index, const Find& find) {
    const bool cached = index >= 0 && index < kCached;
    if (cached)
      if (const int known = values_[index].load(std::memory_order_relaxed)) return known;
    const int found = find();
    if (cached) values_[index].store(found, std::memory_order_relaxed);
    return found;
  }

 private:
  static constexpr int kCached = 64;
  std::atomic<int> values_[kCached] = {};
};

std::string why_no_device() {
  const cudaError_t status = device_count().status;
  return message("cudaGetDeviceCount: ", status == cudaSuccess ? "no device" : cudaGetErrorString(status));
}

void check_device(int index) {
  const int count = cuda_device_count();
  if (count == 0) throw CudaError(message("there is no CUDA device: ", why_no_device()));
  if (index < 0 || index >= count)
    throw CudaError(message("there is no device cuda:", index, ": this machine has ", count, ", the first is cuda:0"));
}

// Destructors report nothing; the error must not surface in a later call of the user's either.
void forget(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();
}

// Apart from all others: the default one is not usable while a stream is being captured.
class OwnStream {
 public:
  OwnStream() { QCORE_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { forget(cudaStreamDestroy(stream_)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

int cuda_device_count() { return device_count().count; }

int compute_capability(int index) {
  static AttributeCache cache;
  return cache.get(index, [&] {
    return 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
           attribute(cudaDevAttrComputeCapabilityMinor, index);
  });
}

int multiprocessors(int index) {
  static AttributeCache cache;
  return cache.get(index, [&] { return attribute(cudaDevAttrMultiProcessorCount, index); });
}

int most_shared_bytes(int index) {
  static AttributeCache cache;
  return cache.get(index, [&] { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index); });
}

CudaInfo cuda_info() {
  CudaInfo info{true, cuda_device_count(), "", {}};
  if (info.device_count == 0) info.reason = why_no_device();
  for (int index = 0; index < info.device_count; ++index) {
    cudaDeviceProp properties;
    QCORE_CHECK_CUDA(cudaGetDeviceProperties(&properties, index));
    info.devices.push_back(message(properties.name, ", sm_", properties.major, properties.minor));
  }
  return info;
}

DeviceGuard::DeviceGuard(int index) : previous_(0), changed_(false) {
  QCORE_CHECK_CUDA(cudaGetDevice(&previous_));
  if (previous_ == index) return;
  QCORE_CHECK_CUDA(cudaSetDevice(index));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) forget(cudaSetDevice(previous_));
}

std::shared_ptr<void> cuda_allocate(int index, std::int64_t bytes) {
  check_device(index);
  DeviceGuard guard(index);
  void* memory = nullptr;
  QCORE_CHECK_CUDA(cudaMalloc(&memory, static_cast<std::size_t>(bytes > 0 ? bytes : 1)));
  return std::shared_ptr<void>(memory, [index](void* pointer) {
    int previous = 0;
    forget(cudaGetDevice(&previous));
    forget(cudaSetDevice(index));
    forget(cudaFree(pointer));
    forget(cudaSetDevice(previous));
  });
}

void cuda_copy(void* to, Device to_device, const void* from, Device from_device, std::int64_t bytes) {
  if (bytes == 0) return;
  const bool to_cuda = to_device.type == DeviceType::cuda, from_cuda = from_device.type == DeviceType::cuda;
  const auto count = static_cast<std::size_t>(bytes);
  if (from_cuda) {
    // Streams that do not synchronize with the default one, on which the copy runs, may still write the bytes.
    DeviceGuard source(from_device.index);
    QCORE_CHECK_CUDA(cudaDeviceSynchronize());
  }
  DeviceGuard guard(to_cuda ? to_device.index : from_cuda ? from_device.index : 0);
  if (to_cuda && from_cuda && to_device.index != from_device.index)
    QCORE_CHECK_CUDA(cudaMemcpyPeer(to, to_device.index, from, from_device.index, count));
  else
    QCORE_CHECK_CUDA(cudaMemcpy(to, from, count, cudaMemcpyDefault));
  // Copies between devices, and small ones from pageable memory, may return before the bytes have arrived; a stream
  // that does not synchronize with the default one would not wait for them.
  QCORE_CHECK_CUDA(cudaStreamSynchronize(nullptr));
}

std::shared_ptr<void> cuda_upload(int index, const void* from, std::int64_t bytes,
                                  const std::function<void(void* memory, void* stream)>& work) {
  RelaxedCapture relaxed;
  auto memory = cuda_allocate(index, bytes);
  DeviceGuard guard(index);
  const OwnStream stream;
  QCORE_CHECK_CUDA(
      cudaMemcpyAsync(memory.get(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream.get()));
  if (work) work(memory.get(), stream.get());
  QCORE_CHECK_CUDA(cudaStreamSynchronize(stream.get()));
  return memory;
}

}  // namespace qcore
