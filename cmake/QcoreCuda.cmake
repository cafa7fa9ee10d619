# Decides whether the CUDA backend is built, and sets QCORE_CUDA_ENABLED and QCORE_CUTLASS_INCLUDE_DIR.

string(TOLOWER "${QCORE_CUDA}" cuda_choice)
if(cuda_choice STREQUAL "")
  set(cuda_choice auto)
endif()
if(NOT cuda_choice MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "QCORE_CUDA is '${QCORE_CUDA}', expected auto, on or off")
endif()

include(CheckLanguage)
set(QCORE_CUDA_ENABLED OFF)
if(NOT cuda_choice STREQUAL "off")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(QCORE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(QCORE_NVCC)
      set(CMAKE_CUDA_COMPILER ${QCORE_NVCC})
    endif()
  endif()
  if(cuda_choice STREQUAL "on")
    set(QCORE_CUDA_ENABLED ON)
  elseif(QCORE_NVCC OR CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    find_library(QCORE_CUDA_DRIVER NAMES libcuda.so.1 cuda PATHS /usr/local/nvidia/lib64 /usr/lib/wsl/lib)
    if(QCORE_CUDA_DRIVER AND EXISTS /dev/nvidiactl)
      set(QCORE_CUDA_ENABLED ON)
    endif()
  endif()
endif()

if(NOT QCORE_CUDA_ENABLED)
  message(STATUS "qcore: CUDA backend not built (QCORE_CUDA=${cuda_choice})")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  message(FATAL_ERROR "QCORE_CUDA=on needs nvcc, and none was found. Put it on PATH or set CUDACXX to it, "
                      "or build without CUDA: QCORE_CUDA=off.")
endif()
# Each object library sets its own architectures; this must be set before the language is enabled.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(QCORE_CUDA_ARCHITECTURES_SM75 "75-real" CACHE STRING "Targets of the sm_75 objects")
set(QCORE_CUDA_ARCHITECTURES_SM80 "80-real;90" CACHE STRING "Targets of the sm_80 objects; the last carries PTX")

# wgmma belongs to this target alone; no later device runs its code.
set(QCORE_CUDA_ARCHITECTURES_SM90A "90a-real" CACHE STRING "Targets of the sm_90a objects")

# CUTLASS is headers only. They travel in the PyPI package nvidia-cutlass, which is found without importing it: in the
# environment of the build, then, for pip's isolated builds, in the one that pip was called from.
set(QCORE_CUTLASS_DIR "" CACHE PATH "CUTLASS source tree; empty: look for the nvidia-cutlass package")
set(locate_cutlass
    "import importlib.util as u, pathlib as p; s = u.find_spec('cutlass_library'); print(p.Path(s.origin).parent / 'source' if s else '')"
)
set(cutlass_candidates ${QCORE_CUTLASS_DIR})
if(NOT QCORE_CUTLASS_DIR)
  find_package(Python 3.11 COMPONENTS Interpreter QUIET)
  if(Python_EXECUTABLE)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "${locate_cutlass}" OUTPUT_VARIABLE in_build ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${Python_EXECUTABLE} -c "${locate_cutlass}"
                    OUTPUT_VARIABLE in_environment ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(cutlass_candidates ${in_build} ${in_environment})
  endif()
endif()
find_path(QCORE_CUTLASS_INCLUDE_DIR cutlass/cutlass.h PATHS ${cutlass_candidates} PATH_SUFFIXES include
          NO_DEFAULT_PATH)
if(NOT QCORE_CUTLASS_INCLUDE_DIR)
  message(FATAL_ERROR "The CUDA backend needs the CUTLASS headers, and none were found. Install them with "
                      "`pip install --no-deps nvidia-cutlass==4.2.0.0`, or set QCORE_CUTLASS_DIR to a CUTLASS source "
                      "tree, or build without CUDA: QCORE_CUDA=off.")
endif()
message(STATUS "qcore: CUDA backend with ${CMAKE_CUDA_COMPILER}, CUTLASS in ${QCORE_CUTLASS_INCLUDE_DIR}")

# CUDA sources for a family of architectures, linked into libqcore.
#   qcore_add_cuda(qcore_cuda_sm80 ARCHITECTURES 80-real 90 SOURCES a_sm80.cu)
# -fmad=false: as -ffp-contract=off, see QcoreCompileOptions.cmake.
# Code that is compressed for size takes an eighth of the bytes, in the file and in memory; a driver unpacks what it loads.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  set(qcore_cuda_compression --compress-mode=size)
endif()
function(qcore_add_cuda name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "ARCHITECTURES;SOURCES")
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE qcore_options)
  target_include_directories(${name} SYSTEM PRIVATE ${QCORE_CUTLASS_INCLUDE_DIR})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${ARG_ARCHITECTURES}")
  target_compile_options(
    ${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --expt-relaxed-constexpr ${qcore_cuda_compression}
                      -Xcompiler=-Wall,-fvisibility=hidden>)
  target_sources(qcore PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()
