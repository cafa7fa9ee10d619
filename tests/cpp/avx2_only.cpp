// What the tables of kernels name and QCORE_AVX2_ONLY leaves out of libqcore: never called, because cpu_features.cpp
// then knows of no instruction set above AVX2.
#include "awq/cpu/vtable.h"
#include "conv2d/cpu/depthwise.h"
#include "decoder/cpu/vtable.h"
#include "gemm/cpu/vtable.h"
#include "gemm/dequantize/vtable.h"
#include "gru/cpu/vtable.h"
#include "hadamard/cpu/vtable.h"
#include "lstm/cpu/vtable.h"
#include "runtime/probes/probe_kernels.h"
#include "static/cpu/vtable.h"
//
#define kRowPadding kRowPaddingOfLut  // decoder/cpu/vtable.h has another constant of this name
#include "lut/cpu/vtable.h"

namespace qcore {

const BlockKernels kInt8AvxVnni{}, kInt16AvxVnni{};
const BlockKernels kInt8Avx512Vnni{}, kInt16Avx512Vnni{}, kInt8Amx{}, kInt16Amx{}, kFloatAmx{}, kFloatAvx512{},
    kFloatAvx512Bf16{};
const BlockKernels kDepthwiseAvx512{}, kDepthwiseFloatAvx512{};
const StaticTileKernels kStaticAvxVnni{}, kStaticAvx512Vnni{}, kStaticAmx{};
const RecurrentKernels kGruAvxVnni{}, kGruAvx512Vnni{}, kLstmAvxVnni{}, kLstmAvx512Vnni{};
const ProbeKernels kProbesAvxVnni{}, kProbesAvx512Vnni{};
const LutKernels kLutAvx512{};
const HadamardKernels kHadamardAvx512{};
const AwqKernels kAwqAvx512{};
const DequantizeKernels kDequantizeAvx512{};
const DecoderKernels kDecoderAvx512{};

}  // namespace qcore
