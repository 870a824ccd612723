#!/usr/bin/env bash
# Builds and runs all tests: release, then address+undefined and thread sanitizers. While the tests of one build run,
# which mostly wait, the next is built at the lowest priority. Usage: tools/test_all.sh JOBS
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
builder=
trap '[[ -z $builder ]] || kill "$builder" 2> /dev/null || true' EXIT

# test_while_building PRESET [NEXT]
test_while_building() {
  if (($# > 1)); then
    cmake --preset "$2" > /dev/null
    nice -n 19 ninja -C "build/$2" -j "$jobs" > "build/$2.log" 2>&1 &
    builder=$!
  fi
  tools/run_tests.sh "build/$1" "$jobs"
  if (($# > 1)); then
    echo "Building $2"
    wait "$builder" || { grep -v '^\[' "build/$2.log" >&2; exit 1; }
    builder=
  fi
}

cmake --preset release > /dev/null
cmake --build --preset release -j "$jobs"
test_while_building release asan
test_while_building asan tsan
test_while_building tsan
