# Two commands for a fresh machine that has Python 3.11+ (with pip and venv) and make:
#   make demo    the main job on a small real sample
#   make test    every claim once; docs/testing.md lists what it leaves to `make campaign`
# Both first make the virtual environment .venv, with the versions of constraints.txt. The demo installs the
# core alone. All other targets also install what the tests need.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
READY  := $(VENV)/.ready
LOOPS  := offload/ground/_loops.so
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start some two hundred processes. Without its bytecode, each would compile the program again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test servers lint types check bench share test-and-share campaign wheels claims news faults clean

demo: $(CORE)
	$(BIN)/offload demo

# In six processes: with four, tests waited so often that two cores were idle for a quarter of the time. Spark's tests
# and those of a server begin first, each group in one process (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest --processes 6

test: $(LOOPS)
	tests/in_memory $(PYTEST)

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

# Moves 2 GiB, and compares with cp and cat. Needs some 8 GiB of disk and a few minutes.
bench: $(READY)
	$(BIN)/python benchmarks/throughput.py

# One of the twenty shares of the tests that only the campaign runs. Each day has another share (tests/campaign.py).
share: $(LOOPS)
	OFFLOAD_SHARE=$${OFFLOAD_SHARE:-$$(($$(date +%s) / 86400))} $(PYTEST)

# Both: all tests of `make test`, and the share of the day. They are collected once, and each server starts once.
# A share may use Ceph, which writes up to 12 GiB.
test-and-share: $(LOOPS)
	OFFLOAD_SHARE=+$${OFFLOAD_SHARE:-$$(($$(date +%s) / 86400))} ROOM_GIB=13 tests/in_memory $(PYTEST)

# Every test: all servers, all planted bugs, long walks, kill -9 at many moments, a thousand rounds of faults per server.
campaign: $(LOOPS)
	OFFLOAD_CAMPAIGN=1 $(PYTEST)

# The wheels of a release, in dist/: one for each platform with the compiled loops, and one for all others.
wheels: $(READY)
	$(PIP) ziglang
	$(BIN)/python hatch_build.py wheels dist

# Every claim of the tests, and where it is tested.
claims: $(READY)
	@OFFLOAD_CAMPAIGN=1 $(BIN)/python tests/claims.py

# The section of the next release, as it would be now (changes/README.md).
news: $(READY)
	@$(BIN)/python -m towncrier build --draft --version next

# A table of the durations and results of sync and read on real servers that stall, refuse or are gone. Takes some
# minutes.
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

# The compiled loops of this checkout. They are tested on machines without a C compiler, too: zig is a package.
$(LOOPS): $(READY) hatch_build.py offload/ground/loops.c
	command -v cc >/dev/null || $(PIP) ziglang
	$(BIN)/python hatch_build.py

clean:
	rm -rf $(VENV) $(LOOPS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
