# `cmake --install`: the package for applications, and the program. find_package(Troupe) and
# pkg-config provide one library, independent of the tree's folders.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The objects of a target and of all targets of ours that it uses, and the libraries of others.
function(troupe_package_parts target objects_out others_out)
  set(objects)
  set(others)
  set(seen)
  set(pending ${target})
  while(pending)
    list(POP_FRONT pending each)
    if(each IN_LIST seen OR each STREQUAL "troupe_options" OR each STREQUAL "unchecked_operations")
      continue()
    endif()
    list(APPEND seen ${each})
    set(imported TRUE)
    if(TARGET ${each})
      get_target_property(imported ${each} IMPORTED)
    endif()
    if(imported)
      list(APPEND others ${each})
      continue()
    endif()
    get_target_property(type ${each} TYPE)
    set(property INTERFACE_LINK_LIBRARIES)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      set(property LINK_LIBRARIES)
      list(APPEND objects $<TARGET_OBJECTS:${each}>)
      # Objects of other targets that it includes.
      get_target_property(sources ${each} SOURCES)
      list(FILTER sources INCLUDE REGEX "^\\$<TARGET_OBJECTS:")
      list(APPEND objects ${sources})
    endif()
    get_target_property(libraries ${each} ${property})
    if(libraries)
      list(APPEND pending ${libraries})
    endif()
  endwhile()
  # Not used by our headers, and header-only.
  list(REMOVE_ITEM others nlohmann_json::nlohmann_json Boost::headers)
  set(${objects_out} ${objects} PARENT_SCOPE)
  set(${others_out} ${others} PARENT_SCOPE)
endfunction()

set(boost_libraries)  # for troupe.pc
if(TROUPE_CUDA_EMULATION)
  find_package(Boost 1.74 REQUIRED COMPONENTS context)  # also when building the package
  set(boost_libraries " -lboost_context")
endif()
troupe_package_parts(actors objects others)
add_library(package STATIC ${objects})
set_target_properties(package PROPERTIES OUTPUT_NAME troupe EXPORT_NAME troupe LINKER_LANGUAGE CXX)
target_compile_features(package INTERFACE cxx_std_20)
target_include_directories(package INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
list(REMOVE_ITEM others CAF::core CAF::io)
target_link_libraries(package PUBLIC CAF::io CAF::core PRIVATE ${others})
set_target_properties(troupe PROPERTIES EXPORT_NAME program)

install(TARGETS package troupe EXPORT TroupeTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY tools/demo_model/model/ DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/demo_model)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The headers are a separate component: those that an application includes, and their includes.
install(CODE "set(source ${PROJECT_SOURCE_DIR})\nset(binary ${PROJECT_BINARY_DIR}/include)\nset(roots actors/module.hpp actors/shutdown_guard.hpp)")
install(SCRIPT tools/cmake/TroupeHeaders.cmake)
install(DIRECTORY ${PROJECT_BINARY_DIR}/include/troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
install(EXPORT TroupeTargets NAMESPACE Troupe:: DESTINATION ${package_dir})
configure_package_config_file(tools/cmake/TroupeConfig.cmake.in ${PROJECT_BINARY_DIR}/TroupeConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TroupeConfig.cmake ${PROJECT_BINARY_DIR}/TroupeConfigVersion.cmake
  tools/cmake/FindCAF.cmake DESTINATION ${package_dir})
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(tools/cmake/troupe.pc.in ${PROJECT_BINARY_DIR}/troupe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/troupe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
