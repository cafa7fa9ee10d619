#pragma once

#include "recurrent/cpu/vtable.h"
#include "recurrent/problem.h"

namespace qcore {

const char* recurrent_vector_unsupported_reason(const RecurrentProblem& problem, bool packed);

// Runs all steps by the kernels of an instruction set, on as many threads as there is work for.
void run_recurrent_vector(const RecurrentProblem& problem, const RecurrentLayer& layer,
                          const RecurrentKernels& kernels);

}  // namespace qcore
