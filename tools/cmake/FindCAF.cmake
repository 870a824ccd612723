# Imported targets CAF::core and CAF::io for the CAF of the system's package manager, or in
# CMAKE_PREFIX_PATH. CAF 0.17 has no CMake config; newer versions have one with the same target
# names.
include(FindPackageHandleStandardArgs)
find_package(CAF CONFIG QUIET COMPONENTS ${CAF_FIND_COMPONENTS})
if(TARGET CAF::core)
  # A target that is missing would be reported only where it is linked.
  foreach(component ${CAF_FIND_COMPONENTS})
    if(NOT TARGET CAF::${component})
      message(FATAL_ERROR "CAF ${CAF_VERSION} in ${CAF_DIR} has no module '${component}', which the processes of a "
              "topology communicate with: build it with CAF_ENABLE_IO_MODULE=ON")
    endif()
  endforeach()
  find_package_handle_standard_args(CAF CONFIG_MODE)
  return()
endif()
find_path(CAF_INCLUDE_DIR caf/all.hpp)
foreach(component core io)
  find_library(CAF_${component}_LIBRARY caf_${component})
  if(CAF_${component}_LIBRARY AND NOT TARGET CAF::${component})
    add_library(CAF::${component} UNKNOWN IMPORTED)
    set_target_properties(CAF::${component} PROPERTIES
      IMPORTED_LOCATION "${CAF_${component}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}")
    set(CAF_${component}_FOUND TRUE)
  endif()
endforeach()
if(TARGET CAF::core)
  find_package(Threads REQUIRED)
  set_property(TARGET CAF::core PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
if(TARGET CAF::io)
  set_property(TARGET CAF::io PROPERTY INTERFACE_LINK_LIBRARIES CAF::core)
endif()
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_INCLUDE_DIR HANDLE_COMPONENTS)
