# Toolchain file that cross-compiles for Linux on RISC-V with Debian's g++-riscv64-linux-gnu, and runs what it has built in
# qemu-user:
#   cmake -S . -B build/riscv64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/riscv64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(CMAKE_CXX_COMPILER riscv64-linux-gnu-g++)
# g++ before 13 calls a library for atomic operations on single bytes.
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT -latomic)

# The dynamic loader of the target lies where its C library does.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libc.so.6 OUTPUT_VARIABLE target_libc
                OUTPUT_STRIP_TRAILING_WHITESPACE)
get_filename_component(target_root "${target_libc}/../.." ABSOLUTE)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-riscv64;-L;${target_root})
