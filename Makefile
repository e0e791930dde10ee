# SPDX-License-Identifier: Apache-2.0
# One target per thing a developer does; each does all of its own set-up. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Without this `python -m` puts the repository root on sys.path, and `import host` finds a second
# copy of kvgpu.host.
export PYTHONSAFEPATH := 1
export PYTHONUNBUFFERED := 1
export UV_PYTHON_DOWNLOADS := never

PYTHON3 ?= /usr/bin/python3
UV_VERSION := 0.13.8
UV := .tools/bin/uv
BIN := .venv/bin
PYTEST := $(BIN)/pytest
STAMPS := build/.stamps
JOBS ?= $(shell nproc)
CXX_DIRS := protocol guest host tests benchmarks

N ?= 10000000
SUBJECT ?= path
TARGET ?= decode
SECONDS ?= 60

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- set-up ---------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMPS)/apt $(STAMPS)/venv  ## install what is missing: Debian packages, .tools/, .venv/

$(STAMPS)/apt: packaging/apt-packages.txt packaging/install-apt-packages.sh
	@packaging/install-apt-packages.sh packaging/apt-packages.txt
	@mkdir -p $(@D) && touch $@

$(UV): $(STAMPS)/apt
	@test -x $@ && $@ --version | grep -q ' $(UV_VERSION)' || { \
	  echo "setup: uv $(UV_VERSION) into .tools/"; \
	  $(PYTHON3) -m venv .tools && .tools/bin/pip install --quiet uv==$(UV_VERSION); }
	@touch $@

$(STAMPS)/venv: requirements.lock $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --no-project --python $(PYTHON3) .venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: kvgpu needs Python 3.11 or newer; set PYTHON3=/path/to/python3" >&2; exit 1; }
	@echo "setup: Python packages of requirements.lock into .venv/"
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@mkdir -p $(@D) && touch $@

LOCK_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  $(if $(UPGRADE),--upgrade) pyproject.toml

.PHONY: lock
lock: $(UV)  ## write the lock files anew from pyproject.toml (UPGRADE=1: newest versions)
	$(UV) pip compile --group dev $(LOCK_OPTIONS) --output-file requirements.lock >/dev/null
	$(UV) pip compile --constraint requirements.lock $(LOCK_OPTIONS) \
	  --output-file packaging/deb/requirements-host.lock >/dev/null
	$(UV) pip compile $(filter-out pyproject.toml,$(LOCK_OPTIONS)) --group pyproject.toml:bench \
	  --output-file benchmarks/requirements.lock >/dev/null

# --- build ----------------------------------------------------------------------------------------

.PHONY: gen
gen: setup  ## write the generated protocol files anew; `git diff` must stay empty
	PYTHONPATH=packaging/python $(BIN)/python -m kvgpu.protocol.generator . \
	  $(BIN)/../lib/python3.*/site-packages/nvidia/cu13/include

.PHONY: build
build: build-release  ## build everything into build/release

.PHONY: build-%
build-%: setup
	@test -f build/$*/build.ninja || cmake --preset $* --log-level=WARNING
	@cmake --build --preset $* -j $(JOBS)

.PHONY: deb
deb: setup build-release  ## the Debian packages into dist/, checked by lintian
	@packaging/deb/build.sh

.PHONY: repo
repo: deb  ## dist/repo: a signed apt repository of the packages
	@packaging/repo.sh

# --- checks ---------------------------------------------------------------------------------------

.PHONY: lint lint-python lint-native lint-text lint-gen
lint: lint-text lint-python lint-native lint-gen  ## style, types, import rules, static analysis, fresh generator output

lint-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p kvgpu
	$(BIN)/mypy tests benchmarks packaging
	PYTHONPATH=packaging/python $(BIN)/lint-imports

lint-text: setup
	$(BIN)/codespell $$(git ls-files -- '*.py' '*.h' '*.cpp' '*.c' '*.cu' '*.md' '*.sh' '*.toml' Makefile)
	$(PYTEST) -q tests/style

# Configured anew each time: nothing is built here, so ninja would not look for new files.
lint-native: setup
	@cmake --preset dev --log-level=WARNING
	git ls-files -z -- $(foreach d,$(CXX_DIRS),'$d/*.cpp' '$d/*.h' '$d/*.cu') | \
	  { grep -zvE '\.gen\.|/generated/' || true; } | xargs -0 $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python tests/style/clang_tidy.py --build build/dev --jobs $(JOBS)

lint-gen: gen
	@git diff --exit-code -- '*.gen.*' '**/generated/**' docs/compatibility.md || \
	  { echo "lint: generated files are stale: run make gen and commit what it wrote" >&2; exit 1; }

.PHONY: test test-unit test-native test-fuzz test-loopback test-vm-smoke
test: test-unit test-native test-fuzz test-loopback test-vm-smoke  ## everything that needs no GPU

test-unit: build-release
	$(PYTEST) -n $(JOBS) tests/unit tests/software_gpu

SANITIZERS := asan tsan
test-native: build-release $(addprefix test-native-,$(SANITIZERS))
	ctest --preset release

.PHONY: test-native-%
test-native-%: setup
	@test -f build/$*/build.ninja || cmake --preset $* --log-level=WARNING
	@cmake --build --preset $* -j $(JOBS) --target native_tests
	ctest --preset $*

# 60 s of one core in all.
test-fuzz: build-fuzz-targets
	printf '%s\n' 'decode 15' 'decode_race 15' 'stream 10' 'frames 5' 'agent_stream 5' 'ptx 5' 'fatbin 5' | \
	  xargs -P $(JOBS) -L 1 tests/fuzz/run.sh

.PHONY: build-fuzz-targets
build-fuzz-targets: setup
	@test -f build/fuzz/build.ninja || cmake --preset fuzz --log-level=WARNING
	@cmake --build --preset fuzz -j $(JOBS) --target fuzz_targets

.PHONY: fuzz
fuzz: build-fuzz-targets  ## a hostile guest, for SECONDS (TARGET=decode, decode_race, stream, frames, agent_stream, ptx or fatbin)
	tests/fuzz/run.sh $(TARGET) $(SECONDS)

test-loopback: build-release
	$(PYTEST) -n $(JOBS) tests/loopback

.PHONY: test-packages
test-packages: repo  ## install, upgrade, remove, purge in clean Debian roots; manual pages, completion
	$(PYTEST) tests/packages

test-vm-smoke: repo
	$(PYTEST) -m 'vm and smoke' tests/vm

.PHONY: test-vm
test-vm: test-packages  ## all tests that boot virtual machines (KVM where there is one, else emulated)
	$(PYTEST) -m vm tests/vm

.PHONY: test-gpu
test-gpu: build-release  ## the same programs natively and through kvgpu, on a real GPU (PART=name)
	tests/gpu/run.sh $(PART)

.PHONY: test-gpu-report
test-gpu-report:  ## docs/compatibility.md's table of workloads from the logs of such runs (FOLDERS=…, COMMIT=what was run)
	@PYTHONPATH=packaging/python $(BIN)/python -P tests/gpu/report.py --commit $(or $(COMMIT),HEAD) \
	  $(or $(FOLDERS),build/test-gpu); status=$$?; \
	  $(MAKE) --no-print-directory -o setup gen && exit $$status

CARRIED_RUNTIMES := cuda-bindings|cuda-pathfinder|nvidia-cuda-runtime[^=]*|nvidia-nvjpeg-cu12|nvidia-ml-py
.PHONY: wheels
wheels: setup  ## packages for Python 3.12 into .whl/, for a GPU machine without network
	@rm -rf .whl
	.tools/bin/pip download --quiet --no-deps --require-hashes --only-binary=:all: \
	  --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
	  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  --dest .whl --requirement packaging/deb/requirements-host.lock --requirement \
	  <(awk '/^[^ ]/ { wanted = /^($(CARRIED_RUNTIMES))==/ } wanted' requirements.lock)

.PHONY: gpu-vm
gpu-vm: deb  ## build/gpu-vm: a VM to carry to a GPU machine without QEMU (make test-gpu PART=vm)
	$(BIN)/python -P tests/gpu/vm_bundle.py

.PHONY: gpu-build
gpu-build: build-release  ## build/gpu-build.tar.xz: what tests/gpu/run.sh needs of the build, to carry likewise
	tests/gpu/pack.sh

BENCH := PYTHONPATH=packaging/python:tests:. $(BIN)/python -P -m
.PHONY: bench
bench: build-release $(STAMPS)/bench-venv  ## native beside remoted, in turn: each row and its target (ONLY=SUBJECT,…, ARGS=--quick …)
	$(BENCH) benchmarks $(if $(ONLY),--only $(ONLY)) $(ARGS)

.PHONY: bench-report
bench-report: $(STAMPS)/bench-venv  ## one table and picture of what several calls have measured (FILES=….json, ARGS="--compare EARLIER.json")
	$(BENCH) benchmarks.report $(ARGS) build/bench $(FILES)

.PHONY: bench-builds
bench-builds: build-release $(STAMPS)/bench-venv  ## several builds beside native, in turn (ARGS="--build NAME=FOLDER … --only SUBJECT,…")
	$(BENCH) benchmarks.builds $(ARGS)

.PHONY: bench-cpu
bench-cpu: build-release  ## instructions of a launch in ring, guest and worker, of a small copy, beside what they were (ARGS=--record)
	$(BENCH) benchmarks.instructions $(ARGS)

$(STAMPS)/bench-venv: benchmarks/requirements.lock | setup
	@test -x build/bench-venv/bin/python || $(UV) venv --quiet --no-project --python $(PYTHON3) build/bench-venv
	@$(UV) pip sync --quiet --python build/bench-venv/bin/python --require-hashes $<
	@touch $@

.PHONY: bench-software
bench-software: build-release  ## the software GPU's speed beside its limits (WHAT=lanes|sgemm|vector_add|cores)
	PYTHONPATH=packaging/python:. $(BIN)/python -P benchmarks/software_gpu.py $(WHAT)

.PHONY: stress-ring
stress-ring: build-release  ## N records through a ring between two processes
	build/release/tests/native/stress_ring $(N)

.PHONY: fresh
fresh: setup  ## `make demo` and `make test` in a new Debian 12 chroot that holds a clone of HEAD only
	tests/fresh.sh

.PHONY: accept
accept: setup  ## run the acceptance ledger tests/acceptance/SUBJECT.toml (ARGS=--record, --where vm)
	$(BIN)/python tests/acceptance/accept.py $(SUBJECT) $(ARGS)

.PHONY: screenshots
screenshots: repo  ## draw docs/screenshots anew, with the software GPU and a VM of this machine
	PYTHONPATH=packaging/python:tests $(BIN)/python -P -m framework.screenshots

# --- see it work ----------------------------------------------------------------------------------

.PHONY: demo
demo:  ## an unmodified CUDA program in a virtual machine, from nothing
	@mkdir -p build
	@$(MAKE) --no-print-directory repo 2>&1 | tee build/demo-build.log || \
	  { echo "demo: failed: build (log build/demo-build.log)"; exit 1; }
	@tests/framework/demo.sh
