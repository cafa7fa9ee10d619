// Linked into each library of a wheel (QCORE_MANYLINUX_2_28): what they would need of a newer glibc than 2.28 or a
// newer libstdc++ than that of g++ 8, made of what these have. Everything here is hidden. Objects are the same with it
// and without.

#include <pthread.h>
#include <sched.h>

#include <new>

#define QCORE_HIDDEN __attribute__((visibility("hidden")))
#if defined(__x86_64__)
#define QCORE_FIRST_GLIBC "GLIBC_2.2.5"
#define QCORE_AFFINITY_GLIBC "GLIBC_2.3.4"
#else
#define QCORE_FIRST_GLIBC "GLIBC_2.17"
#define QCORE_AFFINITY_GLIBC "GLIBC_2.17"
#endif

extern "C" {

// Functions of which there are two versions: the linker would take the newer one, and its option --wrap gives the calls
// to us instead.
double older_exp(double x);
int older_trylock(pthread_mutex_t* mutex);
int older_once(pthread_once_t* once, void (*call)());
int older_setaffinity(pthread_t thread, std::size_t bytes, const cpu_set_t* cpus);
void older_wait(void* condition, void* lock);
__asm__(".symver older_exp, exp@" QCORE_FIRST_GLIBC);
__asm__(".symver older_trylock, pthread_mutex_trylock@" QCORE_FIRST_GLIBC);
__asm__(".symver older_once, pthread_once@" QCORE_FIRST_GLIBC);
__asm__(".symver older_setaffinity, pthread_setaffinity_np@" QCORE_AFFINITY_GLIBC);
__asm__(".symver older_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

QCORE_HIDDEN double __wrap_exp(double x) { return older_exp(x); }
QCORE_HIDDEN int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) { return older_trylock(mutex); }
QCORE_HIDDEN int __wrap_pthread_once(pthread_once_t* once, void (*call)()) { return older_once(once, call); }
QCORE_HIDDEN int __wrap_pthread_setaffinity_np(pthread_t thread, std::size_t bytes, const cpu_set_t* cpus) {
  return older_setaffinity(thread, bytes, cpus);
}
// std::condition_variable::wait(std::unique_lock<std::mutex>&)
QCORE_HIDDEN void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* condition, void* lock) {
  older_wait(condition, lock);
}

// Whether this process has one thread, so that shared pointers need no atomic operations: taken as false.
QCORE_HIDDEN char __libc_single_threaded = 0;

// std::exception_ptr(const std::exception_ptr&), ~exception_ptr() and std::ostringstream(std::ios_base::openmode), as
// the library exports them.
void copy_exception_pointer(void* to, const void* from);
void destroy_exception_pointer(void* self);
void make_string_stream(void* self, int mode);
__asm__(".symver copy_exception_pointer, _ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
__asm__(".symver destroy_exception_pointer, _ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
__asm__(
    ".symver make_string_stream, "
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1ESt13_Ios_Openmode@GLIBCXX_3.4.21");

// std::exception_ptr::_M_addref(): a copy that is never destroyed is one reference more.
QCORE_HIDDEN void add_reference(const void* self) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(const void* self) {
  void* copy;
  copy_exception_pointer(&copy, self);
}

// std::exception_ptr::_M_release()
QCORE_HIDDEN void release(void* self) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(void* self) { destroy_exception_pointer(self); }

// std::ostringstream()
QCORE_HIDDEN void make_default_string_stream(void* self) __asm__(
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void make_default_string_stream(void* self) {
  constexpr int kOut = 1 << 4;  // std::ios_base::out
  make_string_stream(self, kOut);
}

// std::__throw_bad_array_new_length()
[[noreturn]] QCORE_HIDDEN void throw_bad_array_new_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_array_new_length(); }

}  // extern "C"
