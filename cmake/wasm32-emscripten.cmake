# Toolchain file that cross-compiles for WebAssembly with its 128-bit vectors, by Debian's package emscripten (clang), and runs
# what it has built in node:
#   cmake -S . -B build/wasm32 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/wasm32-emscripten.cmake
# There are no shared libraries and no threads: libqcore becomes a static library, and the caller does all tasks of a call.
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
include(/usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
set(QCORE_LIBRARY_TYPE STATIC)
set(CMAKE_CXX_FLAGS_INIT "-msimd128 -fwasm-exceptions")

# Programs read the environment and files of the process that runs them, and end with their own status. -O1: above that the
# linker rewrites all code once more, which takes it a minute.
set(CMAKE_EXE_LINKER_FLAGS_INIT
    "-O1 -sENVIRONMENT=node -sNODERAWFS=1 -sWASM_ASYNC_COMPILATION=0 -sEXIT_RUNTIME=1 -sALLOW_MEMORY_GROWTH=1 \
--pre-js ${CMAKE_CURRENT_LIST_DIR}/wasm32-environment.js")
