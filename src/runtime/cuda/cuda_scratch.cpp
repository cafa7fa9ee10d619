#include "runtime/cuda/cuda_scratch.h"

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_check.h"
#include "runtime/cuda/cuda_device.h"

namespace qcore {
namespace {

cudaMemPool_t create_pool(int device) {
  RelaxedCapture relaxed;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  QCORE_CHECK_CUDA(cudaMemPoolCreate(&pool, &properties));
  // Memory that a synchronization may leave in the pool. Most operators bound their scratch memory to less, see
  // ScratchBounds in linear/cuda/kernels.h. Expanded weights, all experts of them together, and a decoder's activations
  // can take more, which then goes back to the driver.
  std::uint64_t keep = std::uint64_t{1} << 30;
  QCORE_CHECK_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  return pool;
}

// What one device needs. Pools live as long as the process: at exit the driver may be gone before static objects are.
struct DeviceScratch {
  explicit DeviceScratch(int device) : pool(create_pool(device)), graphs(pool) {}
  cudaMemPool_t pool;
  GraphMemory graphs;
};

DeviceScratch& scratch_of(int device) {
  static std::mutex mutex;
  static auto* devices = new std::vector<std::unique_ptr<DeviceScratch>>;
  std::lock_guard<std::mutex> lock(mutex);
  if (static_cast<int>(devices->size()) <= device) devices->resize(device + 1);
  auto& scratch = (*devices)[device];
  if (!scratch) scratch = std::make_unique<DeviceScratch>(device);
  return *scratch;
}

}  // namespace

CudaScratch::CudaScratch(const ScratchPlan& plan, int device, cudaStream_t stream) : device_(device), stream_(stream) {
  if (plan.bytes() == 0) return;
  DeviceScratch& scratch = scratch_of(device);
  buffer_ = scratch.graphs.take(plan.bytes(), stream);
  void* memory = buffer_ ? buffer_->memory : nullptr;
  if (!buffer_)
    QCORE_CHECK_CUDA(cudaMallocFromPoolAsync(&memory, static_cast<std::size_t>(plan.bytes()), scratch.pool, stream));
  memory_ = static_cast<char*>(memory);
}

CudaScratch::~CudaScratch() {
  if (buffer_)
    scratch_of(device_).graphs.give_back(*buffer_, stream_);
  else if (memory_ && cudaFreeAsync(memory_, stream_) != cudaSuccess)
    cudaGetLastError();
}

std::shared_ptr<void> cuda_scratch(int index, std::int64_t bytes, void* stream) {
  ScratchPlan plan;
  const auto slot = plan.add<char>(bytes);
  const auto owner = std::make_shared<CudaScratch>(plan, index, static_cast<cudaStream_t>(stream));
  return {owner, (*owner)[slot]};
}

}  // namespace qcore
