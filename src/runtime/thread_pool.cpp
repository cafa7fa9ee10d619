#include "runtime/thread_pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "qcore/kernels.h"
#include "runtime/check.h"

namespace qcore {
namespace {

constexpr int kMaxThreads = 1024;
// How long idle workers spin before sleeping. Longer, they would keep CPUs from a framework's threads that work between
// two calls.
constexpr int kSpinMicroseconds = 50, kMaxSpinMicroseconds = 1000000;
// Workers keep off their caller's CPU only where at most so many are available.
[[maybe_unused]] constexpr int kFewCpus = 16;

int integer_variable(const char* name, int otherwise, int lowest, int highest) {
  const char* value = std::getenv(name);
  if (!value || !*value) return otherwise;
  char* end = nullptr;
  const long n = std::strtol(value, &end, 10);
  QCORE_CHECK_VALUE(*end == 0 && n >= lowest && n <= highest, "environment variable ", name, " is '", value,
                    "', expected an integer from ", lowest, " to ", highest);
  return static_cast<int>(n);
}

std::chrono::microseconds spin_time() {
  static const std::chrono::microseconds time{
      integer_variable("QCORE_SPIN_US", kSpinMicroseconds, 0, kMaxSpinMicroseconds)};
  return time;
}

// The number that was asked of this library; 0 for none.
int asked_threads() {
  spin_time();  // a bad value is reported together with a bad number of threads
  return integer_variable("QCORE_NUM_THREADS", 0, 1, kMaxThreads);
}

std::atomic<int>& thread_count() {
  static std::atomic<int> count{asked_threads()};
  return count;
}

// OMP_NUM_THREADS is other libraries' variable: a list for nested regions, of which the first number counts, and what
// is no number is ignored as they ignore it.
int default_threads() {
  static const int threads = [] {
    const char* value = std::getenv("OMP_NUM_THREADS");
    const long n = value ? std::strtol(value, nullptr, 10) : 0;
    return n >= 1 && n <= kMaxThreads ? static_cast<int>(n) : available_cpus();
  }();
  return threads;
}

// How often a call's thread looks for an interrupt.
constexpr std::chrono::milliseconds kInterruptInterval{50};

thread_local void (*interrupt_check)() = nullptr;
thread_local std::chrono::steady_clock::time_point last_interrupt_check;

// After each task of the calling thread. Workers have no check.
void poll_interrupt() {
  if (!interrupt_check) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_interrupt_check < kInterruptInterval) return;
  last_interrupt_check = now;
  interrupt_check();
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();  // without the header of all intrinsics, which takes long to parse
#else
  std::this_thread::yield();
#endif
}

thread_local bool inside_task = false;

struct InsideTask {
  InsideTask() { inside_task = true; }
  ~InsideTask() { inside_task = false; }
};

// The tasks of a call, and the share of them that each of its threads has.
class Job {
 public:
  void begin(std::int64_t tasks, void (*task)(void*, std::int64_t), void* context, int threads) {
    task_ = task;
    context_ = context;
    threads_ = threads;
    while (static_cast<int>(shares_.size()) < threads) shares_.emplace_back();
    for (int i = 0; i < threads; ++i) {
      shares_[i].next.store(tasks * i / threads, std::memory_order_relaxed);
      shares_[i].end = tasks * (i + 1) / threads;
    }
  }

  int threads() const { return threads_; }

  // Does the tasks of a thread, then those that others have not begun.
  void drain(int own) {
    try {
      for (int i = 0; i < threads_; ++i) {
        Share& share = shares_[(own + i) % threads_];
        if (share.next.load(std::memory_order_relaxed) >= share.end) continue;
        for (std::int64_t task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
          task_(context_, task);
          poll_interrupt();
        }
      }
    } catch (...) {
      for (int i = 0; i < threads_; ++i) shares_[i].next.store(shares_[i].end, std::memory_order_relaxed);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  // Throws what a task has thrown, when all threads have done their part.
  void end() {
    if (!failed_.load()) return;
    failed_.store(false);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  // Neighboring tasks that one thread does before it helps others. Call after call it does the same ones, so that what
  // it wrote in one call lies in its own cache in the next.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  void (*task_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  int threads_ = 0;
  std::deque<Share> shares_;  // stays in place as it grows
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// `generation` is even while no job is posted. Posting a job publishes its fields and makes it odd; a worker joins by
// incrementing `inside` and re-checking the generation, and leaves by decrementing it. The poster ends a job by making
// the generation even and waiting until `inside` is zero, so that no worker still reads the job's fields.
class Pool {
 public:
  void run(std::int64_t tasks, void (*task)(void*, std::int64_t), void* context, int threads) {
    ensure_workers(threads - 1);
    leave_cpu_to_caller();
    job_.begin(tasks, task, context, threads);
    const std::uint64_t posted = generation_.fetch_add(1) + 1;
    if (sleepers_.load() > 0) {
      {
        std::lock_guard<std::mutex> lock(sleep_mutex_);
      }
      wake_.notify_all();
    }
    job_.drain(0);
    generation_.store(posted + 1);
    while (inside_.load() != 0) pause();
    job_.end();
  }

  ~Pool() {
    stop_.store(true);
    {
      std::lock_guard<std::mutex> lock(sleep_mutex_);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

 private:
  void ensure_workers(int wanted) {
    try {
      for (int own; (own = static_cast<int>(workers_.size()) + 1) <= wanted;)
        workers_.emplace_back([this, own] { work(own); });
    } catch (const std::system_error&) {
      // The system gives no more threads: the ones there are, at least the caller's, do the tasks.
    }
  }

  // Where workers and the caller have all CPUs between them, none is to share the caller's. A worker that wakes up
  // while another library's thread still spins on its CPU would be put there, and stay: work of 0.3 ms took 0.55, call
  // after call. Seen on Linux, and done there alone.
#if defined(__linux__)
  void leave_cpu_to_caller() {
    const int cpu = sched_getcpu();
    if (cpu == callers_cpu_ && workers_.size() == placed_) return;
    callers_cpu_ = cpu;
    placed_ = workers_.size();
    cpu_set_t allowed;
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    const int cpus = CPU_COUNT(&allowed);
    if (cpus < 2 || cpus > kFewCpus || static_cast<int>(placed_) < cpus - 1) return;
    CPU_CLR(static_cast<unsigned>(cpu), &allowed);
    for (auto& worker : workers_) pthread_setaffinity_np(worker.native_handle(), sizeof allowed, &allowed);
  }
#else
  void leave_cpu_to_caller() {}
#endif

  void work(int own);

  void join_job(std::uint64_t seen, int own) {
    inside_.fetch_add(1);
    if (generation_.load() == seen && own < job_.threads()) job_.drain(own);
    inside_.fetch_sub(1);
  }

  void wait_for_job(std::uint64_t done) {
    const auto until = std::chrono::steady_clock::now() + spin_;
    for (int i = 0;; ++i) {
      if (ready(done)) return;
      pause();
      if (i % 64 == 63 && std::chrono::steady_clock::now() >= until) break;
    }
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return ready(done); });
    sleepers_.fetch_sub(1);
  }

  bool ready(std::uint64_t done) const {
    const std::uint64_t now = generation_.load();
    return stop_.load() || (now % 2 == 1 && now != done);
  }

  const std::chrono::microseconds spin_ = spin_time();
  Job job_;
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
#if defined(__linux__)
  int callers_cpu_ = -1;    // of the last call
  std::size_t placed_ = 0;  // workers at that time
#endif
};

void Pool::work(int own) {
  inside_task = true;
  for (std::uint64_t done = 0;;) {
    wait_for_job(done);
    if (stop_.load()) return;
    const std::uint64_t seen = generation_.load();
    if (seen % 2 == 1) join_job(seen, own);
    done = seen;
  }
}

// The threads of another library's OpenMP, in the place of a pool (use_openmp_threads()).
struct OpenMp {
  std::atomic<GompParallel> parallel{nullptr};
  std::atomic<OmpGetThreadNum> thread_number{nullptr};
  std::atomic<OmpGetMaxThreads> max_threads{nullptr};

  void run(GompParallel region, std::int64_t tasks, void (*task)(void*, std::int64_t), void* context, int threads) {
    static Job job;  // calls take turns
    job.begin(tasks, task, context, threads);
    region(
        [](void* self) {
          const InsideTask scope;
          // Inside another region a region has one thread, whose number is that of the outer one.
          job.drain(static_cast<OpenMp*>(self)->thread_number.load(std::memory_order_relaxed)() % job.threads());
        },
        this, static_cast<unsigned>(threads), 0);
    job.end();
  }
};
OpenMp openmp;

// The pool and the lock that gives it to one caller at a time. A child of fork() has none of the parent's workers: it
// abandons the old pool (whose locks may be held) and starts afresh, without OpenMP, which would wait for its workers.
struct Shared {
  std::mutex use;
  Pool pool;
};
std::atomic<Shared*> shared{nullptr};

[[maybe_unused]] void abandon_in_child() {
  shared.store(nullptr);
  openmp.parallel.store(nullptr);
}

// While libqcore is loaded, not at the first use: a fork() in the middle of a first use would leave the child waiting
// for an initialization that no thread finishes. A bad variable is reported by the first call that asks for threads.
const bool prepared = [] {
#if !defined(_WIN32)
  pthread_atfork(nullptr, nullptr, abandon_in_child);
#endif
  try {
    thread_count();
  } catch (const Error&) {
  }
  return true;
}();

Shared* shared_pool() {
  Shared* current = shared.load(std::memory_order_acquire);
  if (current) return current;
  auto* fresh = new Shared;
  if (shared.compare_exchange_strong(current, fresh)) return fresh;
  delete fresh;
  return current;
}

}  // namespace

void parallel_for(std::int64_t tasks, void (*run)(void*, std::int64_t), void* context) {
  const int most = get_num_threads();
  const int threads = static_cast<int>(tasks < most ? tasks : most);
  if (threads > 1 && !inside_task) {
    Shared* own = shared_pool();
    if (std::unique_lock<std::mutex> lock(own->use, std::try_to_lock); lock) {
      if (const GompParallel region = openmp.parallel.load(std::memory_order_acquire)) {
        openmp.run(region, tasks, run, context, threads);
        return;
      }
      const InsideTask scope;
      own->pool.run(tasks, run, context, threads);
      return;
    }
  }
  for (std::int64_t task = 0; task < tasks; ++task) {
    run(context, task);
    poll_interrupt();
  }
}

InterruptCheck::InterruptCheck(void (*check)()) : previous_(interrupt_check) {
  interrupt_check = check;
  last_interrupt_check = std::chrono::steady_clock::now();
}

InterruptCheck::~InterruptCheck() { interrupt_check = previous_; }

void use_openmp_threads(GompParallel parallel, OmpGetThreadNum thread_number, OmpGetMaxThreads max_threads) {
  QCORE_CHECK_VALUE(!parallel == !thread_number,
                    "use_openmp_threads: one function is null and the other is not, expected both or none");
  openmp.thread_number.store(thread_number);
  openmp.max_threads.store(max_threads);
  openmp.parallel.store(parallel, std::memory_order_release);
}

bool uses_openmp_threads() { return openmp.parallel.load() != nullptr; }

int get_num_threads() {
  if (const int asked = thread_count().load(std::memory_order_relaxed)) return asked;
  if (const OmpGetMaxThreads max_threads = openmp.max_threads.load(std::memory_order_relaxed)) {
    static const int cpus = available_cpus();
    const int n = max_threads();
    return n < 1 ? 1 : n < cpus ? n : cpus;
  }
  return default_threads();
}

void set_num_threads(int n) {
  QCORE_CHECK_VALUE(n >= 1 && n <= kMaxThreads, "set_num_threads: n is ", n, ", expected 1 to ", kMaxThreads);
  thread_count().store(n);
}

}  // namespace qcore
