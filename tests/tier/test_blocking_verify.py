"""Tests of verifying from threads: the blocking facade can do the same as the asynchronous form."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator

import pytest
from offload_conformance.ledgers import ledger_of

from offload import Blocking, Misuse, StreamWriter, VerifyLevel, VerifyReport, verify
from offload.native.offloader import ObjectStoreOffloader
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore


@pytest.fixture
def store() -> FaultyStore:
    """Return a store that records its requests."""
    return FaultyStore(MemoryStore())


@pytest.fixture
def tier(store: FaultyStore) -> Iterator[Blocking]:
    """Return a tier with two streams of one fragment each."""
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier:
        for stream in ("bills", "orders"):
            writer = tier.run(StreamWriter.claim(tier.offloader, stream))
            tier.run(writer.offload([ledger_of(100)]))
        store.calls.clear()
        yield tier


def fragments_read(store: FaultyStore) -> set[str]:
    return {call.key for call in store.calls if call.operation == "get" and call.key.endswith(".fragment")}


def test_the_facade_takes_all_options_but_those_of_an_event_loop() -> None:
    ours, theirs = (inspect.signature(each).parameters for each in (Blocking.verify, verify))

    assert theirs.keys() - ours.keys() == {"tier", "page_rows_max", "env", "progress"}
    assert {name: ours[name].default for name in ours if name != "self"} == {
        name: theirs[name].default for name in ours if name != "self"
    }


def test_a_verify_reads_every_object_whole_by_default(tier: Blocking, store: FaultyStore) -> None:
    assert tier.verify().level is VerifyLevel.BYTES
    assert len(fragments_read(store)) == 2


def test_a_verify_at_a_lower_level_reads_no_fragment(tier: Blocking, store: FaultyStore) -> None:
    report = tier.verify("orders", level=VerifyLevel.MANIFEST)

    assert (report.level, report.streams, report.damages) == (VerifyLevel.MANIFEST, 1, [])
    assert fragments_read(store) == set()


def test_a_verify_resumes_behind_an_object(tier: Blocking, store: FaultyStore) -> None:
    first = VerifyReport()
    assert tier.verify("bills", report=first) is first
    assert first.judged_to is not None
    store.calls.clear()

    second = tier.verify(after=first.judged_to)

    assert second.streams == 1
    assert [key.split("/")[0] for key in fragments_read(store)] == ["orders"]
    with pytest.raises(Misuse, match="no object of stream 'orders'"):
        tier.verify("orders", after=first.judged_to)


def test_a_rate_limits_the_bytes_read(tier: Blocking) -> None:
    """By the wall clock, one second's worth of bytes takes about a second."""
    size_bytes = tier.verify().bytes
    begin = time.monotonic()

    tier.verify(bytes_per_second_max=size_bytes / 0.5)

    assert time.monotonic() - begin > 0.1
