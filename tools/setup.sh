#!/usr/bin/env bash
# Installs the dependencies to build, serve and test Troupe on Debian 12: Debian packages through apt, and for the tests
# Python packages in a virtual environment under build/. Installed packages are skipped, and then no network is needed.
# Usage: tools/setup.sh [build|test]   (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build make mold pkg-config ccache libcaf-dev libboost-dev libboost-context-dev libboost-test-dev libspdlog-dev
  nlohmann-json3-dev libsimdjson-dev libpcre2-dev libutf8proc-dev libicu-dev libssl-dev libxxhash-dev zlib1g-dev
  libbenchmark-dev libsqlite3-dev libcurl4-openssl-dev libzmq3-dev cppzmq-dev libmsgpack-cxx-dev libedit-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev libtiff-dev libsndfile1-dev libhiredis-dev libyaml-cpp-dev)
if [[ "${1:-build}" == test ]]; then
  packages+=(python3 python3-venv clang clang-format clang-tidy libclang-rt-14-dev gdb iproute2 openssl redis-server)
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == *'ok installed' ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "Installing ${missing[*]}"
  as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || { echo "Not root and no sudo: install ${missing[*]} and run this again." >&2; exit 1; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

if [[ "${1:-build}" == test ]]; then
  requirements=tests/system/requirements.txt
  stamp=build/venv/requirements.txt
  if ! cmp -s "$requirements" "$stamp"; then
    echo "Installing the Python packages of the tests into build/venv"
    python3 -m venv build/venv
    build/venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" "$stamp"
  fi
fi
