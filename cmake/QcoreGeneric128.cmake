# Decides whether the kernels by vectors of the compiler are built, and sets QCORE_GENERIC128_ENABLED.
#
# They take a quarter of the time to compile, and no call chooses them on a processor with AVX2. A build for the machine at
# hand leaves them out where that has AVX2; one for other machines, such as a wheel, asks for them. Tests have them always.
string(TOLOWER "${QCORE_GENERIC128}" generic128_choice)
if(NOT generic128_choice MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "QCORE_GENERIC128 is '${QCORE_GENERIC128}', expected auto, on or off")
endif()

set(QCORE_GENERIC128_ENABLED ON)
if(generic128_choice STREQUAL "off")
  set(QCORE_GENERIC128_ENABLED OFF)
elseif(generic128_choice STREQUAL "auto" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING
       AND NOT QCORE_TESTS AND NOT QCORE_CUDA_HOST_TESTS)
  include(CheckCXXSourceRuns)
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_runs(
    "int main() { return __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") ? 0 : 1; }"
    QCORE_BUILDER_HAS_AVX2)
  unset(CMAKE_REQUIRED_QUIET)
  if(QCORE_BUILDER_HAS_AVX2)
    set(QCORE_GENERIC128_ENABLED OFF)
  endif()
endif()
message(STATUS "qcore: kernels generic128 ${QCORE_GENERIC128_ENABLED} (QCORE_GENERIC128=${generic128_choice})")
