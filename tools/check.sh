#!/usr/bin/env bash
# Format, includes and clang-tidy over our own code. Usage: tools/check.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files '*.hpp' '*.cpp')
if [[ "${1:-}" == --fix ]]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run --Werror "${sources[@]}"
fi
tools/check_includes.py
# Configured for clang, whose options clang-tidy understands.
cmake --preset dev -B build/tidy -DCMAKE_CXX_COMPILER=clang++ > /dev/null
mapfile -t units < <(git ls-files 'actors/*.cpp' 'runtime/*.cpp' 'kernels/*.cpp' 'tools/*.cpp')
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/tidy
