#!/usr/bin/env bash
# tools/run_tests.sh succeeds when the tests do, however long its list of test times is: a pipe that is closed early would
# fail it. Usage: run_tests_test.sh SOURCE_FOLDER
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/Testing/Temporary"
echo 'add_test(passes true)' > "$folder/CTestTestfile.cmake"
# More than a pipe holds. ctest keeps the lines of tests it does not know.
seq 1 50000 | awk '{ printf "test_%d 1 %d\n", $1, $1 }' > "$folder/Testing/Temporary/CTestCostData.txt"
output=$("$1/tools/run_tests.sh" "$folder" 1) || { echo "tools/run_tests.sh failed with $?"; exit 1; }
[[ $(grep -c '^ *[0-9.]*  test_' <<< "$output") == 8 ]] || { echo "not 8 slowest tests in: $output"; exit 1; }
