#!/usr/bin/env bash
# Runs the tests of one build folder and prints the slowest: tools/run_tests.sh FOLDER JOBS
# What passed with the same programs and data is not run again, except with ALL=1 in the environment.
set -euo pipefail
folder=$(realpath "$1")
jobs=$2
unchanged_tests=$(dirname "$0")/unchanged_tests.py
unchanged=$("$unchanged_tests" "$folder" list)
[[ ${ALL:-} != 1 ]] || unchanged='^ $'
# tests [OPTION...]
tests() { ctest --test-dir "$folder" -LE long -E "$unchanged" "$@"; }
count() { tail -1 | cut -d : -f 2; }  # of "Total Tests: N"
all=$(ctest --test-dir "$folder" -LE long -N | count)
left=$(tests -N 2> /dev/null | count)
((left == all)) ||
  echo "$((all - left)) of$all tests in $1 passed before with the same programs and data: not run again (ALL=1 runs them)"
if ((left > 0)); then
  status=0
  tests --output-on-failure -j "$jobs" --output-junit "$folder/Testing/results.xml" || status=$?
  "$unchanged_tests" "$folder" record "$folder/Testing/results.xml"
  ((status == 0)) || exit "$status"
fi
echo "The slowest in $1, in seconds (the average of all runs here):"
# One line per test (name, runs, seconds), then "---" and the names of failed tests.
# awk reads to the end: a reader that stops early would fail the pipe with SIGPIPE.
sed '/^---$/,$d' "$folder/Testing/Temporary/CTestCostData.txt" | sort -k3 -g -r |
  awk 'NR <= 8 { printf "%8.1f  %s\n", $3, $1 }'
