#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# The CI set, step by step; every step runs, the summary at the end says which failed.
# Usage: VENV=.venv scripts/run_tests.sh [full]
# `full` also runs the tests marked slow and, through RADIX_TEST_FULL=1, the long versions of others.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

VENV=$(cd "${VENV:-.venv}" && pwd) || exit 1
MODE="${1:-quick}"
JOBS=$(nproc)
IN_ENGINES=(tests/e2e/vllm_offload tests/e2e/sglang_hicache) # run where their engine is installed
MARKS=(-m "not slow")
if [ "$MODE" = full ]; then
  export RADIX_TEST_FULL=1
  MARKS=()
fi
SUMMARY=()
FAILED=0

# step NAME COMMAND...: run it, note the time and the outcome. A command that ends with 77 says that
# it cannot be run here; where CI is set, it has to be.
step() {
  local name="$1" begin=$SECONDS outcome=ok status=0
  shift
  printf '\n=== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" = 77 ] && [ -z "${CI:-}" ]; then
    outcome=skipped
  elif [ "$status" != 0 ]; then
    outcome=FAILED
    FAILED=1
  fi
  SUMMARY+=("$(printf '%-28s %-7s %4d s' "$name" "$outcome" $((SECONDS - begin)))")
}

# The thread sanitizer of g++ 12 does not start on kernels with 32 bits of mmap randomness.
fixed_addresses() {
  if setarch "$(uname -m)" -R true 2>/dev/null; then setarch "$(uname -m)" -R "$@"; else "$@"; fi
}

build() {
  echo "building, which takes minutes; its log is build/$1.log"
  cmake --preset "$1" >build/"$1".log 2>&1 && cmake --build --preset "$1" -j "$JOBS" >>build/"$1".log 2>&1 || {
    tail -n 60 build/"$1".log
    return 1
  }
}

cpp_tests() {
  build "$1" && fixed_addresses ctest --preset "$1" -j "$JOBS" --no-tests=error
}

wheel() {
  local out=build/wheel
  rm -rf "$out" && mkdir -p "$out" || return 1
  "$VENV/bin/pip" -q wheel --no-deps --no-build-isolation \
    --config-settings=build-dir=build/python -w "$out" . || return 1
  python3 -m venv "$out/venv" && "$out/venv/bin/pip" -q --disable-pip-version-check install "$out"/*.whl ||
    return 1
  local script="$PWD/scripts/check_wheel.py"
  local python="$PWD/$out/venv/bin/python"
  (cd "$(mktemp -d)" && "$python" "$script")
}

stubtest() {
  "$VENV/bin/stubtest" radixshmem_core._core --allowlist scripts/stubtest_allowlist.txt
}

examples() {
  local count=0
  for example in examples/*.py; do
    [ -e "$example" ] || continue
    timeout 120 "$VENV/bin/python" "$example" || return 1
    count=$((count + 1))
  done
  [ "$count" -gt 0 ] || { echo "examples/ holds no example"; return 1; }
}

# vllm VERSION [PYTEST ARGUMENT...]: the wheel beside real vLLM engines on the CPU.
vllm() {
  local version="$1" env="build/vllm-$1"
  shift
  "$VENV/bin/python" scripts/vllm_sources.py 0.33.0 build/vllm-sources/0.33.0 || return 1
  VENV="$VENV" bash scripts/vllm_env.sh "$env" "$version" "$(echo build/wheel/*.whl)" &&
    "$VENV/bin/mypy" --strict --follow-imports=silent --ignore-missing-imports \
      --python-executable "$env/bin/python" -p radixshmem.integrations.vllm_offload &&
    PYTHONSAFEPATH=1 "$env/bin/pytest" -q -p no:cacheprovider -W ignore "$@" tests/e2e/vllm_offload
}

# sglang VERSION [PYTEST ARGUMENT...]: the wheel beside real SGLang servers on the CPU.
sglang() {
  local version="$1" env="build/sglang-$1"
  shift
  "$VENV/bin/python" scripts/sglang_sources.py build/sglang-sources 0.5.{20,21,22,23} || return 1
  VENV="$VENV" bash scripts/sglang_env.sh "$env" "$version" "$(echo build/wheel/*.whl)" &&
    "$VENV/bin/mypy" --strict --follow-imports=silent --ignore-missing-imports \
      --python-executable "$env/bin/python" -p radixshmem.integrations.sglang_hicache &&
    PYTHONSAFEPATH=1 "$env/bin/pytest" -q -p no:cacheprovider -W ignore "$@" tests/e2e/sglang_hicache
}

mkdir -p build
step "C++ tests" cpp_tests test
step "C++ tests, address+undefined" cpp_tests asan
step "C++ tests, threads" cpp_tests tsan
step "RDMA in a virtual machine" scripts/rdma_tests.sh
step "Python tests" "$VENV/bin/python" -m pytest -q "${IN_ENGINES[@]/#/--ignore=}" "${MARKS[@]}"
step "examples" examples
step "wheel from another folder" wheel
step "vLLM 0.32.0" vllm 0.32.0 "${MARKS[@]}"
if [ "$MODE" = full ]; then
  for version in 0.31.0 0.30.0; do
    step "vLLM $version" vllm "$version" -m "not slow"
  done
fi
step "SGLang 0.5.23" sglang 0.5.23 "${MARKS[@]}"
step "ruff check" "$VENV/bin/ruff" check .
step "ruff format" "$VENV/bin/ruff" format --check .
step "mypy --strict" "$VENV/bin/mypy" --strict -p radixshmem -p radixshmem_core
step "mypy of the typing tests" "$VENV/bin/mypy" --strict tests/typing
step "stubtest" stubtest
step "include order" "$VENV/bin/python" scripts/check_includes.py
step "licence lines" "$VENV/bin/python" scripts/check_spdx.py

printf '\n=== summary\n'
printf '%s\n' "${SUMMARY[@]}"
[ "$FAILED" = 0 ] && echo "all passed in $SECONDS s"
exit "$FAILED"
