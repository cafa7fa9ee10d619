# Toolchain file that cross-compiles for Linux on AArch64 with Debian's g++-aarch64-linux-gnu, and runs what it has built in
# qemu-user:
#   cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# The dynamic loader of the target lies where its C library does.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libc.so.6 OUTPUT_VARIABLE target_libc
                OUTPUT_STRIP_TRAILING_WHITESPACE)
get_filename_component(target_root "${target_libc}/../.." ABSOLUTE)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;${target_root})
