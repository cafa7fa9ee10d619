#include <gtest/gtest.h>
#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "qcore/error.h"
#include "qcore/kernels.h"
#include "runtime/cpu_features.h"
#include "runtime/thread_pool.h"

namespace qcore {
namespace {

class ThreadPool : public ::testing::Test {
 protected:
  void SetUp() override { set_num_threads(4); }
};

// Each task adds one to its own element, unsynchronized: what a kernel does to its output.
bool every_task_ran_once(std::int64_t tasks) {
  std::vector<int> runs(tasks);
  parallel_for(tasks, [&](std::int64_t task) { ++runs[task]; });
  for (int count : runs)
    if (count != 1) return false;
  return true;
}

TEST_F(ThreadPool, EveryTaskRunsOnce) {
  for (const std::int64_t tasks : {0, 1, 2, 3, 4, 5, 63, 1000, 100000})
    EXPECT_TRUE(every_task_ran_once(tasks)) << tasks;
}

TEST_F(ThreadPool, ManySmallJobs) {
  std::int64_t total = 0;
  for (int job = 0; job < 5000; ++job) {
    std::int64_t parts[3] = {};
    parallel_for(3, [&](std::int64_t task) { parts[task] = job + task; });
    total += parts[0] + parts[1] + parts[2];
  }
  EXPECT_EQ(total, 3 * (4999LL * 5000 / 2) + 5000 * 3);
}

TEST_F(ThreadPool, JobsAfterThePoolFellAsleep) {
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(every_task_ran_once(64));
  }
}

TEST_F(ThreadPool, NestedCallsRunInTheirTask) {
  std::vector<std::int64_t> sums(16);
  parallel_for(16, [&](std::int64_t outer) {
    const auto self = std::this_thread::get_id();
    std::int64_t sum = 0;
    parallel_for(100, [&](std::int64_t inner) { sum += std::this_thread::get_id() == self ? inner : -1; });
    sums[outer] = sum;
  });
  for (std::int64_t sum : sums) EXPECT_EQ(sum, 99 * 100 / 2);
}

TEST_F(ThreadPool, AnExceptionEndsTheCallAndThePoolGoesOn) {
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(parallel_for(64,
                              [&](std::int64_t task) {
                                if (task == round) throw std::runtime_error("task");
                              }),
                 std::runtime_error);
    std::atomic<int> ran{0};
    parallel_for(64, [&](std::int64_t) { ran.fetch_add(1); });
    ASSERT_EQ(ran.load(), 64);
  }
}

TEST_F(ThreadPool, ConcurrentCallers) {
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int job = 0; job < 300; ++job)
        if (!every_task_ran_once(17)) ++failures;
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(ThreadPool, NoMoreThreadsThanAskedFor) {
  for (const int threads : {1, 2, 4, 2, 7, 1}) {
    set_num_threads(threads);
    EXPECT_EQ(get_num_threads(), threads);
    std::vector<std::thread::id> ran_on(256);
    parallel_for(256, [&](std::int64_t task) {
      ran_on[task] = std::this_thread::get_id();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    const std::set<std::thread::id> distinct(ran_on.begin(), ran_on.end());
    EXPECT_LE(distinct.size(), static_cast<std::size_t>(threads));
  }
}

TEST_F(ThreadPool, AnotherThreadHelps) {
  const auto self = std::this_thread::get_id();
  bool helped = false;
  for (int attempt = 0; attempt < 100 && !helped; ++attempt) {
    std::vector<std::thread::id> ran_on(64);
    parallel_for(64, [&](std::int64_t task) {
      ran_on[task] = std::this_thread::get_id();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    });
    for (const auto& id : ran_on) helped = helped || id != self;
  }
  EXPECT_TRUE(helped);
}

// Replaces an OpenMP library: a region has as many threads as are asked for, but at most `most_threads`.
int most_threads = 0;
std::atomic<int> regions{0};
thread_local int thread_number = 0;

void parallel_region(void (*body)(void*), void* data, unsigned threads, unsigned) {
  ++regions;
  std::vector<std::thread> others;
  for (int i = 1; i < std::min(most_threads, static_cast<int>(threads)); ++i)
    others.emplace_back([=] {
      thread_number = i;
      body(data);
    });
  body(data);
  for (std::thread& other : others) other.join();
}

class OpenMpThreads : public ThreadPool {
 protected:
  void SetUp() override {
    ThreadPool::SetUp();
    most_threads = 4;
    regions = 0;
    use_openmp_threads(parallel_region, [] { return thread_number; });
  }
  void TearDown() override { use_openmp_threads(nullptr, nullptr); }
};

TEST_F(OpenMpThreads, EveryTaskRunsOnceOnAsManyThreadsAsThereAre) {
  EXPECT_TRUE(uses_openmp_threads());
  for (most_threads = 1; most_threads <= 4; ++most_threads)
    for (const std::int64_t tasks : {0, 1, 2, 3, 5, 63, 1000}) EXPECT_TRUE(every_task_ran_once(tasks)) << tasks;
  EXPECT_EQ(regions.load(), 4 * 5);  // none for one task or no task
  use_openmp_threads(nullptr, nullptr);
  EXPECT_FALSE(uses_openmp_threads());
  EXPECT_TRUE(every_task_ran_once(63));
  EXPECT_EQ(regions.load(), 4 * 5);
}

TEST_F(OpenMpThreads, AnExceptionDoesNotLeaveTheRegion) {
  for (int repeat = 0; repeat < 3; ++repeat)
    EXPECT_THROW(parallel_for(100,
                              [](std::int64_t task) {
                                if (task == 37) throw ValueError("task 37");
                              }),
                 ValueError);
  EXPECT_TRUE(every_task_ran_once(1000));
}

TEST_F(OpenMpThreads, NestedCallsStayInTheirTask) {
  std::vector<std::int64_t> sums(16);
  parallel_for(16, [&](std::int64_t outer) { parallel_for(100, [&](std::int64_t inner) { sums[outer] += inner; }); });
  for (const std::int64_t sum : sums) EXPECT_EQ(sum, 4950);
  EXPECT_EQ(regions.load(), 1);
}

#if !defined(_WIN32)
TEST_F(OpenMpThreads, AForkedChildHasThreadsOfItsOwn) {
  EXPECT_TRUE(every_task_ran_once(1000));
  const pid_t child = fork();
  if (child == 0) _exit(!uses_openmp_threads() && every_task_ran_once(1000) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif

TEST_F(OpenMpThreads, BothFunctionsAreNeeded) {
  EXPECT_THROW(use_openmp_threads(parallel_region, nullptr), ValueError);
  EXPECT_TRUE(uses_openmp_threads());
}

TEST_F(ThreadPool, CountIsChecked) {
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_THROW(set_num_threads(1025), ValueError);
  EXPECT_EQ(get_num_threads(), 4);
}

#if defined(__linux__)
int allowed_cpus() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

TEST_F(ThreadPool, WorkersLeaveTheCallersCpuWhereTheyTakeAllOthers) {
  const int cpus = allowed_cpus();
  if (cpus < 2 || cpus > 16) GTEST_SKIP() << "workers go anywhere on " << cpus << " CPUs";
  set_num_threads(cpus);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> by_workers{0}, elsewhere{0};
  for (int job = 0; job < 1000 && by_workers < 10; ++job)
    parallel_for(64, [&](std::int64_t) {
      if (std::this_thread::get_id() == caller) return std::this_thread::sleep_for(std::chrono::microseconds(50));
      ++by_workers;
      if (allowed_cpus() == cpus - 1) ++elsewhere;
    });
  EXPECT_GT(by_workers, 0);
  EXPECT_EQ(by_workers, elsewhere);
  EXPECT_EQ(allowed_cpus(), cpus) << "the caller's own";
}

#endif

#if !defined(_WIN32)
// The child's exit status says whether its own pool worked; a hang is the test's time limit.
bool works_in_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    bool good = true;
    for (int job = 0; job < 20; ++job) good = good && every_task_ran_once(100);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(ThreadPool, WorksInAForkedChild) {
  ASSERT_TRUE(every_task_ran_once(100));
  EXPECT_TRUE(works_in_a_child());
  EXPECT_TRUE(every_task_ran_once(100)) << "in the parent, afterwards";
}

TEST_F(ThreadPool, WorksInAChildForkedWhileThePoolIsBusy) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) every_task_ran_once(50);
  });
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(works_in_a_child());
  stop = true;
  busy.join();
}
#endif

std::thread::id checked_on;
void note_thread() { checked_on = std::this_thread::get_id(); }
void interrupt() { throw std::runtime_error("interrupted"); }

// Tasks that take longer together than the time between two checks.
void work_for_a_while() {
  parallel_for(400, [](std::int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
}

TEST_F(ThreadPool, InterruptCheckRunsOnItsThreadAndEndsTheCall) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    {
      const InterruptCheck check(&note_thread);
      work_for_a_while();
    }
    EXPECT_EQ(checked_on, std::this_thread::get_id());
    checked_on = {};
    const auto began = std::chrono::steady_clock::now();
    {
      const InterruptCheck outer(&note_thread);
      const InterruptCheck check(&interrupt);
      EXPECT_THROW(work_for_a_while(), std::runtime_error);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(700));
    EXPECT_EQ(checked_on, std::thread::id());
    EXPECT_TRUE(every_task_ran_once(100)) << "afterwards, without a check";
  }
}

#if defined(__linux__)
class ControlGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("qcore_groups_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    const auto path = root_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  double cpus() const { return control_group_cpus((root_ / "membership").string(), root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST_F(ControlGroups, SmallestQuotaOfVersion2Counts) {
  EXPECT_EQ(cpus(), 0) << "no file";
  write("membership", "0::/outer/inner\n");
  EXPECT_EQ(cpus(), 0) << "no group";
  write("outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), 0) << "no quota";
  write("outer/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus(), 2.5) << "of the group above";
  write("outer/inner/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpus(), 0.5);
}

TEST_F(ControlGroups, RootOfAContainer) {
  write("membership", "0::/path/of/the/host\n");
  write("cpu.max", "400000 100000\n");
  EXPECT_EQ(cpus(), 4);
}

TEST_F(ControlGroups, Version1) {
  write("membership", "5:memory:/a\n4:cpu,cpuacct:/a\n");
  write("cpu/a/cpu.cfs_quota_us", "-1\n");
  write("cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), 0) << "no quota";
  write("cpu/a/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(cpus(), 1.5);
}
#endif

}  // namespace
}  // namespace qcore
