#include "machine/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_host {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif
constexpr std::size_t kGuardBytes = 4096;

Fiber* current = nullptr;

// AddressSanitizer must know which stack is in use.
const void* main_stack = nullptr;
std::size_t main_stack_bytes = 0;
void leave_for([[maybe_unused]] void** state, [[maybe_unused]] const void* stack, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(state, stack, bytes);
#endif
}
void arrive([[maybe_unused]] void* state, [[maybe_unused]] bool from_main) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(state, from_main ? &main_stack : nullptr, from_main ? &main_stack_bytes : nullptr);
#endif
}

}  // namespace

#if defined(__x86_64__)

// swapcontext() would do, but it makes a system call to save the signal mask, and a kernel switches a million times.
extern "C" void cuda_host_switch(void** save, void* load);
asm(R"(
  .text
  .p2align 4
  .globl cuda_host_switch
  .hidden cuda_host_switch
  .type cuda_host_switch, @function
cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cuda_host_switch, . - cuda_host_switch
)");

struct Fiber::Platform {
  void* own = nullptr;
  static void* main;

  void prepare(char* stack, void (*entry)()) {
    // Six saved registers, the address that `ret` goes to, and one word so that the entry finds the stack aligned as
    // after a call.
    auto* top = reinterpret_cast<void**>(stack + kStackBytes);
    for (int i = 1; i <= 8; ++i) top[-i] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    own = top - 8;
  }
  void enter() { cuda_host_switch(&main, own); }
  void leave() { cuda_host_switch(&own, main); }
};
void* Fiber::Platform::main = nullptr;

#else

struct Fiber::Platform {
  ucontext_t own;
  static ucontext_t main;

  void prepare(char* stack, void (*entry)()) {
    getcontext(&own);
    own.uc_stack.ss_sp = stack;
    own.uc_stack.ss_size = kStackBytes;
    own.uc_link = nullptr;
    makecontext(&own, entry, 0);
  }
  void enter() { swapcontext(&main, &own); }
  void leave() { swapcontext(&own, &main); }
};
ucontext_t Fiber::Platform::main;

#endif

Fiber::Fiber() : platform_(new Platform) {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack_ = static_cast<char*>(memory) + kGuardBytes;
}

Fiber::~Fiber() {
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
  delete platform_;
}

void Fiber::start(void (*run)(void*), void* context) {
#if defined(__SANITIZE_ADDRESS__)
  // Not every time, because it takes long: a function that has returned leaves nothing poisoned.
  if (may_be_poisoned_) __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
  may_be_poisoned_ = true;
  run_ = run;
  context_ = context;
  sanitizer_state_ = nullptr;
  finished_ = false;
  platform_->prepare(stack_, enter);
}

void Fiber::enter() {
  arrive(nullptr, true);
  Fiber* self = current;
  self->run_(self->context_);
  self->finished_ = true;
  self->may_be_poisoned_ = false;
  leave_for(nullptr, main_stack, main_stack_bytes);
  self->platform_->leave();
  __builtin_unreachable();
}

void Fiber::resume() {
  current = this;
  void* state = nullptr;
  leave_for(&state, stack_, kStackBytes);
  platform_->enter();
  arrive(state, false);
  current = nullptr;
}

void Fiber::suspend() {
  Fiber* self = current;
  leave_for(&self->sanitizer_state_, main_stack, main_stack_bytes);
  self->platform_->leave();
  arrive(self->sanitizer_state_, true);
}

}  // namespace cuda_host
