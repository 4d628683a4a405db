"""Tests on the files of a real broker: each queue has what the broker delivered after its own restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_sets import SETS, delivered, expected, queues_in, unpacked


@pytest.mark.parametrize("name", SETS)
def test_each_queue_is_what_the_broker_delivered(name: str, tmp_path: Path) -> None:
    node = unpacked(name, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in node.rglob("*")}

    queues = queues_in(node)

    wanted = expected(node)
    assert {stream for stream, queue in queues.items() if len(queue.rows)} == wanted.keys()
    for stream, messages in wanted.items():
        assert delivered(queues[stream]) == messages, stream
    assert [(stream, queue.damages) for stream, queue in queues.items() if queue.damages] == []
    assert {path: path.stat().st_mtime_ns for path in node.rglob("*")} == before
