# Install rules: headers, library, package files and the generate program as kvcache-generate.

include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/kvcache")
install(TARGETS kvcache_core kvcache EXPORT kvcacheTargets FILE_SET HEADERS)
install(EXPORT kvcacheTargets NAMESPACE kvcache:: DESTINATION "${package_folder}")
if(TARGET kvcache_cuda)
  install(TARGETS kvcache_cuda EXPORT kvcacheCudaTargets)
  install(EXPORT kvcacheCudaTargets NAMESPACE kvcache:: DESTINATION "${package_folder}")
endif()
configure_package_config_file(cmake/kvcacheConfig.cmake.in kvcacheConfig.cmake
                              INSTALL_DESTINATION "${package_folder}")
write_basic_package_version_file(kvcacheConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/LibTorch.cmake "${CMAKE_CURRENT_BINARY_DIR}/kvcacheConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/kvcacheConfigVersion.cmake"
        DESTINATION "${package_folder}")

if(TARGET generate)
  file(RELATIVE_PATH to_library "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(generate PROPERTIES INSTALL_RPATH "$ORIGIN/${to_library}" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS generate DESTINATION "${CMAKE_INSTALL_BINDIR}")
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
    file(RENAME \"\${folder}/generate\" \"\${folder}/kvcache-generate\")
    list(TRANSFORM CMAKE_INSTALL_MANIFEST_FILES
         REPLACE \"/${CMAKE_INSTALL_BINDIR}/generate\$\" \"/${CMAKE_INSTALL_BINDIR}/kvcache-generate\")")
endif()
