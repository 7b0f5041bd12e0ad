#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Makes sure that the tools which are not Python packages are there. On Debian and Ubuntu as root it
# installs what is missing; elsewhere it says what to install.
# Usage: scripts/setup_system.sh [etcd|sglang]
#   etcd: with the etcd and openssl that tests start, on ports of their own
#   sglang: with what SGLang compiles against at its first request
set -eu
WITH="${1:-}"
PYTHON="${PYTHON:-python3}"

missing() {
  command -v make >/dev/null || echo make
  command -v g++ >/dev/null || echo g++
  command -v git >/dev/null || echo git
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v "$PYTHON" >/dev/null || { echo python3; echo python3-dev; echo python3-venv; return; }
  "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
  "$PYTHON" -c 'import os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null ||
    echo python3-dev
  printf '#include <gtest/gtest.h>\n' | g++ -x c++ -fsyntax-only - 2>/dev/null || echo libgtest-dev
  printf '#include <infiniband/verbs.h>\n' | g++ -x c++ -fsyntax-only - 2>/dev/null ||
    echo libibverbs-dev
  [ "$WITH" != etcd ] || command -v etcd >/dev/null || echo etcd-server
  [ "$WITH" != etcd ] || command -v openssl >/dev/null || echo openssl
  [ "$WITH" != sglang ] || has_openssl || echo libssl-dev
}

has_openssl() {
  printf '#include <openssl/sha.h>\n' | g++ -x c++ -fsyntax-only - 2>/dev/null
}

packages=$(missing | tr '\n' ' ')
[ -n "$packages" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing: $packages"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2086  # one word per package
  apt-get install -y -qq --no-install-recommends $packages >/dev/null
  packages=$(missing | tr '\n' ' ')
  [ -n "$packages" ] || exit 0
fi
echo "missing: $packages" >&2
echo "install them (names are Debian's), then run make again" >&2
exit 1
