#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace qcore {

constexpr std::size_t kAlignment = 64;  // a cache line, and a 512-bit vector

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

// 64-byte aligned, uninitialized; large blocks ask for huge pages. Throws std::bad_alloc.
std::shared_ptr<void> allocate_aligned(std::int64_t bytes);

// Allocates memory that is read again and again and stays, such as weights: neighboring blocks share huge pages, so
// that a stream of many small weights does not end at every 4 KB. Memory of a freed block goes back to the system, the
// rest of a page that others use excepted. Throws std::bad_alloc.
std::shared_ptr<void> allocate_long_lived(std::int64_t bytes);

// Whether allocate_long_lived() would place a block of this size in pages that it shares with others.
bool shares_huge_pages(std::int64_t bytes);

// Memory of the calling thread that is kept from call to call, so that an operator in a loop does not allocate.
// Scopes nest like a stack; memory taken in a scope is valid until the scope ends.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // 64-byte aligned, uninitialized.
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  void* take_bytes(std::int64_t bytes);
  std::size_t chunk_, used_;
};

}  // namespace qcore
