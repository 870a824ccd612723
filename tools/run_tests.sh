#!/usr/bin/env bash
# Runs the tests of one build folder and prints the slowest: tools/run_tests.sh FOLDER JOBS
set -euo pipefail
folder=$1
jobs=$2
ctest --test-dir "$folder" --output-on-failure -LE long -j "$jobs"
echo "The slowest in $folder, in seconds (the average of all runs here):"
# One line per test (name, runs, seconds), then "---" and the names of failed tests.
# awk reads to the end: a reader that stops early would fail the pipe with SIGPIPE.
sed '/^---$/,$d' "$folder/Testing/Temporary/CTestCostData.txt" | sort -k3 -g -r |
  awk 'NR <= 8 { printf "%8.1f  %s\n", $3, $1 }'
