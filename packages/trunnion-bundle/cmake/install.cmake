# `cmake --install`: component `programs` (server, load tool, compiler, engines), component `library` (for find_package).

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(TRUNNION_BUNDLE_ENGINE_FOLDER ${CMAKE_INSTALL_LIBDIR}/trunnion_bundle CACHE STRING "Where engines are installed")
get_property(ENGINES GLOBAL PROPERTY TRUNNION_BUNDLE_ENGINES)
install(TARGETS ${ENGINES} LIBRARY DESTINATION ${TRUNNION_BUNDLE_ENGINE_FOLDER} COMPONENT programs)
if(TRUNNION_BUNDLE_TORCH)
  install(FILES ${PROJECT_BINARY_DIR}/engine_aoti.needs.txt DESTINATION ${TRUNNION_BUNDLE_ENGINE_FOLDER} COMPONENT programs)
endif()
install(TARGETS trunnion-compile-bundle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
add_custom_target(programs DEPENDS ${ENGINES} trunnion-compile-bundle)
if(TRUNNION_BUNDLE_SERVER)
  install(TARGETS trunnion-serve-bundle trunnion-bench-bundle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  add_dependencies(programs trunnion-serve-bundle trunnion-bench-bundle)
endif()

install(TARGETS trunnion_bundle trunnion_bundle_shared EXPORT trunnion_bundle
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/trunnion_bundle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)

set(CONFIG_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/trunnion_bundle)
install(EXPORT trunnion_bundle NAMESPACE trunnion_bundle:: FILE trunnion_bundle-targets.cmake
        DESTINATION ${CONFIG_FOLDER} COMPONENT library)
configure_package_config_file(cmake/trunnion_bundle-config.cmake.in trunnion_bundle-config.cmake
                              INSTALL_DESTINATION ${CONFIG_FOLDER} PATH_VARS TRUNNION_BUNDLE_ENGINE_FOLDER)
write_basic_package_version_file(trunnion_bundle-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/trunnion_bundle-config.cmake ${PROJECT_BINARY_DIR}/trunnion_bundle-config-version.cmake
        DESTINATION ${CONFIG_FOLDER} COMPONENT library)
