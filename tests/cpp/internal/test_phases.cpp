#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "qcore/kernels.h"
#include "runtime/phases.h"

namespace qcore {
namespace {

class PhasesTest : public testing::Test {
 protected:
  void SetUp() override { set_num_threads(4); }
};

// Every part reads what all parts of the phase before wrote, as a recurrence does.
void check_recurrence(std::int64_t count, int parts) {
  std::vector<std::int64_t> state[2] = {std::vector<std::int64_t>(parts, 1), std::vector<std::int64_t>(parts)};
  std::vector<int> runs(count * parts);
  PhasedParallelFor phases(count, parts);
  phases.run([&](std::int64_t phase, int part) {
    const auto& from = state[phase % 2];
    std::int64_t sum = 0;
    for (const std::int64_t value : from) sum += value;
    state[1 - phase % 2][part] = sum % 1000003 + part;
    ++runs[phase * parts + part];
  });
  std::vector<std::int64_t> expected(parts, 1);
  for (std::int64_t phase = 0; phase < count; ++phase) {
    std::int64_t sum = 0;
    for (const std::int64_t value : expected) sum += value;
    for (int part = 0; part < parts; ++part) expected[part] = sum % 1000003 + part;
  }
  EXPECT_EQ(state[count % 2], expected);
  for (const int times : runs) EXPECT_EQ(times, 1);
}

TEST_F(PhasesTest, EachPhaseSeesAllOfTheOneBefore) {
  for (const int parts : {1, 2, 3, 4, 7})
    for (const std::int64_t count : {0, 1, 2, 500}) check_recurrence(count, parts);
}

TEST_F(PhasesTest, OneThreadIsEnough) {
  set_num_threads(1);
  check_recurrence(100, 4);
}

// While another caller has the pool, the parts run on the caller's thread alone.
TEST_F(PhasesTest, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([] {
      for (int run = 0; run < 20; ++run) check_recurrence(50, 3);
    });
  for (auto& caller : callers) caller.join();
}

TEST_F(PhasesTest, AnExceptionEndsThemAll) {
  for (int run = 0; run < 20; ++run) {
    PhasedParallelFor phases(100, 4);
    std::atomic<std::int64_t> latest{0};
    EXPECT_THROW(phases.run([&](std::int64_t phase, int part) {
      latest = phase;
      if (phase == 10 && part == 2) throw std::runtime_error("part");
    }),
                 std::runtime_error);
    EXPECT_LE(latest.load(), 10);
  }
}

}  // namespace
}  // namespace qcore
