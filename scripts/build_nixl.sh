#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Makes the data plane `nixl` usable: installs NIXL's wheel for a Python, which brings UCX with it,
# or builds it from a source folder; says at the end which it did.
# Usage: [PYTHON=python3] scripts/build_nixl.sh [--source DIR]
#   --source DIR  build this checkout of github.com/ai-dynamo/nixl; needs UCX 1.19 or newer with its
#                 headers (PKG_CONFIG_PATH), a C++ compiler, and meson's dependencies
# The wheel names torch as a dependency, which only its tensors need: it is not installed.
set -euo pipefail

PYTHON="${PYTHON:-python3}"
WHEEL=nixl-cu12
VERSION=1.5.1
SOURCE=""
case "${1:-}" in
  "") ;;
  --source) SOURCE="${2:?--source needs the folder of a checkout}" ;;
  *)
    echo "build_nixl.sh: unknown argument $1; see the head of the script" >&2
    exit 2
    ;;
esac

NAMES='("nixl_cu13", "nixl_cu12", "nixl")'
works() {
  "$PYTHON" - 2>/dev/null <<EOF
import importlib, importlib.util
name = next(name for name in $NAMES if importlib.util.find_spec(name))
importlib.import_module(f"{name}._bindings")
EOF
}
version() { "$PYTHON" -c 'import importlib.metadata as m; print(
  *(f"{d.name} {d.version}" for d in m.distributions() if d.name.split("-")[0] == "nixl"))'; }

if [ -z "$SOURCE" ] && works; then
  echo "nixl: nothing to do, $(version) works with $("$PYTHON" -V)"
  exit 0
fi

pip() { "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }
pip 'numpy>=1.24'
if [ -n "$SOURCE" ]; then
  pip --force-reinstall --no-deps "$SOURCE"
else
  pip --no-deps "$WHEEL==$VERSION"
fi

works || {
  echo "nixl: installed, but its import fails:" >&2
  "$PYTHON" -c "import ${WHEEL//-/_}._bindings"
  exit 1
}
if [ -n "$SOURCE" ]; then
  echo "nixl: built and installed $(version) from $SOURCE"
else
  echo "nixl: installed the wheel $(version)"
fi
