"""Tests of a body of windows: the SDK reads it like a file, across the windows."""

from __future__ import annotations

import pytest
from offload_cloud.bodies import WindowsBody

DATA = bytes(range(256)) * 4096 + b"end"
WINDOWS = [DATA[:100], DATA[100:70_000], DATA[70_000:-3], DATA[-3:]]


def test_a_body_reads_and_seeks_like_a_file() -> None:
    body = WindowsBody(WINDOWS)

    assert (body.read(4), body.tell(), body.seek(-3, 2), body.read()) == (DATA[:4], 4, len(DATA) - 3, b"end")
    assert (body.seek(1), body.seek(2, 1), body.read(2), len(body)) == (1, 3, DATA[3:5], len(DATA))
    assert (len(WindowsBody([])), WindowsBody([]).read()) == (0, b"")


@pytest.mark.parametrize("step", [1, 99, 100, 101, 2**16, len(DATA)])
def test_pieces_of_any_size_cross_the_windows(step: int) -> None:
    body = WindowsBody(WINDOWS)
    body.seek(50)

    pieces = list(iter(lambda: body.read(step), b"")) if step > 1 else [body.read(1) for _ in range(200)]

    assert b"".join(pieces) == (DATA[50:] if step > 1 else DATA[50:250])
    assert step == 1 or body.read() == b""
