#pragma once

// qcore: low-precision neural-network operators. Integer results are bit-identical across CPU kernels.
//
// Shape letters, the same everywhere:
//   M rows of activations (batch x tokens), K input features, N output features, g block size along K,
//   P = ceil(K/g) blocks (the last may be short), T time steps, B batch, C GRU input size, H hidden size,
//   Ci/Co/Kh/Kw channels and kernel of a convolution.

#include "qcore/awq.h"
#include "qcore/conv2d.h"
#include "qcore/decoder.h"
#include "qcore/embedding.h"
#include "qcore/error.h"
#include "qcore/grouped_linear.h"
#include "qcore/gru.h"
#include "qcore/hadamard.h"
#include "qcore/kernels.h"
#include "qcore/linear.h"
#include "qcore/lut.h"
#include "qcore/lut_fit.h"
#include "qcore/quantize.h"
#include "qcore/quantized_activations.h"
#include "qcore/recurrent/lstm.h"
#include "qcore/static.h"
#include "qcore/tensor_view.h"
#include "qcore/version.h"
