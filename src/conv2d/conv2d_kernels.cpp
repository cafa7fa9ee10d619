#include "conv2d/kernels.h"

namespace qcore {
namespace {

bool always() { return true; }

constexpr auto kCpuRow = DeviceType::cpu;

// Best first.
KernelTable<Conv2dProblem> table("conv2d",
                                 {
                                     {"linear", kCpuRow, "nothing", always, conv2d_linear_why_not, run_conv2d_linear},
                                     {"reference", kCpuRow, "nothing", always, conv2d_reference_why_not,
                                      run_conv2d_reference},
                                 });

}  // namespace

KernelTable<Conv2dProblem>& conv2d_table() { return table; }

}  // namespace qcore
