#!/usr/bin/env bash
# tools/run_tests.sh runs what has not passed yet and what has changed since, and succeeds when the tests do, however long
# its list of test times is: a pipe that is closed early would fail it. Usage: run_tests_test.sh SOURCE_FOLDER
set -euo pipefail
run_tests=$1/tools/run_tests.sh
unset ALL
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p Testing/Temporary
program() { printf '#!/bin/sh\n# %s\nexit %s\n' "$2" "$3" > "$1"; chmod +x "$1"; }
program good 1 0
program bad 1 1
printf 'add_test(good %s)\nadd_test(bad %s)\nadd_test(script true)\n' "$folder/good" "$folder/bad" > CTestTestfile.cmake
# expect STATUS NAMES: one run of the tests, with ALL as it is, has this status and runs these
expect() {
  local status=0 output names
  output=$("$run_tests" . 1 2>&1) || status=$?
  names=$(sed -n 's/^ *Start [0-9]*: //p' <<< "$output" | sort | xargs)
  [[ $status == "$1" && $names == "$2" ]] || { echo "status $status, run: $names; expected: $*. $output"; exit 1; }
  last=$output
}
expect 8 "bad good script"
expect 8 "bad"  # the others passed
program bad 2 0
expect 0 "bad script"  # the script may run any program
expect 0 ""
grep -q "3 of 3 tests in . passed before" <<< "$last" || { echo "not said: $last"; exit 1; }
program good 22 0
expect 0 "good script"
ALL=1 expect 0 "bad good script"
TROUPE_SOME_SETTING=1 expect 0 "bad good script"

# A part that is left out is told, and tried again.
printf '#!/bin/sh\necho "SKIPPED: a part"\n' > good
expect 0 "bad good script"
grep -q "^good: SKIPPED: a part$" <<< "$last" || { echo "not said: $last"; exit 1; }
expect 0 "good"
program good 1 0
expect 0 "good script"

# More than a pipe holds. ctest keeps the lines of tests it does not know.
seq 1 50000 | awk '{ printf "test_%d 1 %d\n", $1, $1 }' > Testing/Temporary/CTestCostData.txt
ALL=1 expect 0 "bad good script"
[[ $(grep -c '^ *[0-9.]*  test_' <<< "$last") == 8 ]] || { echo "not 8 slowest tests in: $last"; exit 1; }
