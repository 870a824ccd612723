#!/usr/bin/env bash
# Runs the clients that people use against the binary, each in an environment under build/ with the packages that
# tests/system/*_requirements.txt names. A check that fails does not end the others; the last line says how each of them
# went. Usage: tools/test_clients.sh [NAME of tests/system/NAME_check.py ...]
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

[[ $# -gt 0 ]] || set -- clients instructor schema bfcl
failed=0
results=()
for name in "$@"; do
  packages=$name
  [[ $name == schema ]] && packages=clients
  environment "$packages"
  echo "tests/system/${name}_check.py"
  begin=$SECONDS
  result=passed
  "build/venv-$packages/bin/python" "tests/system/${name}_check.py" || { result=FAILED; failed=1; }
  results+=("$name $result in $((SECONDS - begin)) s")
done
printf -v summary ', %s' "${results[@]}"
echo "test-clients: ${summary:2}"
exit "$failed"
