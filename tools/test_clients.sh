#!/usr/bin/env bash
# Runs the clients that people use against the binary, each in an environment under build/ with the packages that
# tests/system/*_requirements.txt names. Usage: tools/test_clients.sh [NAME of tests/system/NAME_check.py ...]
set -euo pipefail
cd "$(dirname "$0")/.."
export TROUPE_BINARY=${TROUPE_BINARY:-$PWD/build/release/troupe}

# environment NAME: with what NAME_requirements.txt lists
environment() {
  local requirements=tests/system/$1_requirements.txt folder=build/venv-$1
  cmp -s "$requirements" "$folder/requirements.txt" && return
  echo "Installing the packages of $requirements into $folder"
  python3 -m venv "$folder"
  # Of the leaderboard only the data are used: what its package requires is large.
  local options=()
  [[ $1 == bfcl ]] && options=(--no-deps)
  "$folder/bin/pip" install --quiet --disable-pip-version-check "${options[@]}" -r "$requirements"
  cp "$requirements" "$folder/requirements.txt"
}

for check in "${@:-clients instructor schema bfcl}"; do
  for name in $check; do
    packages=$name
    [[ $name == schema ]] && packages=clients
    environment "$packages"
    echo "tests/system/${name}_check.py"
    "build/venv-$packages/bin/python" "tests/system/${name}_check.py"
  done
done
