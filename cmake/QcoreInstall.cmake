# One set of rules for `cmake --install` and for the wheel, where the prefix is the package's folder.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qcore)
# A DLL lies with the programs that need it, or, in a wheel, where qcore/_distribution.py says.
if(SKBUILD)
  set(dll_dir ${CMAKE_INSTALL_LIBDIR})
else()
  set(dll_dir ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS qcore EXPORT qcoreTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${dll_dir})
install(DIRECTORY include/qcore DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT qcoreTargets NAMESPACE qcore:: DESTINATION ${package_dir})
configure_package_config_file(cmake/qcoreConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/qcoreConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/qcoreConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/qcoreConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/qcoreConfigVersion.cmake
        DESTINATION ${package_dir})
