#pragma once

// Prefix of AVX-VNNI's instructions in assembly. The build option QCORE_AVXVNNI_AS_EVEX encodes them as AVX-512 VL has
// them, so that these kernels can be tested on a CPU that has AVX-512 VNNI but not AVX-VNNI.
#if defined(QCORE_AVXVNNI_AS_EVEX)
#define QCORE_VNNI_ENCODING "%{evex%} "
#else
#define QCORE_VNNI_ENCODING "%{vex%} "
#endif
