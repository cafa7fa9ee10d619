#include "lut/cpu/lanes_neon.h"
#include "lut/cpu/row_lanes.h"

namespace qcore {
namespace {

using L = LutLanesNeon;

void run(const LutArrays& table, const LutRun& run) {
  if (table.registers)
    map_reduced<L>(table.reduction, run, PermutedTable128(table.view, *table.registers));
  else
    map_reduced<L>(table.reduction, run, MemoryTable128(table.view));
}

void softmax_row(const LutRow& row, const LutArrays& exp, const LutArrays& reciprocal) {
  softmax_lanes<L>(row, PermutedTable128(exp.view, *exp.registers), reciprocal);
}

void rms_norm_row(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt) {
  rms_norm_lanes<L>(row, weight, eps, rsqrt);
}

}  // namespace

extern const LutKernels kLutNeon{run, softmax_row, rms_norm_row, load_row<L>, store_row<L>};

}  // namespace qcore
