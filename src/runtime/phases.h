#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/thread_pool.h"

namespace qcore {

// Work in phases, each of as many parts as there are threads, where a phase needs all of the one before: the steps of a
// recurrence. A thread does its own part of every phase, so that what that part reads stays in its core's caches, and
// those of threads that are late or not there at all. So it needs no more than one thread, whatever the pool gives.
class PhasedParallelFor {
 public:
  PhasedParallelFor(std::int64_t phases, int parts) : phases_(phases), parts_(parts), next_(parts) {}

  // run(phase, part) for all of them.
  template <class Run>
  void run(const Run& work) {
    parallel_for(parts_, [&](std::int64_t own) { take_part(static_cast<int>(own), work); });
  }

 private:
  struct alignas(64) Next {
    std::atomic<std::int64_t> phase{0};
  };

  template <class Run>
  void take_part(int own, const Run& work) {
    for (std::int64_t phase = done_.load() / parts_; phase < phases_; ++phase) {
      for (int i = 0; i < parts_; ++i) {
        const int part = (own + i) % parts_;
        std::int64_t expected = phase;
        if (next_[part].phase.load(std::memory_order_relaxed) != phase ||
            !next_[part].phase.compare_exchange_strong(expected, phase + 1))
          continue;
        run_part(phase, part, work);
      }
      if (!wait_for((phase + 1) * parts_)) return;
    }
  }

  template <class Run>
  void run_part(std::int64_t phase, int part, const Run& work) {
    try {
      work(phase, part);
    } catch (...) {
      failed_.store(true);
      throw;
    }
    done_.fetch_add(1);
  }

  // False if a part has failed, for which there is nothing to wait.
  bool wait_for(std::int64_t done);

  const std::int64_t phases_;
  const int parts_;
  std::vector<Next> next_;  // the next phase of each part that no thread has begun
  alignas(64) std::atomic<std::int64_t> done_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace qcore
