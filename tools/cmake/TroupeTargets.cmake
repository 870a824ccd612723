# Shared functions: a folder of code is one library, its folder of tests is one executable.

add_library(troupe_options INTERFACE)
target_compile_features(troupe_options INTERFACE cxx_std_20)
target_include_directories(troupe_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(troupe_options INTERFACE -Wall -Wextra -Wconversion -Werror
  -Wno-missing-field-initializers
  # Failed checks name files of the tree, wherever it was built; clones of the tree can share a compiler cache.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=
  # False alarms in GCC 12 that depend on what it inlines.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
if(CMAKE_UNITY_BUILD)
  # Several files as one, which saves half of the time to compile: to GCC the first of them looks like a header, whose
  # coroutines should keep nothing of an anonymous namespace.
  target_compile_options(troupe_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(TROUPE_SANITIZE)
  target_compile_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(troupe_options INTERFACE -fsanitize=${TROUPE_SANITIZE})
endif()
if(TROUPE_SANITIZE MATCHES undefined)
  # Null pointers crash on first use anyway, with a report under the address sanitizer. Checks of
  # null, object sizes and dynamic types at every access take a quarter of the compile time. Pointers that leave their
  # object are reported by the address sanitizer when they are used; checking their arithmetic takes another tenth.
  target_compile_options(troupe_options INTERFACE -fno-sanitize=null,object-size,vptr,pointer-overflow)
endif()
if(TROUPE_SANITIZE STREQUAL thread)
  # The sanitizer cannot follow Asio's fences; Asio's queues are guarded by mutexes as well.
  target_compile_definitions(troupe_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# What is set by some of the libraries' packages; precompiled headers have to be compiled with the same.
target_compile_definitions(troupe_options INTERFACE _FILE_OFFSET_BITS=64)

# The standard library's headers, 2 of 15 seconds to compile an average unit, are compiled once for all targets with the
# same options: as libraries, and as tests, which have Boost.Test's as well. Other options are an error (-Winvalid-pch).
set(TROUPE_STANDARD_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint>
  <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span>
  <sstream> <string> <string_view> <thread> <unordered_map> <unordered_set> <utility> <variant> <vector>)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/standard_headers.cpp CONTENT "")
add_library(standard_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/standard_headers.cpp)
target_link_libraries(standard_headers PRIVATE troupe_options)

# troupe_precompile_headers(<target> <header>...|REUSE_FROM <target>)
function(troupe_precompile_headers target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    return()
  endif()
  if("${ARGV1}" STREQUAL REUSE_FROM)
    target_precompile_headers(${target} ${ARGN})
    target_compile_options(${target} PRIVATE -fPIC)  # as the libraries, also in a program
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
troupe_precompile_headers(standard_headers ${TROUPE_STANDARD_HEADERS})

# runtime/cache -> runtime_cache
function(troupe_target_name folder out)
  string(REPLACE "/" "_" name "${folder}")
  set(${out} "${name}" PARENT_SCOPE)
endfunction()

# troupe_library(<folder> [dependency...]): every .cpp of the folder (not of its subfolders), one static library.
# A dependency is another folder, or any CMake target. It is built when a program needs it.
function(troupe_library folder)
  troupe_target_name(${folder} name)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  if(sources)
    add_library(${name} STATIC EXCLUDE_FROM_ALL ${sources})
    if(NOT folder STREQUAL actors)  # which has CAF's as well
      troupe_precompile_headers(${name} REUSE_FROM standard_headers)
    endif()
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(${name} ${scope} troupe_options)
  foreach(dependency ${ARGN})
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(${name} ${scope} ${dependency})
  endforeach()
endfunction()

# Generous: ends tests that hang. A sanitizer takes several times as long.
if(TROUPE_SANITIZE)
  set(TROUPE_TEST_TIMEOUT 1800)
else()
  set(TROUPE_TEST_TIMEOUT 600)
endif()

# The main functions of the tests and of the fuzz targets' replay, compiled once for all programs.
add_library(tests_main OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/test_main.cpp)
target_compile_definitions(tests_main PRIVATE BOOST_TEST_DYN_LINK)
target_compile_options(tests_main PRIVATE -Og)  # as the tests
troupe_precompile_headers(tests_main <boost/test/unit_test.hpp> ${TROUPE_STANDARD_HEADERS})
target_link_libraries(tests_main PRIVATE troupe_options Boost::unit_test_framework)
add_library(tests_replay_main OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cpp)
target_link_libraries(tests_replay_main PRIVATE troupe_options)

# What tests are compiled with.
add_library(troupe_test_options INTERFACE)
if(TROUPE_SANITIZE MATCHES address)
  # Marking where the scope of each temporary of a test begins and ends takes a third of the time to compile it. The
  # libraries, which it tests, have the marks.
  target_compile_options(troupe_test_options INTERFACE -fno-sanitize-address-use-after-scope)
endif()

# troupe_tests(<folder> [dependency...] [ONLY <file>...] [RELEASE <file>...] [SKIP_RETURN_CODE <status>]):
# tests/<folder>/*_test.cpp, or those files of them, as one Boost.Test executable, with a ctest entry for each file:
# <folder>/<file without .cpp>.
#
# `make test` runs a test in one build, that with the address sanitizer. The release build has those files, too, that
# RELEASE names: their results depend on how the code is compiled, they need a GPU (which the release build computes
# with), or they do less under a sanitizer (kSanitized). Programs without such files are targets to
# build there by hand.
function(troupe_tests folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SKIP_RETURN_CODE" "ONLY;RELEASE")
  troupe_target_name(${folder} name)
  if(CMAKE_BUILD_TYPE STREQUAL Release AND arg_RELEASE)
    set(arg_ONLY ${arg_RELEASE})
  elseif(NOT arg_ONLY)
    set(arg_ONLY *_test.cpp)
  endif()
  list(TRANSFORM arg_ONLY PREPEND ${PROJECT_SOURCE_DIR}/tests/${folder}/)
  file(GLOB sources CONFIGURE_DEPENDS ${arg_ONLY})
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_test ${sources} $<TARGET_OBJECTS:tests_main>)
  target_compile_definitions(${name}_test PRIVATE BOOST_TEST_DYN_LINK
    TROUPE_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden" TROUPE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name}_test PRIVATE troupe_options troupe_test_options $<TARGET_NAME_IF_EXISTS:${name}>
    Boost::unit_test_framework)
  foreach(dependency ${arg_UNPARSED_ARGUMENTS})
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(${name}_test PRIVATE ${dependency})
  endforeach()
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(NOT folder MATCHES "^kernels")
    # Compiled in two thirds of the time of -O2. What is tested has the options of its own target. Kernels are compared
    # with reference loops in the tests, which take long.
    target_compile_options(${name}_test PRIVATE -Og)
    if(NOT folder STREQUAL actors)  # which shares those of the actors
      troupe_precompile_headers(${name}_test REUSE_FROM tests_main)
    endif()
  elseif(TROUPE_SANITIZE)
    target_compile_options(${name}_test PRIVATE -O1)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL Release AND NOT arg_RELEASE)
    set_target_properties(${name}_test PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  foreach(source ${sources})
    get_filename_component(file ${source} NAME_WE)
    add_test(NAME ${folder}/${file} COMMAND ${name}_test --catch_system_errors=no --file=${file}.cpp)
    set_tests_properties(${folder}/${file} PROPERTIES TIMEOUT ${TROUPE_TEST_TIMEOUT})
    if(arg_SKIP_RETURN_CODE)
      set_tests_properties(${folder}/${file} PROPERTIES SKIP_RETURN_CODE ${arg_SKIP_RETURN_CODE})
    endif()
  endforeach()
endfunction()

# troupe_tool(<name> <source> [dependency...]): a program that ships with the tests (replayers, benchmarks). With a
# sanitizer those are built that a test runs.
function(troupe_tool name source)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/${source})
  if(TROUPE_SANITIZE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  troupe_precompile_headers(${name} REUSE_FROM standard_headers)
  target_link_libraries(${name} PRIVATE troupe_options)
  foreach(dependency ${ARGN})
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(${name} PRIVATE ${dependency})
  endforeach()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

# troupe_fuzzer(<name> [dependency...]): tests/fuzz/<name>.cpp. With the fuzz preset a libFuzzer binary; otherwise the
# same code replays tests/fuzz/corpus/<name> in ctest.
function(troupe_fuzzer name)
  set(sources ${PROJECT_SOURCE_DIR}/tests/fuzz/${name}.cpp)
  if(NOT TROUPE_FUZZ)
    list(APPEND sources $<TARGET_OBJECTS:tests_replay_main>)
  endif()
  add_executable(fuzz_${name} ${sources})
  troupe_precompile_headers(fuzz_${name} REUSE_FROM standard_headers)
  target_link_libraries(fuzz_${name} PRIVATE troupe_options)
  foreach(dependency ${ARGN})
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(fuzz_${name} PRIVATE ${dependency})
  endforeach()
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(TROUPE_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  elseif(CMAKE_BUILD_TYPE STREQUAL Release)
    set_target_properties(fuzz_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    add_test(NAME fuzz/${name} COMMAND fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  endif()
endfunction()
