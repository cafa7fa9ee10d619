#include "runtime/cuda/cuda_scratch.h"

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
  // Memory that a synchronization may leave in the pool. Operators bound their scratch memory to less; see
  // linear/cuda/scratch_bounds.h.
  std::uint64_t keep = std::uint64_t{1} << 30;
  QCORE_CHECK_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  return pool;
}

// Pools live as long as the process: at exit the driver may be gone before static objects are.
cudaMemPool_t pool_of(int device) {
  static std::mutex mutex;
  static auto* pools = new std::vector<cudaMemPool_t>;
  std::lock_guard<std::mutex> lock(mutex);
  if (static_cast<int>(pools->size()) <= device) pools->resize(device + 1, nullptr);
  cudaMemPool_t& pool = (*pools)[device];
  if (!pool) pool = create_pool(device);
  return pool;
}

}  // namespace

CudaScratch::CudaScratch(const ScratchPlan& plan, int device, cudaStream_t stream) : stream_(stream) {
  if (plan.bytes() == 0) return;
  void* memory = nullptr;
  QCORE_CHECK_CUDA(cudaMallocFromPoolAsync(&memory, static_cast<std::size_t>(plan.bytes()), pool_of(device), stream));
  memory_ = static_cast<char*>(memory);
}

CudaScratch::~CudaScratch() {
  if (memory_ && cudaFreeAsync(memory_, stream_) != cudaSuccess) cudaGetLastError();
}

std::shared_ptr<void> cuda_scratch(int index, std::int64_t bytes, void* stream) {
  ScratchPlan plan;
  const auto slot = plan.add<char>(bytes);
  const auto owner = std::make_shared<CudaScratch>(plan, index, static_cast<cudaStream_t>(stream));
  return {owner, (*owner)[slot]};
}

}  // namespace qcore
