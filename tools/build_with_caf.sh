#!/bin/sh
# Builds Troupe against a CAF source tree (0.18 and later have one for CMake) instead of the system's, and runs the
# tests of actors and binary that do not depend on CAF 0.17's test coordinator.
#
# Usage: tools/build_with_caf.sh FOLDER [JOBS]. Builds in build/caf and build/with-caf.
set -e
caf=$(cd "$1" && pwd)
jobs=${2:-$(nproc)}
cd "$(dirname "$0")/.."
launcher=$(command -v ccache || true)
cmake -S "$caf" -B build/caf -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_INSTALL_PREFIX="$PWD/build/caf/prefix" \
  -DCAF_ENABLE_EXAMPLES=OFF -DCAF_ENABLE_TESTING=OFF -DCAF_ENABLE_NET_MODULE=OFF -DCAF_ENABLE_OPENSSL_MODULE=OFF
cmake --build build/caf --target install -j "$jobs"
cmake --preset release -B build/with-caf -DCMAKE_PREFIX_PATH="$PWD/build/caf/prefix"
cmake --build build/with-caf -j "$jobs" --target troupe actors_test
build/with-caf/tests/actors_test
TROUPE_BINARY="$PWD/build/with-caf/troupe" python3 tests/system/cli_test.py
