#pragma once

#include "linear/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<LinearProblem>& linear_dispatch();

}  // namespace qcore
