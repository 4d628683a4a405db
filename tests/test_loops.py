"""The compiled loops answer as plain loops do, and touch no byte that is not theirs, whatever they get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from campaign import CAMPAIGN
from fresh_loops import library

from offload.ground import loops
from offload.ground.loops import Loops, loops_in_use

ROUNDS = 200_000 if CAMPAIGN else 5_000


def test_odd_bytes_are_answered_as_by_a_plain_loop_and_no_byte_beyond_them_is_read() -> None:
    """In a process of its own, with a page behind the bytes that nobody may read."""
    script = Path(__file__).with_name("guarded_loops.py")
    command = [sys.executable, str(script), str(library()), str(ROUNDS)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, f"{ROUNDS} rounds\n"), done.stderr


@pytest.mark.parametrize("size", [0x01, 0x0102, 0x010203, 0x01020304])
def test_all_bytes_of_a_length_count(size: int) -> None:
    data = size.to_bytes(4, "big") + bytes(size)

    edges, values, whole = loops.Loops(library()).unpack(
        data, np.array([0]), np.array([len(data)]), np.array([1])
    )

    assert (edges.tolist(), len(values), whole.tolist()) == ([0, size], size, [True])


def test_columns_of_different_lengths_are_refused_before_a_loop_reads_beyond_one() -> None:
    loops, data, one, two = (
        Loops(library()),
        np.zeros(9, np.uint8),
        np.zeros(1, np.int64),
        np.zeros(2, np.int64),
    )
    calls = [
        lambda: loops.unpack(data.data, two, two, one),
        lambda: loops.match(data, two, one, [b"a"]),
        lambda: loops.quote(data, two, one),
        lambda: loops.join([(data, (two, one))], two, data),
    ]

    for call in calls:
        with pytest.raises(ValueError, match="different lengths"):
            call()


@pytest.mark.parametrize(
    ("before", "switch", "says"),
    [
        (None, "", "NumPy: this installation has no compiled loops"),
        (b"no library", "", "NumPy: _loops.so cannot be loaded"),
        (b"no library", "numpy", "NumPy: OFFLOAD_LOOPS asks for it"),
    ],
)
def test_without_a_library_numpy_does_the_work_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, switch: str, says: str
) -> None:
    path = tmp_path / "_loops.so"
    if before is not None:
        path.write_bytes(before)
    monkeypatch.setattr(loops, "LIBRARY", path)
    monkeypatch.setattr(loops, "_loaded", loops._loaded.__wrapped__)
    monkeypatch.setitem(os.environ, "OFFLOAD_LOOPS", switch)

    assert loops_in_use().startswith(says)
    assert loops.compiled_loops() is None


def test_a_library_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LIBRARY", library())
    monkeypatch.setattr(loops, "_loaded", loops._loaded.__wrapped__)
    monkeypatch.delenv("OFFLOAD_LOOPS", raising=False)

    assert loops_in_use() == "compiled"
