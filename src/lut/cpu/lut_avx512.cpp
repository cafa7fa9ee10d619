#include "lut/cpu/lanes_avx512.h"
#include "lut/cpu/row_lanes.h"

namespace qcore {
namespace {

using L = Avx512Lanes;

void run(const LutArrays& table, const LutRun& run) {
  if (table.registers && table.registers->unit)
    map_elements<L, LutReduction::exp>(run, RegisterTable512<true>(*table.registers));
  else if (table.registers)
    map_reduced<L>(table.reduction, run, RegisterTable512<false>(*table.registers));
  else
    map_reduced<L>(table.reduction, run, MemoryTable512(table.view));
}

void softmax_row(const LutRow& row, const LutArrays& exp, const LutArrays& reciprocal) {
  softmax_lanes<L>(row, RegisterTable512<true>(*exp.registers), reciprocal);
}

void rms_norm_row(const LutRow& row, const float* weight, float eps, const LutArrays& rsqrt) {
  rms_norm_lanes<L>(row, weight, eps, rsqrt);
}

}  // namespace

const LutKernels kLutAvx512{run, softmax_row, rms_norm_row, load_row<L>, store_row<L>};

}  // namespace qcore
