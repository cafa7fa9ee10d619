#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qcore/export.h"

namespace qcore {

// One row of the kernel table. Rows of an operator are listed best first; a call runs the first one
// that is available and supports the problem.
struct KernelInfo {
  std::string op;      // "linear"
  std::string name;    // "int8_avx512vnni"
  std::string device;  // "cpu" or "cuda"
  bool available;      // this build has it and this machine can run it
  std::string needs;   // what the machine must have, e.g. "AVX2, FMA, F16C"
  std::uint64_t runs;  // calls that ran it in this process
};

// All rows, or those of one operator. Throws ValueError for an operator that does not exist.
QCORE_API std::vector<KernelInfo> kernels(const std::string& op = "");

// Name of the kernel that the calling thread ran last for this operator; empty if none has.
QCORE_API std::string last_kernel(const std::string& op);

// Makes the calling thread's calls of `op` run kernel `name` for the lifetime of the object; such a
// call throws ValueError with the reason if the kernel does not support its problem. Throws
// ValueError at once if there is no such row or it is not available. Scopes nest.
class QCORE_API ForceKernel {
 public:
  ForceKernel(const std::string& op, const std::string& name);
  ~ForceKernel();
  ForceKernel(const ForceKernel&) = delete;
  ForceKernel& operator=(const ForceKernel&) = delete;

 private:
  void* op_;  // an operator's table
  int previous_;
};

// Names of the instruction set extensions in use, after QCORE_ISA has been applied: "avx2", ..., or "neon", ...
QCORE_API std::vector<std::string> cpu_features();

// CPUs that this process may use: those of its affinity mask, or fewer if a control group's quota allows less.
QCORE_API int available_cpus();

// Threads used by CPU kernels: the number that was set last, else QCORE_NUM_THREADS, else OMP_NUM_THREADS, else
// available_cpus(). Where the threads are those of an OpenMP library that tells its number (use_openmp_threads()) and
// neither of the first two was given, that number, at most available_cpus().
QCORE_API int get_num_threads();
QCORE_API void set_num_threads(int n);  // throws ValueError unless 1 <= n <= 1024

// Makes CPU kernels run on the threads of an OpenMP library instead of threads of their own, so that two sets of
// threads do not compete for the CPUs where calls alternate with those of another library. The functions are its
// GOMP_parallel and omp_get_thread_num, which GCC's, LLVM's and Intel's have; null for threads of their own again. Not
// during a call. With omp_get_max_threads as a third function get_num_threads() follows that library's number.
using GompParallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
using OmpGetThreadNum = int (*)();
using OmpGetMaxThreads = int (*)();
QCORE_API void use_openmp_threads(GompParallel parallel, OmpGetThreadNum thread_number,
                                  OmpGetMaxThreads max_threads = nullptr);
QCORE_API bool uses_openmp_threads();

// Calls check() on the thread that made it, about every 50 ms while CPU kernels work for that thread, for the lifetime
// of the object. What check() throws ends the call and is thrown to its caller; what the call was to write is then
// incomplete. Scopes nest, and the innermost one counts.
class QCORE_API InterruptCheck {
 public:
  explicit InterruptCheck(void (*check)());
  ~InterruptCheck();
  InterruptCheck(const InterruptCheck&) = delete;
  InterruptCheck& operator=(const InterruptCheck&) = delete;

 private:
  void (*previous_)();
};

struct CudaInfo {
  bool built;                        // this libqcore contains the CUDA backend
  int device_count;                  // 0 without a driver
  std::string reason;                // why there is no device, if there is none
  std::vector<std::string> devices;  // "NVIDIA H200, sm_90"
};
QCORE_API CudaInfo cuda_info();

}  // namespace qcore
