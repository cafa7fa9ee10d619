#include "lut/cpu/lanes_avx2.h"
#include "lut/cpu/row_lanes.h"

namespace qcore {
namespace {

using L = Avx2Lanes;

void run(const LutArrays& table, const LutRun& run) {
  if (table.registers)
    map_reduced<L>(table.reduction, run, PermutedTable256(table.view, *table.registers));
  else
    map_reduced<L>(table.reduction, run, MemoryTable256(table.view));
}

void softmax_row(const LutRow& row, const LutArrays& exp, const LutArrays& reciprocal) {
  softmax_lanes<L>(row, PermutedTable256(exp.view, *exp.registers), reciprocal);
}

void rms_norm_row(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt) {
  rms_norm_lanes<L>(row, weight, eps, rsqrt);
}

}  // namespace

const LutKernels kLutAvx2{run, softmax_row, rms_norm_row, load_row<L>, store_row<L>};

}  // namespace qcore
