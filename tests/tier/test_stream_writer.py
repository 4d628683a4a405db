"""Tests of a writer: it collects uploads into commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.contracts.events import Event, ManifestCommitted
from offload.contracts.store import Body
from offload.ground.env import Env
from offload.ground.errors import TryAgain
from offload.read.handles import CutHandle
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore


def test_a_commit_names_a_limited_number_of_fragments() -> None:
    """Every chunk is a fragment here, so a ledger of a hundred chunks has a hundred fragments at once."""
    sizes: list[int] = []
    before = 0

    def hear(event: Event) -> None:
        nonlocal before
        if isinstance(event, ManifestCommitted) and event.change == "append":
            sizes.append(event.manifest.fragments - before)
            before = event.manifest.fragments

    async def main() -> int:
        stands_still = replace(Env(), monotonic=lambda: 0.0)
        offloader = ObjectStoreOffloader(
            MemoryStore(), options=TierOptions(fragment_size_bytes=1), emit=hear, env=stands_still
        )
        writer = await StreamWriter.claim(offloader, "orders", env=stands_still)
        at, ledgers = 0, []
        for _ in range(6):
            ledgers.append(ledger_of(100, first_offset=at))
            at = ledgers[-1].next_offset
        await writer.offload(ledgers)
        return writer.manifest.fragments

    total = asyncio.run(main())

    assert total == sum(sizes) == 600
    assert max(sizes) <= 256
    assert sizes.count(200) >= 2, f"uploads that are there go together: {sizes}"


class Crash(BaseException):
    """The process is gone."""


class Appends:
    """A listener that records how many fragments each append names, and may end the process after one."""

    def __init__(self, *, crash_behind: int = 99) -> None:
        self.sizes: list[int] = []
        self.crash_behind = crash_behind
        self._before = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, ManifestCommitted) and event.change == "append":
            self.sizes.append(event.manifest.fragments - self._before)
            self._before = event.manifest.fragments
            if len(self.sizes) == self.crash_behind:
                raise Crash


def small_fragments(store: MemoryStore, emit: Callable[[Event], None]) -> ObjectStoreOffloader:
    """Return an offloader that makes a fragment of every chunk."""
    return ObjectStoreOffloader(store, options=TierOptions(fragment_size_bytes=1), emit=emit)


def test_a_ledger_of_many_fragments_takes_several_commits() -> None:
    """The attempt ends with the last commit."""
    appends = Appends()

    async def main() -> None:
        writer = await StreamWriter.claim(small_fragments(MemoryStore(), appends), "orders")
        await writer.offload([ledger_of(600)])
        assert (writer.manifest.fragments, writer.manifest.ledgers) == (600, 1)
        assert writer.manifest.running == ()

    asyncio.run(main())

    assert appends.sizes == [256, 256, 88]


@pytest.mark.parametrize("behind", [1, 2])
def test_a_crash_between_two_commits_of_a_ledger_loses_nothing(behind: int) -> None:
    """Committed fragments stay. The rest is whole and its attempt is running, so the next writer
    adopts it.
    """
    store, appends = MemoryStore(), Appends(crash_behind=behind)

    async def main() -> None:
        writer = await StreamWriter.claim(small_fragments(store, appends), "orders")
        with pytest.raises(Crash):
            await writer.offload([ledger_of(600)])
        found = await small_fragments(store, appends).load_manifest("orders")
        assert found.fragments == 256 * behind
        assert len(found.running) == 1

        objects = {key for key in store.objects if key.endswith(".fragment")}
        following = await StreamWriter.claim(small_fragments(store, appends), "orders")

        assert (following.manifest.fragments, following.manifest.ledgers) == (600, 1)
        assert following.manifest.running == ()
        assert objects == {key for key in store.objects if key.endswith(".fragment")}

    asyncio.run(main())


def test_a_failed_upload_drops_an_attempt_that_was_announced_in_vain() -> None:
    """The next ledger has begun, so nothing uses the attempt for the rest of the last one."""

    async def main() -> None:
        store = FaultyStore(MemoryStore())
        writer = await StreamWriter.claim(ObjectStoreOffloader(store), "orders")
        first = ledger_of(10)
        await writer.offload([first], ahead=True)
        assert len(writer.manifest.running) == 1
        store.rules = [Rule(Fault.FAIL_BEFORE, "put", "*.fragment")]
        with pytest.raises(TryAgain):
            await writer.offload([ledger_of(10, first_offset=first.next_offset)])

        assert writer.manifest.running == ()

    asyncio.run(main())


def test_a_writer_that_was_released_goes_on_with_a_new_attempt() -> None:
    """The attempt that was announced ahead is condemned."""

    async def main() -> None:
        writer = await StreamWriter.claim(ObjectStoreOffloader(MemoryStore()), "orders")
        ledger = ledger_of(10)
        middle = int((await ledger.table())[5]["offset"])
        await writer.offload([CutHandle(ledger, first_offset=0, next_offset=middle)], ahead=True)
        await writer.release()

        await writer.offload([CutHandle(ledger, first_offset=middle, next_offset=ledger.next_offset)])

        assert (writer.manifest.next_offset, writer.manifest.running) == (ledger.next_offset, ())

    asyncio.run(main())


def test_events_have_short_reprs() -> None:
    """A listener that prints events prints lines, not manifests."""
    events: list[Event] = []

    async def main() -> None:
        offloader = ObjectStoreOffloader(MemoryStore(), emit=events.append)
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([ledger_of(3)])

    asyncio.run(main())

    shown = [repr(event) for event in events]
    assert shown[0] == "ManifestCommitted(stream='orders', change='claim', version=1, next_offset=0)"
    assert any(text.startswith("FragmentUploaded(stream='orders', offsets=[0, 3), stored") for text in shown)
    assert max(map(len, shown)) < 100


def test_the_limit_of_uploads_holds_for_all_streams_together() -> None:
    going, most = 0, 0

    class Counting(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            nonlocal going, most
            going += 1
            most = max(most, going)
            await asyncio.sleep(0)  # others may begin meanwhile
            await super().put(key, body)
            going -= 1

    async def main() -> None:
        options = TierOptions(fragment_size_bytes=1, uploads_max=2)
        offloader = ObjectStoreOffloader(Counting(), options=options)
        writers = [await StreamWriter.claim(offloader, stream) for stream in ("a", "b", "c")]
        await asyncio.gather(*(writer.offload([ledger_of(5)]) for writer in writers))

    asyncio.run(main())

    assert most == 2
