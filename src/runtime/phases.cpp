#include "runtime/phases.h"

#include <thread>

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
    __builtin_ia32_pause();  // without the header of all intrinsics, which takes long to parse
#endif
  }
  return true;
}

}  // namespace qcore
