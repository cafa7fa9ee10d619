#pragma once

#include "linear/grouped/problem.h"
#include "runtime/kernel_table.h"

namespace qcore {

KernelTable<GroupedLinearProblem>& grouped_linear_dispatch();

}  // namespace qcore
