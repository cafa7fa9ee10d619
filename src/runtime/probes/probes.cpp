#include "qcore/probes.h"

#include <atomic>
#include <cstring>

#include "qcore/kernels.h"
#include "runtime/check.h"
#include "runtime/cpu_features.h"
#include "runtime/probes/probe_kernels.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

// More tasks than threads, so that a thread that was held up leaves its share to the others.
constexpr std::int64_t kTasksPerThread = 8;

std::uint64_t read_words(const char* data, std::int64_t bytes) {
  std::uint64_t sum = 0;
  for (std::int64_t offset = 0; offset < bytes; offset += 8) {
    std::uint64_t word;
    std::memcpy(&word, data + offset, 8);
    sum ^= word;
  }
  return sum;
}

const ProbeKernels& kernels_in_use() {
  static const ProbeKernels baseline = {{read_words, read_words, read_words, read_words}, nullptr, 0, nullptr, 0};
#if defined(QCORE_X86_KERNELS)
  const CpuFeatures& features = cpu_features_in_use();
  if (features.avx512vnni) return kProbesAvx512Vnni;
  if (features.avxvnni) return kProbesAvxVnni;
  if (features.avx2) return kProbesAvx2;
#elif defined(QCORE_ARM_KERNELS)
  const CpuFeatures& features = cpu_features_in_use();
  if (features.dotprod) return kProbesNeonDotprod;
  if (features.neon) return kProbesNeon;
#endif
  return baseline;
}

std::int64_t multiply(const char* name, void (*kernel)(std::int64_t), std::int64_t operations, std::int64_t rounds) {
  QCORE_CHECK_VALUE(rounds >= 1, name, ": rounds is ", rounds, ", expected at least 1");
  if (!kernel) return 0;
  const std::int64_t tasks = kTasksPerThread * get_num_threads();
  parallel_for(tasks, [&](std::int64_t) { kernel(rounds); });
  return tasks * rounds * operations;
}

}  // namespace

std::uint64_t probe_read(const void* data, std::int64_t bytes, int streams) {
  QCORE_CHECK_VALUE(bytes > 0 && bytes % kProbeReadUnit == 0, "probe_read: bytes is ", bytes,
                    ", expected a positive multiple of ", kProbeReadUnit);
  QCORE_CHECK_VALUE(streams == 1 || streams == 2 || streams == 4 || streams == 8, "probe_read: streams is ", streams,
                    ", expected 1, 2, 4 or 8");
  const auto read = kernels_in_use().read[streams == 1 ? 0 : streams == 2 ? 1 : streams == 4 ? 2 : 3];
  std::atomic<std::uint64_t> sum{0};
  parallel_for(bytes / kProbeReadUnit, [&](std::int64_t task) {
    const std::uint64_t part = read(static_cast<const char*>(data) + task * kProbeReadUnit, kProbeReadUnit);
    sum.fetch_xor(part, std::memory_order_relaxed);
  });
  return sum.load();
}

std::int64_t probe_int8_dots(std::int64_t rounds) {
  const ProbeKernels& kernels = kernels_in_use();
  return multiply("probe_int8_dots", kernels.int8_dots, kernels.int8_operations, rounds);
}

std::int64_t probe_float_fmas(std::int64_t rounds) {
  const ProbeKernels& kernels = kernels_in_use();
  return multiply("probe_float_fmas", kernels.float_fmas, kernels.float_operations, rounds);
}

}  // namespace qcore
