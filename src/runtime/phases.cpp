#include "runtime/phases.h"

#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qcore {
namespace {

// A part takes some microseconds: longer waits mean that its thread has lost its core, perhaps to this one.
constexpr int kSpins = 4000;

}  // namespace

bool PhasedParallelFor::wait_for(std::int64_t done) {
  for (int spins = 0; done_.load(std::memory_order_acquire) < done; ++spins) {
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (spins >= kSpins) {
      std::this_thread::yield();
      continue;
    }
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  return true;
}

}  // namespace qcore
