#pragma once

#include "qcore/tensor_view.h"
#include "recurrent/code_access.h"

namespace qcore {

// Codes or numbers as either, on a CUDA device: what is read as a code or rounded to one is written as the other
// array's dtype wants it. Without `from`, whose data is null then, writes zero points. Values are not checked.
void convert_fixed_cuda(const TensorView& from, const CodeFormat& format, const TensorView& to, void* stream);

}  // namespace qcore
