# Two commands for a fresh machine that has Python 3.11+ (with pip and venv) and make:
#   make demo    the main job on a small real sample
#   make test    every test
# Both make the virtual environment .venv first, with the versions of constraints.txt: the demo installs
# the core alone, all others what the tests need as well.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start some two hundred processes; each would compile the program anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test servers lint types check bench campaign faults clean

demo: $(CORE)
	$(BIN)/offload demo

# In three processes, because tests wait as much as they work; Spark's stay in one (tests/conftest.py).
test: $(READY)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadgroup

# Real servers and emulators for the tests, into a cache outside this folder. The first time takes some
# ten minutes, most of it for building MinIO; docs/testing.md has more.
servers: $(READY)
	PYTHONPATH=tests $(BIN)/python -m servers

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

# 2 GiB beside cp and cat; needs some 8 GiB of disk and a few minutes.
bench: $(READY)
	$(BIN)/python benchmarks/throughput.py

# The state machines for a long time, kill -9 at many moments, and a thousand rounds of faults per server.
campaign: $(READY)
	OFFLOAD_CAMPAIGN=1 $(BIN)/python -m pytest tests/formats tests/manifest tests/protocol tests/simulation tests/store tests/tier tests/cli tests/conformance_box tests/faults tests/s3 tests/azure_blob tests/newcomers -q

# How long sync and read take, and how they end, on real servers that stall, refuse or are gone: some minutes.
faults: $(READY)
	PYTHONPATH=tests $(BIN)/python -m faults.table

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $(CORE)

# After the core, not beside it: two pips at once would break one environment.
$(READY): $(CORE)
	$(PIP) --editable ".[test]"
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
