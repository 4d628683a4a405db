"""Tests of the blocking facade: any thread may use it, nothing hangs, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from offload_conformance import Sample, ledger_of
from offload_conformance.ledgers import tiny_chunks

from offload import (
    AtOffset,
    Blocking,
    Conflict,
    Fenced,
    MemoryHandle,
    Misuse,
    NotOffloaded,
    Plugins,
    Retention,
    StreamWriter,
    build_chunk,
)
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Span, Suffix
from offload.native.offloader import ObjectStoreOffloader
from offload.opening.blocking import _Call
from offload.store.memory import MemoryStore

HANGS_SECONDS = 60
"""A limit that no test here reaches, even on a busy machine. It ends a test that would hang."""


def threads_of_facades() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "offload"]


async def fill(offloader: LedgerOffloader, sample: Sample) -> None:
    writer = await StreamWriter.claim(offloader, "orders")
    await writer.offload(sample.ledgers(3))


@pytest.fixture
def sample() -> Sample:
    return tiny_chunks(300)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def tier(store: MemoryStore, sample: Sample) -> Iterator[Blocking]:
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier:
        tier.run(fill(tier.offloader, sample))
        yield tier


async def interrupt() -> None:
    """Send Ctrl-C as soon as the main thread waits for a call of a facade; earlier it could not be
    cancelled.
    """

    def waits() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        while frame.f_back is not None and frame.f_back.f_code is not _Call.wait.__code__:
            frame = frame.f_back
        return frame.f_back is not None

    while not waits():  # noqa: ASYNC110 - nobody tells when a thread begins to wait
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)


def bodies(tier: Blocking) -> list[bytes]:
    return [body for batch in tier.read("orders") for body in batch.bodies]


def test_the_facade_does_the_same_as_the_offloader(tier: Blocking, sample: Sample) -> None:
    assert tier.streams() == ["orders"]
    assert tier.load_manifest("orders").next_offset == sample.next_offset
    assert bodies(tier) == [body for _, _, body in sample.messages]
    with pytest.raises(NotOffloaded):
        tier.load_manifest("bills")


def test_several_threads_share_one_facade(tier: Blocking, sample: Sample) -> None:
    def work(number: int) -> list[bytes]:
        assert tier.load_manifest("orders").next_offset == sample.next_offset
        return bodies(tier)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(16)))

    assert found == [[body for _, _, body in sample.messages]] * 16


def test_threads_write_at_the_same_time(store: MemoryStore) -> None:
    """Each thread writes its own stream, through one facade."""
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier:
        tier.run(tier.offloader.open(create=True))

        def work(stream: str) -> int:
            writer = tier.run(StreamWriter.claim(tier.offloader, stream))
            tier.run(writer.offload([ledger_of(10)]))
            return tier.load_manifest(stream).next_offset

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, "abcd")) == [10] * 4


def test_closing_ends_the_thread(store: MemoryStore) -> None:
    tier = Blocking.around(lambda: ObjectStoreOffloader(store))
    assert len(threads_of_facades()) == 1

    tier.close()
    tier.close()

    assert threads_of_facades() == []


def test_nothing_runs_after_closing(store: MemoryStore) -> None:
    tier = Blocking.around(lambda: ObjectStoreOffloader(store))
    tier.close()

    with pytest.raises(Misuse, match="closed"):
        tier.streams()


def test_closing_ends_the_calls_of_other_threads(store: MemoryStore) -> None:
    """Each call is cancelled, cleans up while the offloader still works, and ends with `Misuse`."""
    tier = Blocking.around(lambda: ObjectStoreOffloader(store))
    tier.run(tier.offloader.open(create=True))
    begun, seen = threading.Barrier(4), []

    async def slow() -> None:
        try:
            await asyncio.to_thread(begun.wait, HANGS_SECONDS)
            await asyncio.sleep(60)
        finally:
            seen.append(await tier.offloader.streams())

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(tier.run, slow()) for _ in range(3)]
        begun.wait(HANGS_SECONDS)
        tier.close()

        for call in calls:
            with pytest.raises(Misuse, match="was closed"):
                call.result(timeout=HANGS_SECONDS)
    assert seen == [[]] * 3


def test_many_threads_may_close_and_call_at_once(store: MemoryStore) -> None:
    """Every call succeeds or is refused; nobody hangs, and no coroutine is dropped."""
    for _ in range(20):
        tier = Blocking.around(lambda: ObjectStoreOffloader(store))
        tier.run(tier.offloader.open(create=True))
        begin = threading.Barrier(6)

        def close(tier: Blocking, begin: threading.Barrier) -> None:
            begin.wait(HANGS_SECONDS)
            tier.close()

        def ask(tier: Blocking) -> None:
            while True:
                assert tier.streams() == []

        def call(tier: Blocking, begin: threading.Barrier) -> None:
            begin.wait(HANGS_SECONDS)
            with pytest.raises(Misuse, match="was closed"):
                ask(tier)

        with ThreadPoolExecutor(6) as pool:
            ends = [pool.submit(work, tier, begin) for work in (close, call) * 3]
            for end in ends:
                end.result(timeout=HANGS_SECONDS)

    assert threads_of_facades() == []


def test_closing_ends_everything_left_on_the_loop(store: MemoryStore) -> None:
    """These are tasks without a waiter, unfinished generators, and the threads of the loop's executor."""
    tier = Blocking.around(lambda: ObjectStoreOffloader(store))
    seen, left = [], []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("task")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append("generator")

    async def begin() -> None:
        halfway = numbers()
        left.extend([asyncio.create_task(endless()), halfway])
        await anext(halfway)
        await asyncio.to_thread(lambda: left.append(threading.current_thread()))

    tier.run(begin())
    tier.close()

    assert seen == ["task", "generator"]
    assert not left[2].is_alive()


def test_waiting_on_its_own_thread_is_refused(store: MemoryStore) -> None:
    """A listener that gets an event would do this."""
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier:

        async def listener(call: Callable[[], object]) -> None:
            call()

        for call in (tier.streams, tier.close):
            with pytest.raises(Misuse, match="own thread"):
                tier.run(listener(call))

        tier.run(tier.offloader.open(create=True))
        assert tier.streams() == []


def test_a_reader_may_outlive_its_tier(store: MemoryStore, sample: Sample) -> None:
    tier = Blocking.around(lambda: ObjectStoreOffloader(store))
    tier.run(fill(tier.offloader, sample))
    halfway, dropped = tier.read("orders"), tier.read("orders")
    next(halfway)
    next(dropped)

    tier.close()

    del dropped
    with pytest.raises(Misuse, match="was closed"):
        next(halfway)


def test_a_tier_that_cannot_be_opened_leaves_no_thread() -> None:
    with pytest.raises(Misuse, match="no plugin knows"):
        Blocking("nowhere://at/all")

    assert threads_of_facades() == []


def test_an_offloader_that_fails_to_close_leaves_no_thread() -> None:
    class Stuck(MemoryStore):
        async def aclose(self) -> None:
            raise OSError("stuck")

    tier = Blocking.around(lambda: ObjectStoreOffloader(Stuck()))

    with pytest.raises(OSError, match="stuck"):
        tier.close()

    assert threads_of_facades() == []


def test_ctrl_c_cancels_only_the_running_call(tier: Blocking, sample: Sample) -> None:
    """The call and its cleanup are finished when the interrupt is raised; the facade still works."""
    seen = []

    async def slow() -> None:
        try:
            await interrupt()
            await asyncio.sleep(HANGS_SECONDS)
        finally:
            await asyncio.sleep(0.05)
            seen.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        tier.run(slow())

    assert seen == ["cleaned up"]
    assert bodies(tier) == [body for _, _, body in sample.messages]


def test_ctrl_c_while_reading_is_raised_alone(store: MemoryStore, sample: Sample) -> None:
    """A reader has requests in flight that take a moment to cancel; only the interrupt is raised."""

    class Slow(MemoryStore):
        slow = interrupted = False

        async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
            try:
                if self.slow and not self.interrupted:
                    self.interrupted = True
                    await interrupt()
                await asyncio.sleep(HANGS_SECONDS if self.slow else 0)
            finally:
                await asyncio.sleep(0.02)
            return await super().get(key, span)

    slow = Slow(objects=store.objects)
    with Blocking.around(lambda: ObjectStoreOffloader(slow)) as tier:
        tier.run(fill(tier.offloader, sample))
        reading = tier.read("orders")
        next(reading)
        slow.slow = True
        with pytest.raises(KeyboardInterrupt):
            list(reading)
        assert slow.interrupted


def test_a_reader_that_is_dropped_halfway_is_closed(tier: Blocking) -> None:
    reading = tier.read("orders")
    next(reading)

    reading.close()

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    assert tier.run(others()) == 0


def test_a_fork_is_refused_instead_of_hanging() -> None:
    """In the child every call raises `Misuse` at once and closing does nothing. The parent continues."""
    script = """
        import os, sys
        from offload import Blocking, Misuse
        from offload.store.memory import MemoryStore
        from offload.native.offloader import ObjectStoreOffloader

        with Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier:
            tier.run(tier.offloader.open(create=True))
            child = os.fork()
            if not child:
                try:
                    tier.streams()
                except Misuse as refusal:
                    tier.close()
                    os._exit("fork" not in str(refusal))
                os._exit(2)
            _, status = os.waitpid(child, 0)
            assert tier.streams() == []
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    ignored = (
        "-W",
        "error",
        "-W",
        "ignore:This process:DeprecationWarning",
    )  # the warning about forking with threads
    done = subprocess.run(
        [sys.executable, *ignored, "-c", textwrap.dedent(script)],
        timeout=HANGS_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_stream_is_written_read_decoded_trimmed_and_deleted_without_an_event_loop(
    store: MemoryStore,
) -> None:
    with Blocking.around(lambda: ObjectStoreOffloader(store), plugins=Plugins.find()) as tier:
        assert tier.append("orders", [b"one", b"two"], timestamp_ms=1) == 0
        assert tier.append("orders", [b"three"], timestamp_ms=2) == 2
        more = MemoryHandle([build_chunk([b"four"], offset=3, timestamp_ms=3, epoch=0)])
        assert tier.offload("orders", [more]) == 4
        with pytest.raises(Conflict):
            tier.offload("orders", [more])  # it does not continue the stream

        assert [body for batch in tier.read("orders") for body in batch.bodies] == [
            b"one",
            b"two",
            b"three",
            b"four",
        ]
        decoded = list(tier.decode("orders", "amqp", AtOffset(3)))
        assert [(offset, each.value) for offset, each in decoded] == [(3, b"four")]
        with pytest.raises(Misuse, match="decoder"):
            next(tier.decode("orders", "nobody"))

        assert tier.trim("orders", Retention(before_offset=2), dry_run=True).dropped.messages == 2
        assert tier.trim("orders", Retention(before_offset=2)).manifest.first_offset == 2
        before = len(store.objects)
        assert tier.sweep(grace_seconds=0, dry_run=True).grace_seconds == 0
        assert len(store.objects) == before
        tier.sweep(grace_seconds=0)
        assert len(store.objects) < before

        tier.delete("orders")
        with pytest.raises(NotOffloaded):
            tier.load_manifest("orders")
        assert tier.append("orders", [b"again"]) == 0  # a new stream of the same name


def test_threads_append_to_one_stream_in_turns(store: MemoryStore) -> None:
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier, ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(tier.append, "orders", [b"%d" % n]) for n in range(20)]
        offsets = [call.result(HANGS_SECONDS) for call in calls]
        bodies = [body for batch in tier.read("orders") for body in batch.bodies]

        assert sorted(offsets) == list(range(20))
        assert all(bodies[offset] == b"%d" % n for n, offset in enumerate(offsets))


def test_a_facade_whose_stream_was_claimed_raises_once_and_claims_it_again(store: MemoryStore) -> None:
    with Blocking.around(lambda: ObjectStoreOffloader(store)) as tier:
        tier.append("orders", [b"one"])
        with Blocking.around(lambda: ObjectStoreOffloader(store)) as other:
            other.append("orders", [b"two"])

        with pytest.raises(Fenced):
            tier.append("orders", [b"three"])
        assert tier.append("orders", [b"three"]) == 2


@pytest.mark.parametrize("given", [len, None, 1])
def test_running_anything_but_a_coroutine_is_misuse_at_once(given: Any) -> None:
    """A function without its parentheses would otherwise leave the caller waiting for ever."""
    with Blocking.around(lambda: ObjectStoreOffloader(MemoryStore())) as tier, pytest.raises(Misuse):
        tier.run(given)
