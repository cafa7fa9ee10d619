# Options that every object of qcore is compiled with.
#
# -ffp-contract=off: the only fused multiply-adds are those that src/numerics writes, so that every kernel gives the
# same bits.
add_library(qcore_options INTERFACE)
target_include_directories(
  qcore_options INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/src $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>)
target_compile_definitions(qcore_options INTERFACE QCORE_BUILDING)
target_compile_options(qcore_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)
# Warnings are for those who change the code. `pip install .` without ccache compiles for those who don't, and looking for
# them takes time (docs/notes/tasks.md).
if(SKBUILD AND NOT QCORE_CCACHE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-w>)
else()
  set(qcore_warnings -Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>)
  target_compile_options(qcore_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${qcore_warnings}>")
endif()
# g++ looks for unused memory when it has taken so many KB. Unrolled kernels reach the default, 128 MB, several times, and
# take up to 8% less time if the search begins later.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=400000>)
endif()
# clang 14 gives wrong results for WebAssembly where it makes vectors of a loop with fma_by_double() and a stride of two:
# the kernels' vectors are in the sources.
if(EMSCRIPTEN AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  target_compile_options(qcore_options INTERFACE -fno-vectorize)
endif()
if(QCORE_SANITIZE)
  # -g1: line numbers are what a report needs; full debug information of the unrolled kernels takes g++ minutes.
  add_compile_options(-fsanitize=${QCORE_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${QCORE_SANITIZE})
  if(QCORE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# qcore_precompile(TARGET HEADER...): headers that most sources of a target include are parsed once. With ccache they are
# not, because it takes objects with precompiled headers for new ones.
function(qcore_precompile target)
  if(NOT QCORE_CCACHE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# Wheels serve older systems than the one that builds them. glibc before 2.34 has its threads in a library of their own.
function(qcore_link_for_older_systems target)
  if(QCORE_MANYLINUX_2_28)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/manylinux/older_symbols.cpp)
    foreach(name exp pthread_mutex_trylock pthread_once pthread_setaffinity_np
                 _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
      target_link_options(${target} PRIVATE LINKER:--wrap=${name})
    endforeach()
    target_link_libraries(${target} PRIVATE -Wl,--push-state,--no-as-needed,-l:libpthread.so.0,--pop-state)
  endif()
endfunction()

# Shortens compilation of a target with sanitizers: g++ takes minutes for an unrolled kernel if it writes out the check of
# every access. The address sanitizer checks by calls instead, and the other one leaves out the errors of pointers that the
# address sanitizer finds.
function(qcore_sanitize_by_calls target)
  if(QCORE_SANITIZE MATCHES "address")
    target_compile_options(${target} PRIVATE --param=asan-instrumentation-with-call-threshold=0)
  endif()
  if(QCORE_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=null,object-size,pointer-overflow)
  endif()
endfunction()

# Sources of one instruction set, linked into libqcore and chosen at run time.
#   qcore_add_isa(qcore_avx2 FLAGS -mavx2 SOURCES a_avx2.cpp b_avx2.cpp)
function(qcore_add_isa name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "FLAGS;SOURCES")
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE qcore_options)
  target_compile_options(${name} PRIVATE ${ARG_FLAGS})
  qcore_sanitize_by_calls(${name})
  if(QCORE_SANITIZE MATCHES "undefined")
    target_compile_options(${name} PRIVATE -fno-sanitize=alignment)
  endif()
  list(LENGTH ARG_SOURCES sources)
  if(sources GREATER 4)
    if("-mavx2" IN_LIST ARG_FLAGS)
      qcore_precompile(${name} <immintrin.h>)
    endif()
    qcore_precompile(${name} <algorithm> <cstdint> <cstring>)
  endif()
  if(QCORE_AVX2_ONLY AND NOT name MATCHES "avx2|generic128")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    target_sources(qcore PRIVATE $<TARGET_OBJECTS:${name}>)
  endif()
endfunction()
