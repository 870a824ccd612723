#!/usr/bin/env bash
# Format, includes and clang-tidy over our own code.
# Usage: tools/check.sh [--fix] [FILE.cpp...]   --fix applies the format; with files, clang-tidy checks only these
set -euo pipefail
cd "$(dirname "$0")/.."
fix=
units=()
for argument; do
  case $argument in
    --fix) fix=1 ;;
    -h | --help) sed -n '2,3s/^# //p' "$0"; exit ;;
    *.cpp) units+=("$argument") ;;
    *) echo "$0: '$argument' is neither an option nor a .cpp file" >&2; exit 2 ;;
  esac
done
mapfile -t sources < <(git ls-files '*.hpp' '*.cpp')
if [[ $fix ]]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run --Werror "${sources[@]}"
fi
tools/check_includes.py
tools/check_unity.py
# Configured for clang, whose options clang-tidy understands.
cmake --preset dev -B build/tidy -DCMAKE_CXX_COMPILER=clang++ > /dev/null
if ((!${#units[@]})); then
  mapfile -t units < <(git ls-files 'actors/*.cpp' 'runtime/*.cpp' 'kernels/*.cpp' 'tools/*.cpp')
fi
echo "clang-tidy of ${#units[@]} files"
printf '%s\0' "${units[@]}" |
  xargs -0 -P "$(nproc)" -n 1 sh -c 'clang-tidy --quiet -p build/tidy "$1" 2> /dev/null || { echo "failed: $1"; exit 1; }' -
