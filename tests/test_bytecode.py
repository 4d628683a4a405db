"""Tests that bytecode that is written in advance is the one that pytest reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion.rewrite import _read_pyc
from bytecode import bytecode_of, is_stale, write_bytecode


def test_bytecode_that_is_written_in_advance_is_read_by_pytest(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    module = tmp_path / "test_sum.py"
    module.write_text("def test_sum():\n    assert 1 + 1 == 3\n")
    assert is_stale(module)

    write_bytecode(pytestconfig, [module])

    code = _read_pyc(module, bytecode_of(module))
    assert code is not None
    assert "@pytest_ar" in code.co_names
    assert not is_stale(module)


def test_bytecode_of_another_source_is_replaced(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    module = tmp_path / "test_sum.py"
    module.write_text("def test_sum():\n    assert 1 + 1 == 3\n")
    write_bytecode(pytestconfig, [module])

    module.write_text("def test_sum():\n    assert 1 + 1 == 2\n")
    assert is_stale(module)
    write_bytecode(pytestconfig, [module])

    assert not is_stale(module)
