#include "qcore/hadamard.h"

#include "hadamard/dispatch.h"
#include "runtime/check.h"
#include "runtime/view_checks.h"

namespace qcore {

void hadamard(const TensorView& x, std::int64_t block, const TensorView& y) {
  const char* op = "hadamard";
  check_floating(op, "x", x);
  check_device(op, "x", x, kCpu, "every array");
  QCORE_CHECK_VALUE(x.rank >= 1, op, ": x has no axes, expected [..., K]");
  const std::int64_t k = x.shape[x.rank - 1];
  QCORE_CHECK_VALUE(block >= 1 && (block & (block - 1)) == 0 && k % block == 0, op, ": block is ", block,
                    ", expected a power of two that divides K = ", k);
  check_floating(op, "out", y);
  check_device(op, "out", y, kCpu, "every array");
  check_shape(op, "out", y, x.rank, x.shape);
  check_output(op, "out", y);
  check_disjoint(op, "out", y, "x", x);
  if (x.size() == 0) return;
  hadamard_dispatch().run({row_view(x), row_view(y), x.size() / k, k, block});
}

}  // namespace qcore
