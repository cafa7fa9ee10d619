#include "machine.h"

#include <deque>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_host {
namespace {

constexpr int kWarpSize = 32;
constexpr std::size_t kSharedBytes = 48 << 10;          // static
constexpr std::size_t kDynamicSharedBytes = 227 << 10;  // dynamic included, as compute capability 9.0 grants

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

struct Thread {
  Fiber fiber;
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> copy_groups;  // oldest first
  uint3 index;
  int number = 0;
  // Suspended until *watched differs from `seen`.
  const unsigned* watched = nullptr;
  unsigned seen = 0;
  const char* where = nullptr;
};

// Posted values alternate between two sets: a lane can't post the next value but one before all have read this one.
struct Warp {
  std::uint64_t values[2][kWarpSize];
  unsigned existing = 0;
  unsigned arrived = 0;
  unsigned mask = 0;
  const char* where = nullptr;
  unsigned phase = 0;
};

struct SharedPiece {
  const void* key;
  std::unique_ptr<char[]> memory;
  std::size_t bytes;
};

struct Machine {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<SharedPiece> shared;
  Thread* running = nullptr;
  int count = 0;
  int arrived = 0;
  unsigned generation = 0;
  std::size_t dynamic_bytes = 0;
  bool falling = false;
  const char* kernel = "";
  void (*run)(void*) = nullptr;
  void* context = nullptr;
  std::exception_ptr failure;
};
Machine machine;
std::map<std::string, std::map<const void*, int>> recorded;

[[noreturn]] void fail(const std::string& what) {
  const auto place = [](uint3 at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
  };
  throw MachineError(std::string("cuda_host: kernel ") + machine.kernel + ", block " + place(blockIdx) + ": " + what);
}

void wait(const unsigned* watched, const char* where) {
  Thread& self = *machine.running;
  self.watched = watched;
  self.seen = *watched;
  self.where = where;
  Fiber::suspend();
}

void run_thread(void*) {
  try {
    machine.run(machine.context);
  } catch (...) {
    machine.failure = std::current_exception();
  }
}

[[noreturn]] void report_deadlock() {
  int returned = 0;
  std::map<std::string, int> waiting;
  for (int i = 0; i < machine.count; ++i) {
    const Thread& thread = *machine.threads[i];
    if (thread.fiber.finished())
      ++returned;
    else
      ++waiting[thread.where];
  }
  std::string text = "not all threads reach the same barrier:";
  for (const auto& [where, threads] : waiting) text += " " + std::to_string(threads) + " wait at " + where + ",";
  fail(text + " " + std::to_string(returned) + " have returned");
}

// One turn of every thread that can run; false if none could.
bool run_round() {
  bool progress = false;
  for (int i = 0; i < machine.count; ++i) {
    Thread& thread = *machine.threads[machine.falling ? machine.count - 1 - i : i];
    if (thread.fiber.finished() || (thread.watched && *thread.watched == thread.seen)) continue;
    progress = true;
    thread.watched = nullptr;
    machine.running = &thread;
    threadIdx = thread.index;
    thread.fiber.resume();
    if (machine.failure) std::rethrow_exception(std::exchange(machine.failure, nullptr));
  }
  return progress;
}

void start_block() {
  for (auto& piece : machine.shared) std::memset(piece.memory.get(), 0xff, piece.bytes);
  machine.arrived = 0;
  machine.warps.assign((machine.count + kWarpSize - 1) / kWarpSize, Warp{});
  for (int i = 0; i < machine.count; ++i) {
    Thread& thread = *machine.threads[i];
    const unsigned at = static_cast<unsigned>(i);
    thread.index = {at % blockDim.x, at / blockDim.x % blockDim.y, at / blockDim.x / blockDim.y};
    thread.number = i;
    thread.watched = nullptr;
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.fiber.start(run_thread, nullptr);
    machine.warps[i / kWarpSize].existing |= 1u << (i % kWarpSize);
  }
}

void run_block() {
  start_block();
  while (run_round()) {
  }
  for (int i = 0; i < machine.count; ++i)
    if (!machine.threads[i]->fiber.finished()) report_deadlock();
}

}  // namespace

void sync_threads() {
  if (++machine.arrived == machine.count) {
    machine.arrived = 0;
    ++machine.generation;
    return;
  }
  wait(&machine.generation, "__syncthreads");
}

int lane() { return machine.running->number % kWarpSize; }

Posted exchange(unsigned mask, std::uint64_t value, const char* where) {
  Warp& warp = machine.warps[machine.running->number / kWarpSize];
  const unsigned own = 1u << lane(), expected = mask & warp.existing;
  if (!(mask & own)) fail(std::string(where) + ": the calling lane is not in the mask");
  if (warp.arrived && (warp.mask != mask || warp.where != where))
    fail(std::string("lanes of one warp are at ") + warp.where + " and " + where + ", or differ in the mask");
  const unsigned phase = warp.phase;
  warp.values[phase & 1u][lane()] = value;
  warp.mask = mask;
  warp.where = where;
  warp.arrived |= own;
  if (warp.arrived == expected) {
    warp.arrived = 0;
    ++warp.phase;
  } else {
    wait(&warp.phase, where);
  }
  return {warp.values[phase & 1u], expected};
}

void* shared_memory(const void* key, std::size_t bytes) {
  std::size_t total = bytes;
  for (auto& piece : machine.shared) {
    if (piece.key == key) return piece.memory.get();
    total += piece.bytes;
  }
  if (total > (key && machine.dynamic_bytes <= kSharedBytes ? kSharedBytes : kDynamicSharedBytes))
    fail("takes " + std::to_string(total) + " bytes of shared memory");
  machine.shared.push_back({key, std::make_unique<char[]>(bytes), bytes});
  std::memset(machine.shared.back().memory.get(), 0xff, bytes);
  return machine.shared.back().memory.get();
}

void copy_async(void* to, const void* from, std::size_t bytes) {
  const auto aligned = [&](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; };
  if (!aligned(to) || !aligned(from)) fail("an asynchronous copy is not aligned");
  std::memset(to, 0xff, bytes);
  machine.running->open_copies.push_back({to, from, bytes});
}

void copy_commit() {
  Thread& self = *machine.running;
  self.copy_groups.push_back(std::move(self.open_copies));
  self.open_copies.clear();
}

void copy_wait(std::size_t groups) {
  for (auto& pending = machine.running->copy_groups; pending.size() > groups; pending.pop_front())
    for (const Copy& copy : pending.front()) {
      if (copy.from)
        std::memcpy(copy.to, copy.from, copy.bytes);
      else
        std::memset(copy.to, 0, copy.bytes);
    }
}

bool launchable(dim3 grid, dim3 block, std::size_t shared_bytes) {
  const auto threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
  return grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 &&
         threads >= 1 && threads <= 1024 && block.z <= 64 && shared_bytes <= kDynamicSharedBytes;
}

void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, void (*run)(void*), void* context) {
  machine.kernel = name;
  machine.run = run;
  machine.context = context;
  machine.count = static_cast<int>(block.x * block.y * block.z);
  machine.falling = !machine.falling;
  machine.shared.clear();
  blockDim = block;
  gridDim = grid;
  blockIdx = {0, 0, 0};
  while (static_cast<int>(machine.threads.size()) < machine.count)
    machine.threads.push_back(std::make_unique<Thread>());
  machine.dynamic_bytes = shared_bytes;
  shared_memory(nullptr, shared_bytes);  // the dynamic part
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block();
}

void record(const char* name, const void* kernel) { ++recorded[name][kernel]; }

const std::map<std::string, std::map<const void*, int>>& launches() { return recorded; }

}  // namespace cuda_host
