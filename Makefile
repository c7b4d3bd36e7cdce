# Everything sets itself up on a machine that has Python (3.10 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
# Tests run side by side. Each process gets consecutive tests, because neighbours share fixtures; a process that is done takes tests from the others.
# `make test JOBS=0` runs them one after the other.
# One more than cores: a third of the time of a test that starts processes is waiting.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
SIDE_BY_SIDE := -n $(JOBS) --maxprocesses 4 --dist worksteal
# Trainings wait for half of their time; more than two at a time would be late for the deadlines that they are to meet.
TWO_AT_A_TIME := -n $(JOBS) --maxprocesses 2 --dist loadscope
BROWSER := scripts/apt chromium fonts-dejavu-core fonts-noto-cjk

# Hundreds of commands are started from src: without its bytecode each of them compiles it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-quick test test-integration test-hosts test-all check format docs screenshots bench clean

setup: $(STAMP)

# torch first and pinned: a range would bring the newest build, with gigabytes of CUDA.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -e ".[demo,dev]" "torch==2.13.0"
	touch $@

demo: setup
	$(BIN)/unhang demo

demo-quick: setup
	$(BIN)/unhang demo --quick

test: setup
	$(PYTEST) -m "not integration and not exhaustive" $(SIDE_BY_SIDE)

TIER := integration and not exhaustive
# What cannot be installed ends no test of anything else: its own tests fail, or are skipped and the last line fails.
test-integration: setup
	-$(BIN)/python -m pip install --quiet "accelerate==1.15.0" "asyncssh>=2.18,<3" "torch==2.13.0"
	-$(BIN)/python -m tests.launchers.environments
	-$(BROWSER)
	-scripts/apt g++
	-command -v sshd >/dev/null || scripts/apt openssh-server openssh-client
	-command -v ip >/dev/null || scripts/apt iproute2
	-scripts/apt iptables
	-scripts/apt ethtool
	-scripts/apt slurmctld slurmd slurm-client munge
	$(PYTEST) -m "$(TIER)" $(TWO_AT_A_TIME)
	$(BIN)/python -c "import accelerate, asyncssh"

# Every fault that can be made between hosts (namespaces of this machine; needs root).
test-hosts: setup
	$(PYTEST) tests/cluster -m "integration or exhaustive" -p no:xdist

# Before a release: long soaks, and what proves again what another test has proven.
test-all: test
	$(MAKE) test-integration TIER="integration or exhaustive"

check: setup
	scripts/check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: setup
	$(BROWSER)
	$(BIN)/python scripts/screenshots.py

docs: setup
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/python scripts/accuracy.py

# QUICK=1: everything in small, to see that it works. ONLY="scan top": some of them.
bench: setup
	-$(BIN)/python -m pip install --quiet venv-pack conda-pack setuptools
	-command -v rg >/dev/null || scripts/apt ripgrep
	-scripts/apt zstd
	$(BIN)/python scripts/benchmarks.py $(if $(QUICK),--quick) $(ONLY)

clean:
	rm -rf $(VENV) .venv-launchers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
