#pragma once

#include "linear/cpu/vtable.h"

// One set of tile kernels for each CPU row of linear's kernel table.
namespace qcore {

extern const TileKernels kInt8Avx2, kInt8W4Avx2, kInt16Avx2, kFloatAvx2;   // linear_avx2.cpp
extern const TileKernels kInt8AvxVnni, kInt16AvxVnni;                      // linear_avxvnni.cpp
extern const TileKernels kInt8Avx512Vnni, kInt16Avx512Vnni, kFloatAvx512;  // linear_avx512vnni.cpp
extern const TileKernels kFloatAvx512Bf16;                                 // linear_avx512bf16.cpp

}  // namespace qcore
