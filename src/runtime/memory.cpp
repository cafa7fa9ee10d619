#include "runtime/memory.h"

#if defined(_WIN32)
#define NOMINMAX
#include <malloc.h>
#include <windows.h>
#else
#include <pthread.h>
#include <sys/mman.h>
#endif

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace qcore {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
// At least that of the system: macOS on Arm has pages of 16 KB, and Linux on Arm may have such of 64.
#if defined(__x86_64__)
constexpr std::int64_t kPage = 4 << 10;
#else
constexpr std::int64_t kPage = 64 << 10;
#endif
constexpr std::int64_t kFirstChunk = 64 << 10;
// A chunk above this size goes back when the outermost scope ends, so that one huge call does not pin its memory.
constexpr std::int64_t kKeep = 256 << 20;

// Blocks of long-lived memory come from regions of this size. Smaller blocks than the smallest are left to malloc, and
// larger ones than the largest have huge pages of their own.
constexpr std::int64_t kRegion = 32 << 20, kSmallestShared = 64 << 10, kMaxShared = 16 << 20;

// What the systems call differently. Only Linux is asked for huge pages: Windows gives them to processes with a
// privilege of their own, and macOS to none on Arm.
#if defined(_WIN32)
void* map_pages(std::size_t bytes) { return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }
void unmap_pages(void* begin, std::size_t) { VirtualFree(begin, 0, MEM_RELEASE); }
void discard_pages(void* begin, std::size_t bytes) { VirtualAlloc(begin, bytes, MEM_RESET, PAGE_READWRITE); }
void prefer_huge_pages(void*, std::size_t) {}
void* allocate_memory(std::size_t alignment, std::size_t bytes) { return _aligned_malloc(bytes, alignment); }
void free_memory(void* memory) { _aligned_free(memory); }
#else
void* map_pages(std::size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}
void unmap_pages(void* begin, std::size_t bytes) { munmap(begin, bytes); }
#if defined(__linux__)
void discard_pages(void* begin, std::size_t bytes) { madvise(begin, bytes, MADV_DONTNEED); }
void prefer_huge_pages(void* begin, std::size_t bytes) { madvise(begin, bytes, MADV_HUGEPAGE); }
#else
void discard_pages(void* begin, std::size_t bytes) { madvise(begin, bytes, MADV_FREE); }
void prefer_huge_pages(void*, std::size_t) {}
#endif
void* allocate_memory(std::size_t alignment, std::size_t bytes) { return std::aligned_alloc(alignment, bytes); }
void free_memory(void* memory) { std::free(memory); }
#endif

// Address space that begins with a huge page. Pages become resident when they are first written to.
class Region {
 public:
  Region() {
    mapped_ = map_pages(kRegion + kHugePage);
    if (!mapped_) throw std::bad_alloc();
    begin_ = round_up(reinterpret_cast<std::intptr_t>(mapped_), kHugePage);
    prefer_huge_pages(reinterpret_cast<void*>(begin_), kRegion);
  }
  ~Region() { unmap_pages(mapped_, kRegion + kHugePage); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Null where there is no room left.
  void* take(std::int64_t bytes) {
    if (used_ + bytes > kRegion) return nullptr;
    void* block = reinterpret_cast<void*>(begin_ + used_);
    used_ += bytes;
    return block;
  }

  // Gives back the pages that lie within a block.
  static void release(void* block, std::int64_t bytes) {
    const auto begin = reinterpret_cast<std::intptr_t>(block);
    const std::int64_t first = round_up(begin, kPage), end = (begin + bytes) / kPage * kPage;
    if (first < end) discard_pages(reinterpret_cast<void*>(first), static_cast<std::size_t>(end - first));
  }

 private:
  void* mapped_ = nullptr;
  std::intptr_t begin_ = 0;
  std::int64_t used_ = 0;
};

// The region that has room left. Never destroyed, since weights in static variables may outlive it; a child of fork()
// abandons its parent's, whose lock may be held.
struct OpenRegion {
  std::mutex mutex;
  std::shared_ptr<Region> region;
};
std::atomic<OpenRegion*> shared_region{nullptr};
#if !defined(_WIN32)
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { shared_region.store(nullptr); });
#endif

OpenRegion* open_region() {
  OpenRegion* current = shared_region.load(std::memory_order_acquire);
  if (current) return current;
  auto* fresh = new OpenRegion;
  if (shared_region.compare_exchange_strong(current, fresh)) return fresh;
  delete fresh;
  return current;
}

struct Chunk {
  std::shared_ptr<void> memory;
  std::size_t bytes;
};

struct Arena {
  std::vector<Chunk> chunks;
  std::size_t chunk = 0, used = 0;
  int depth = 0;
};
thread_local Arena arena;

}  // namespace

std::shared_ptr<void> allocate_aligned(std::int64_t bytes) {
  if (bytes < 0) throw std::bad_alloc();
  const bool huge = bytes >= 4 * kHugePage;
  const std::int64_t alignment = huge ? kHugePage : static_cast<std::int64_t>(kAlignment);
  const std::size_t size = round_up(bytes > 0 ? bytes : 1, alignment);
  void* memory = allocate_memory(alignment, size);
  if (!memory) throw std::bad_alloc();
  if (huge) prefer_huge_pages(memory, size);
  return std::shared_ptr<void>(memory, free_memory);
}

bool shares_huge_pages(std::int64_t bytes) { return bytes >= kSmallestShared && bytes <= kMaxShared; }

std::shared_ptr<void> allocate_long_lived(std::int64_t bytes) {
  if (!shares_huge_pages(bytes)) return allocate_aligned(bytes);
  const std::int64_t size = round_up(bytes, kAlignment);
  std::shared_ptr<Region> region;
  void* block = nullptr;
  {
    OpenRegion& open = *open_region();
    std::lock_guard<std::mutex> lock(open.mutex);
    if (!open.region || !(block = open.region->take(size))) {
      open.region = std::make_shared<Region>();
      block = open.region->take(size);
    }
    region = open.region;
  }
  return std::shared_ptr<void>(block, [region, size](void* freed) { Region::release(freed, size); });
}

Scratch::Scratch() : chunk_(arena.chunk), used_(arena.used) { ++arena.depth; }

Scratch::~Scratch() {
  arena.chunk = chunk_;
  arena.used = used_;
  if (--arena.depth > 0) return;
  // Merge what this call needed into one chunk, so that the next one takes it without walking a list.
  std::size_t total = 0;
  for (const Chunk& chunk : arena.chunks) total += chunk.bytes;
  if (arena.chunks.size() > 1 || total > kKeep) arena.chunks.clear();
  if (total <= kKeep && arena.chunks.empty() && total > 0) {
    try {
      arena.chunks.push_back({allocate_aligned(total), total});
    } catch (const std::bad_alloc&) {
      // The next call will ask again, and say so if it fails.
    }
  }
}

void* Scratch::take_bytes(std::int64_t bytes) {
  const std::size_t wanted = round_up(bytes, kAlignment);
  while (arena.chunk < arena.chunks.size() && arena.used + wanted > arena.chunks[arena.chunk].bytes) {
    ++arena.chunk;
    arena.used = 0;
  }
  if (arena.chunk == arena.chunks.size()) {
    const std::size_t size = wanted > kFirstChunk ? wanted : kFirstChunk;
    arena.chunks.push_back({allocate_aligned(size), size});
    arena.used = 0;
  }
  void* memory = static_cast<char*>(arena.chunks[arena.chunk].memory.get()) + arena.used;
  arena.used += wanted;
  return memory;
}

}  // namespace qcore
