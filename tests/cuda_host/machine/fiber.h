#pragma once

#include <cstddef>

namespace cuda_host {

// A function that runs on its own stack and can be left and resumed. All of a process's fibers belong to one thread.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() enters run(context), which must not throw. Whatever the fiber was doing before is abandoned.
  void start(void (*run)(void*), void* context);
  void resume();          // called outside fibers
  static void suspend();  // called inside one; returns when it is resumed
  bool finished() const { return finished_; }

  struct Platform;  // saved registers

 private:
  static void enter();

  char* stack_;
  Platform* platform_;
  void (*run_)(void*) = nullptr;
  void* context_ = nullptr;
  void* sanitizer_state_ = nullptr;
  bool finished_ = true;
  bool may_be_poisoned_ = true;  // the stack: it is new, or its function has not returned
};

}  // namespace cuda_host
