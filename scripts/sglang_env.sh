#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Makes an environment with SGLang on the CPU and a wheel of this project in it.
# Usage: VENV=.venv scripts/sglang_env.sh ENV VERSION WHEEL
# uv is taken from VENV. Wheels of folders that pip is configured to look into are found too.
# SGLang's own requirements are for CUDA; scripts/sglang_requirements.txt is what it needs here.
set -euo pipefail
cd "$(dirname "$0")/.."

ENV="$1"
VERSION="$2"
WHEEL="$3"
VENV="${VENV:-.venv}"

sh scripts/setup_system.sh sglang

links=()
for link in $("$VENV/bin/pip" config get global.find-links 2>/dev/null || true); do
  links+=(--find-links "$link")
done

"$VENV/bin/uv" venv -q --allow-existing --python "$VENV/bin/python" "$ENV"
"$VENV/bin/uv" pip install -q --python "$ENV/bin/python" "${links[@]}" \
  -r scripts/sglang_requirements.txt pytest hypothesis
"$VENV/bin/uv" pip install -q --python "$ENV/bin/python" --no-deps "sglang==$VERSION"
"$VENV/bin/uv" pip install -q --python "$ENV/bin/python" --reinstall-package radixshmem "$WHEEL"
