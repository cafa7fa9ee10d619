#pragma once

#include "conv2d/cpu/vtable.h"

// One set of kernels for each CPU row of conv2d's kernel table.
namespace qcore {

extern const ConvKernels kConvInt8Avx2, kConvInt8W4Avx2, kConvInt16Avx2, kConvFloatAvx2;  // conv2d_avx2.cpp
extern const ConvKernels kConvInt8AvxVnni, kConvInt16AvxVnni;                             // conv2d_avxvnni.cpp
extern const ConvKernels kConvInt8Avx512Vnni, kConvInt16Avx512Vnni, kConvFloatAvx512;     // conv2d_avx512vnni.cpp
extern const ConvKernels kConvDepthwiseAvx2, kConvDepthwiseFloatAvx2;                     // conv2d_avx2.cpp
extern const ConvKernels kConvDepthwiseAvx512, kConvDepthwiseFloatAvx512;                 // conv2d_avx512vnni.cpp

}  // namespace qcore
