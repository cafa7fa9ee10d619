#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <vector>

namespace qcore {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kFirstChunk = 64 << 10;
// A chunk above this size goes back when the outermost scope ends, so that one huge call does not pin its memory.
constexpr std::int64_t kKeep = 256 << 20;

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
  void* memory = std::aligned_alloc(alignment, round_up(bytes > 0 ? bytes : 1, alignment));
  if (!memory) throw std::bad_alloc();
  if (huge) madvise(memory, round_up(bytes, kHugePage), MADV_HUGEPAGE);
  return std::shared_ptr<void>(memory, std::free);
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
