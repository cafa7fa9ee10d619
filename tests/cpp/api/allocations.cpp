#include "allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

static std::atomic<std::int64_t> allocations{0};

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace qcore::test {

std::int64_t allocation_count() { return allocations; }

}  // namespace qcore::test
