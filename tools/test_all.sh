#!/usr/bin/env bash
# Builds and runs all tests: release, then address+undefined and thread sanitizers. While the tests of one build run,
# which often wait, the next is built at the lowest priority. Prints how long each part took. Usage: tools/test_all.sh JOBS
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$1
builder=
trap '[[ -z $builder ]] || kill "$builder" 2> /dev/null || true' EXIT

# done_with PART, since the last one
part_start=0
done_with() {
  echo "$1 took $((SECONDS - part_start)) s"
  part_start=$SECONDS
}

# test_while_building PRESET [NEXT]
test_while_building() {
  if (($# > 1)); then
    cmake --preset "$2" > /dev/null
    nice -n 19 ninja -C "build/$2" -j "$jobs" > "build/$2.log" 2>&1 &
    builder=$!
  fi
  # More than cores: tests of a topology wait for its processes half of the time.
  tools/run_tests.sh "build/$1" $((2 * jobs + 1))
  done_with "Testing build/$1"
  if (($# > 1)); then
    echo "Building $2"
    wait "$builder" || { grep -v '^\[' "build/$2.log" >&2; exit 1; }
    builder=
    done_with "The rest of building $2"
  fi
}

cmake --preset release > /dev/null
cmake --build --preset release -j "$jobs"
done_with "Building release"
test_while_building release asan
test_while_building asan tsan
test_while_building tsan
