# Installs a build into a prefix and uses it as a program of another project does.
# cmake -DSOURCE=... -DBUILD=... -DWORK=... -DVERSION=... [-DTOOLCHAIN=... -DEMULATOR=...] -P installed_prefix.cmake
cmake_minimum_required(VERSION 3.24)

function(run output)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE printed ERROR_VARIABLE printed RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${printed}")
  endif()
  set(${output} "${printed}" PARENT_SCOPE)
endfunction()

function(expect text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "expected '${pattern}' in:\n${text}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(printed ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/usr)

file(GLOB_RECURSE public RELATIVE ${SOURCE}/include/qcore ${SOURCE}/include/qcore/*.h)
file(GLOB_RECURSE installed RELATIVE ${WORK}/usr/include/qcore ${WORK}/usr/include/qcore/*)
if(NOT public STREQUAL installed)
  message(FATAL_ERROR "installed headers: ${installed}\nexpected: ${public}")
endif()
file(REAL_PATH ${WORK}/usr/lib/libqcore.so library)
expect(${library} "libqcore\\.so\\.${VERSION}$")
# The prefix must stand without the tree that it came from.
file(GLOB package ${WORK}/usr/lib/cmake/qcore/*.cmake)
foreach(file ${package})
  file(READ ${file} text)
  string(FIND "${text}" ${SOURCE} found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} names ${SOURCE}")
  endif()
endforeach()

set(toolchain)
if(TOOLCHAIN)
  set(toolchain -DCMAKE_TOOLCHAIN_FILE=${TOOLCHAIN})
endif()
run(printed ${CMAKE_COMMAND} -S ${SOURCE}/examples/cpp_consumer -B ${WORK}/consumer -DCMAKE_PREFIX_PATH=${WORK}/usr
    ${toolchain})
run(printed ${CMAKE_COMMAND} --build ${WORK}/consumer)
# The library must be found through the program's own search path.
run(printed ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${EMULATOR} ${WORK}/consumer/consumer)
expect("${printed}" "^qcore ${VERSION}: 16 x 96 weights, 5\\.00 bits each\nkernel: (int8_[a-z0-9_]+|reference)\n")
expect("${printed}" "error: linear: x has shape \\[2, 16\\], expected its last dimension to be K = 96")

file(
  WRITE ${WORK}/wrong/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES NONE)\nfind_package(qcore 99 CONFIG REQUIRED)\n")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${WORK}/wrong -B ${WORK}/wrong/build -DCMAKE_PREFIX_PATH=${WORK}/usr
  OUTPUT_QUIET ERROR_VARIABLE printed RESULT_VARIABLE status)
if(status EQUAL 0)
  message(FATAL_ERROR "find_package(qcore 99) found version ${VERSION}")
endif()
expect("${printed}" "version \"99\"")
