#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Makes the data plane `mooncake` usable: installs Mooncake's wheel for a Python, with the system
# libraries that it needs, or builds it from a source folder; says at the end which it did.
# Usage: [PYTHON=python3] scripts/build_mooncake.sh [--cuda] [--source DIR]
#   --cuda        the wheel with CUDA, which needs the CUDA runtime; radixshmem moves host memory only
#   --source DIR  build this checkout of github.com/kvcache-ai/Mooncake (with its submodules)
set -euo pipefail

PYTHON="${PYTHON:-python3}"
VERSION=0.3.13.post1
WHEEL=mooncake-transfer-engine-non-cuda
SOURCE=""
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) WHEEL=mooncake-transfer-engine ;;
    --source)
      SOURCE="${2:?--source needs the folder of a checkout}"
      shift
      ;;
    *)
      echo "build_mooncake.sh: unknown argument $1; see the head of the script" >&2
      exit 2
      ;;
  esac
  shift
done

works() { "$PYTHON" -c 'import mooncake.engine' 2>/dev/null; }
version() { "$PYTHON" -c 'import importlib.metadata as m; print(
  *(f"{d.name} {d.version}" for d in m.distributions() if d.name.startswith("mooncake-transfer")))'; }

# Libraries of the system that the wheel does not bring.
missing() {
  for pair in libibverbs.so.1=libibverbs1 libnuma.so.1=libnuma1 libcurl.so.4=libcurl4; do
    "$PYTHON" -c "import ctypes; ctypes.CDLL('${pair%=*}')" 2>/dev/null || echo "${pair#*=}"
  done
}

if [ -z "$SOURCE" ] && works; then
  echo "mooncake: nothing to do, $(version) works with $("$PYTHON" -V)"
  exit 0
fi

packages=$(missing | tr '\n' ' ')
if [ -n "$packages" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "mooncake: missing: $packages(names are Debian's); install them, then run this again" >&2
    exit 1
  fi
  apt-get update -qq
  # shellcheck disable=SC2086  # one word per package
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
fi

if [ -n "$SOURCE" ]; then
  cmake -S "$SOURCE" -B "$SOURCE/build" -DCMAKE_BUILD_TYPE=Release -DUSE_CUDA=OFF -DWITH_STORE=OFF
  cmake --build "$SOURCE/build" -j "$(nproc)"
  (cd "$SOURCE" && bash scripts/build_wheel.sh)
  "$PYTHON" -m pip install --quiet --force-reinstall --no-deps "$SOURCE"/mooncake-wheel/dist/*.whl
else
  "$PYTHON" -m pip install --quiet --disable-pip-version-check "$WHEEL==$VERSION"
fi

"$PYTHON" -c 'import mooncake.engine'
if [ -n "$SOURCE" ]; then
  echo "mooncake: built and installed $(version) from $SOURCE"
else
  echo "mooncake: installed the wheel $(version)"
fi
