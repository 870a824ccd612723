#!/usr/bin/env bash
# Runs every fuzz target under libFuzzer with address and undefined-behaviour sanitizers, one after the other.
# Usage: tools/fuzz.sh [seconds per target, default 600]. Findings are kept in build/fuzz/findings and fail the run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
cmake --preset fuzz > /dev/null
mapfile -t targets < <(cd tests/fuzz && ls *.cpp | sed -n 's/\.cpp$//p' | grep -v '^replay_main$')
cmake --build build/fuzz --target "${targets[@]/#/fuzz_}"
mkdir -p build/fuzz/findings
for target in "${targets[@]}"; do
  echo "== $target for $seconds s"
  mkdir -p "build/fuzz/corpus/$target"
  "build/fuzz/tests/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" 2>&1 |
    grep -E 'ERROR|SUMMARY|Test unit|number_of_executed_units|Done' || true
  if compgen -G "build/fuzz/findings/$target-*" > /dev/null; then
    echo "$target: findings in build/fuzz/findings" >&2
    exit 1
  fi
done
