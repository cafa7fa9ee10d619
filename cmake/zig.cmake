# Toolchain file that cross-compiles with clang and the C libraries of the PyPI package ziglang, for Windows, macOS and Linux
# with musl:
#   pip install ziglang
#   cmake -S . -B build/windows -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DQCORE_ZIG_TARGET=x86_64-windows-gnu
# The targets that `.ci/run ports` builds are x86_64-windows-gnu and aarch64-macos. Programs for Windows run in wine where it is
# installed, those for musl as they are: libqcore becomes a static library there, as libc++ and musl are, because two shared
# objects with a libc++ each would not catch each other's exceptions.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QCORE_ZIG_TARGET)
if(NOT QCORE_ZIG_TARGET MATCHES "^(x86_64|aarch64)-(windows-gnu|macos|linux-musl)$")
  message(FATAL_ERROR "QCORE_ZIG_TARGET is '${QCORE_ZIG_TARGET}', expected such as x86_64-windows-gnu or aarch64-macos")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
if(CMAKE_MATCH_2 STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_SYSTEM_VERSION 20)
  set(CMAKE_OSX_SYSROOT "")  # the package brings its own
  set(CMAKE_INSTALL_NAME_TOOL install_name_tool CACHE STRING "Not run: search paths are written when linking")
elseif(CMAKE_MATCH_2 STREQUAL "linux-musl")
  set(CMAKE_SYSTEM_NAME Linux)
  set(QCORE_LIBRARY_TYPE STATIC)
else()
  set(CMAKE_SYSTEM_NAME Windows)
  find_program(wine NAMES wine64 wine PATHS /usr/lib/wine)
  if(wine)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${wine})
  endif()
endif()

set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)  # not while building, when nothing may run

# One program for each tool, by which CMake and ccache know a compiler. It names the version, so that ccache, which may
# compare the contents of these programs, sees a new one.
if(NOT CMAKE_CXX_COMPILER)
  execute_process(COMMAND python3 -c "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).with_name('zig'))"
                  OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${zig} version OUTPUT_VARIABLE zig_version OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  foreach(tool c++ cc ar ranlib rc)
    set(arguments ${tool})
    if(tool MATCHES "^c")
      set(arguments "${tool} -target ${QCORE_ZIG_TARGET}")
    endif()
    file(WRITE ${CMAKE_BINARY_DIR}/zig/clang-${tool}
         "#!/bin/sh\n# zig ${zig_version}\nexec '${zig}' ${arguments} \"$@\"\n")
    file(CHMOD ${CMAKE_BINARY_DIR}/zig/clang-${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endforeach()
endif()
set(CMAKE_C_COMPILER ${CMAKE_BINARY_DIR}/zig/clang-cc CACHE FILEPATH "")
set(CMAKE_CXX_COMPILER ${CMAKE_BINARY_DIR}/zig/clang-c++ CACHE FILEPATH "")
set(CMAKE_AR ${CMAKE_BINARY_DIR}/zig/clang-ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${CMAKE_BINARY_DIR}/zig/clang-ranlib CACHE FILEPATH "")
set(CMAKE_RC_COMPILER ${CMAKE_BINARY_DIR}/zig/clang-rc CACHE FILEPATH "")
