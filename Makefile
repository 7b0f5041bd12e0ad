# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# make demo [TRACE=FILE] [DEMO_ARGS=...]   the main job, on a trace or on made-up conversations
# make demo-vllm [DEMO_ARGS=...]           a real vLLM engine on the CPU, killed, and its successor
# make demo-sglang [DEMO_ARGS=...]         two real SGLang servers on the CPU
# make demo-cluster [DEMO_ARGS=...]        etcd and four nodes, one of which is killed
# make test | make test-full               the CI set | its long versions too
# make bench [BENCH_ARGS=...]              tables and JSON of the speed and memory figures
# make format | make clean
# Each does its own set-up (system tools, .venv, editable install); a second run is quick.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --no-build-isolation --config-settings=build-dir=build/python
NATIVE := $(shell find csrc cmake CMakeLists.txt -type f \( -name '*.h' -o -name '*.cc' \
	-o -name 'CMakeLists.txt' -o -name '*.cmake' \) -not -path 'csrc/tests/*' -not -path 'csrc/fuzz/*')
SOURCES := $(shell find radixshmem radixshmem_core integrations -name '*.py')
VLLM := 0.32.0
SGLANG := 0.5.23

# Without bytecode on disk each process of an engine compiles vLLM anew when it starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-vllm demo-sglang demo-cluster test test-full bench format clean
.DEFAULT_GOAL := test

demo: $(STAMPS)/installed
	@if [ -n "$(TRACE)" ] && [ ! -f "$(TRACE)" ]; then \
	  echo "demo: no trace file $(TRACE); give TRACE=FILE or leave it out" >&2; exit 1; fi
	$(BIN)/python benchmarks/demo.py $(if $(TRACE),--trace "$(TRACE)") $(DEMO_ARGS)

demo-vllm: $(STAMPS)/vllm
	build/vllm-$(VLLM)/bin/python benchmarks/demo_vllm.py $(DEMO_ARGS)

demo-sglang: $(STAMPS)/sglang
	build/sglang-$(SGLANG)/bin/python benchmarks/demo_sglang.py $(DEMO_ARGS)

demo-cluster: $(STAMPS)/test
	$(BIN)/python benchmarks/demo_cluster.py $(DEMO_ARGS)

test: $(STAMPS)/test
	VENV="$(VENV)" bash scripts/run_tests.sh

test-full: $(STAMPS)/test
	VENV="$(VENV)" bash scripts/run_tests.sh full

bench: $(STAMPS)/bench $(STAMPS)/vllm $(STAMPS)/sglang
	$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

format: $(STAMPS)/test
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	find csrc -name third_party -prune -o \( -name '*.h' -o -name '*.cc' \) -print0 | \
	  xargs -0 $(BIN)/clang-format -i

clean:
	rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache

# A stamp is as old as the begin of its step: what is saved while the step runs is newer than it.
BEGIN = @mkdir -p $(STAMPS) && touch $@.begun && echo
END = @mv $@.begun $@

# What pip needs to build without isolation; `pip install .` finds these by itself.
$(STAMPS)/venv: scripts/setup_system.sh
	$(BEGIN) "making $(VENV) with the build tools"
	@PYTHON="$(PYTHON)" sh scripts/setup_system.sh
	@$(PYTHON) -m venv "$(VENV)"
	@$(PIP) install --upgrade scikit-build-core pybind11
	$(END)

$(STAMPS)/installed: $(STAMPS)/venv pyproject.toml $(NATIVE)
	$(BEGIN) "installing dependencies, compiling the extension; the first time takes a few minutes"
	@$(INSTALL) -e .
	$(END)

$(STAMPS)/test: $(STAMPS)/installed scripts/build_mooncake.sh scripts/build_nixl.sh
	$(BEGIN) "installing the tools of the tests"
	@PYTHON="$(PYTHON)" sh scripts/setup_system.sh etcd
	@$(INSTALL) -e '.[test]'
	@PYTHON=$(BIN)/python bash scripts/build_mooncake.sh
	@PYTHON=$(BIN)/python bash scripts/build_nixl.sh
	$(END)

$(STAMPS)/bench: $(STAMPS)/installed
	$(BEGIN) "installing the peers of the benchmarks and compiling the C++ ones"
	@$(INSTALL) -e '.[bench]'
	@PYTHON=$(BIN)/python bash scripts/build_mooncake.sh
	@PYTHON=$(BIN)/python bash scripts/build_nixl.sh
	@cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRADIX_BENCH=ON -DRADIX_PYTHON=OFF >/dev/null
	cmake --build build/bench -j 2
	$(END)

# What is installed beside an engine.
$(STAMPS)/wheel: $(STAMPS)/test $(SOURCES)
	$(BEGIN) "building the wheel"
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(PIP) wheel --no-deps --no-build-isolation --config-settings=build-dir=build/python \
	  -w build/wheel .
	$(END)

$(STAMPS)/vllm: $(STAMPS)/wheel scripts/vllm_env.sh
	$(BEGIN) "installing vLLM $(VLLM) for the CPU into build/vllm-$(VLLM): 2 GB the first time"
	@VENV="$(VENV)" bash scripts/vllm_env.sh build/vllm-$(VLLM) $(VLLM) build/wheel/*.whl
	$(END)

$(STAMPS)/sglang: $(STAMPS)/wheel scripts/sglang_env.sh scripts/sglang_requirements.txt
	$(BEGIN) "installing SGLang $(SGLANG) for the CPU into build/sglang-$(SGLANG): 3 GB the first time"
	@VENV="$(VENV)" bash scripts/sglang_env.sh build/sglang-$(SGLANG) $(SGLANG) build/wheel/*.whl
	$(END)
