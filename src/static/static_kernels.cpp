#include "static/kernels.h"

namespace qcore {
namespace {

bool always() { return true; }

// Best first.
KernelTable<StaticProblem> table("static", {
                                               {"reference", DeviceType::cpu, "nothing", always,
                                                static_reference_why_not, run_static_reference},
                                           });

}  // namespace

KernelTable<StaticProblem>& static_table() { return table; }

}  // namespace qcore
