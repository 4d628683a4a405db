"""Write the bytecode of all test modules once, before the processes of pytest-xdist read it.

pytest rewrites the assertions of a test module when it is imported, and keeps the result. In a new checkout
each process would rewrite every module, which takes it longer than all the rest of its collection.

This uses internals of pytest, for which it has no public function. If they change, `tests/test_bytecode.py`
fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import source_hash
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

TESTS: Final = Path(__file__).parent
HASH: Final = slice(8, 16)
"""The bytes of a .pyc that have the hash of its source (PEP 552)."""


def bytecode_of(module: Path) -> Path:
    """Return the file in which pytest looks for the bytecode of a test module."""
    return get_cache_dir(module) / (module.name.removesuffix(".py") + PYC_TAIL)


def is_stale(module: Path) -> bool:
    """Return whether the module has no bytecode, or that of another source."""
    try:
        return bytecode_of(module).read_bytes()[HASH] != source_hash(module.read_bytes())
    except FileNotFoundError:
        return True


def write_bytecode(config: pytest.Config, modules: Iterable[Path] | None = None) -> None:
    """Write the bytecode of the modules that lack it, in two processes. By default, of all test modules."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    if modules is None:
        modules = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    stale = [each for each in modules if is_stale(each)]
    # A fork knows this run's configuration, which cannot be sent to another process. No thread runs yet.
    processes = [
        get_context("fork").Process(target=_write, args=(config, stale[part::2])) for part in range(2)
    ]
    for process in processes if stale else ():
        process.start()
    for process in processes if stale else ():
        process.join()


def _write(config: pytest.Config, modules: Iterable[Path]) -> None:
    state = config.stash[assertstate_key]
    for module in modules:
        hashed, code = _rewrite_test(module, config)
        pyc = bytecode_of(module)
        pyc.parent.mkdir(exist_ok=True)
        _write_pyc(state, code, hashed, pyc)
