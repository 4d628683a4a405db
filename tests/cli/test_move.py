"""Moving a tier while `offload run` writes it, by the steps of docs/move-a-tier.md."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import bodies, offload, start, sync, verify
from osiris_writer import append_chunks, simple_chunks, write_stream

CHUNKS = [*simple_chunks(12)]
WAIT_SECONDS = 120
PROOF = ("stream", "records", "messages", "first_offset", "next_offset", "bytes", "newest")
"""The keys of `offload ls --json` that the page compares."""


@contextmanager
def running(source: Path, tier: Path) -> Iterator[None]:
    """Run `offload run` during the block, and end it as a service manager does."""
    options = ("--max-lag", "1s", "--log-level", "error")
    process = start("run", f"rabbitmq://{source}", tier, *options, stdout=subprocess.DEVNULL)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert (process.returncode, error) == (0, b"")


def proof(tier: Path) -> list[dict[str, object]]:
    return [{key: row[key] for key in PROOF} for row in offload("ls", tier, "--json").objects]


def wait_for(tier: Path, messages: int) -> None:
    """Wait until the tier has so many messages."""
    began = time.monotonic()
    while [row["messages"] for row in offload("ls", tier, "--json").objects] != [messages]:
        assert time.monotonic() - began < WAIT_SECONDS
        time.sleep(0.1)


def test_a_tier_that_moves_while_it_is_written_has_every_message_at_the_new_place(tmp_path: Path) -> None:
    source, old, new, fresh = (tmp_path / name for name in ("source", "old", "new", "fresh"))
    write_stream(source / "orders", CHUNKS[:2])
    sync(source, fresh)
    each = len(bodies(fresh, "orders")) // 2
    with running(source, old):
        wait_for(old, 2 * each)
        for number in range(2, 8):
            append_chunks(source / "orders", CHUNKS[number : number + 1])
            copied = offload("copy", old, new)
            assert copied.code == 0, copied.stderr
        wait_for(old, 8 * each)
    append_chunks(source / "orders", CHUNKS[8:10])  # the broker goes on while nothing is copied

    assert offload("copy", old, new).code == 0
    assert proof(new) == proof(old)
    with running(source, new):
        append_chunks(source / "orders", CHUNKS[10:])
        wait_for(new, 12 * each)

    sync(source, fresh)
    assert bodies(new, "orders") == bodies(fresh, "orders")
    assert verify(new)[0] == verify(old)[0] == 0
    assert proof(old)[0]["messages"] == 8 * each, "the old tier is left as it was"
