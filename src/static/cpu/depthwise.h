#pragma once

#include "static/cpu/vtable.h"
#include "static/problem.h"

namespace qcore {

// A layer each of whose channels has its own window: one with StaticLayer::depthwise.
void run_depthwise(const StaticProblem& problem, const StaticTileKernels& kernels);

}  // namespace qcore
