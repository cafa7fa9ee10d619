#include "gru/kernels.h"

namespace qcore {
namespace {

bool always() { return true; }

const char* on_cpu(const GruProblem& problem) {
  return problem.device.type == DeviceType::cpu ? nullptr : "it runs on the CPU";
}

KernelTable<GruProblem> table("gru", {{"reference", DeviceType::cpu, "nothing", always, on_cpu, run_gru_reference}});

}  // namespace

KernelTable<GruProblem>& gru_table() { return table; }

}  // namespace qcore
