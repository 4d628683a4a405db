"""Tests of damaged replies: each is fetched once more, and only damage that stays is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
import small_tier
from small_tier import Objects

from offload import ObjectStoreOffloader, StreamReader
from offload.contracts.events import DamageFound, Event
from offload.contracts.store import ObjectStore
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.ground.env import Env
from offload.ground.errors import Corrupt, TryAgain, UnsupportedFormat
from offload.native.adoption import find_complete
from offload.store.checked import checked
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.limit import LimitedStore
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.probe import PROBE, make_sure_of_create
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import verify

ANCHORS = [TIER_ANCHOR, "marked/stream.anchor"]
ROOT, GROUP, FRAGMENT = "marked/metadata/root.*", "marked/groups/*", "marked/data/*"
SIGHTING = "marked/metadata/sweep.*"

Work = Callable[[ObjectStoreOffloader], Awaitable[object]]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Return a small tier with a sighting, as a first sweep leaves it."""
    store = MemoryStore(objects=small_tier.make(tmp_path_factory.mktemp("small")))
    asyncio.run(sweep(store, roots_kept=1))
    return store.objects


async def read(tier: ObjectStoreOffloader) -> object:
    reader = await StreamReader.open(tier, "marked")
    return [(batch.offset, batch.bodies) async for batch in reader.messages(0)]


async def verified(tier: ObjectStoreOffloader) -> object:
    return (await verify(tier)).as_json()


async def swept(tier: ObjectStoreOffloader) -> object:
    """Run a second sweep, whose verdicts depend on the sighting of the first."""
    report = await sweep(tier, roots_kept=1)
    row = report.as_json()["streams"][0]
    return row["waits"], row["notes"], row["errors"]


async def adopted(tier: ObjectStoreOffloader) -> object:
    manifest = await tier.load_manifest("marked")
    running = {each.attempt: each.ledger_id for each in manifest.running}
    found = await find_complete(tier.store, manifest, running)
    assert found
    return found


async def rebuilt(tier: ObjectStoreOffloader) -> object:
    await tier.open()
    keys = StreamKeys("marked")
    await tier.store.delete([row.key async for row in tier.store.list(keys.roots)])
    report = await rebuild(tier, "marked", dry_run=True)
    return [found.entry for found in report.choice.chosen], report.damages


async def streams(tier: ObjectStoreOffloader) -> object:
    return await tier.streams()


def run(objects: Objects, work: Work, rules: Sequence[Rule] = ()) -> tuple[object, int, list[Event]]:
    """Return the result of `work`, the number of mended replies, and the damage reported to listeners."""
    events: list[Event] = []
    store = FaultyStore(MemoryStore(objects=dict(objects)), rules=rules)
    tier = ObjectStoreOffloader(store, emit=events.append)
    result = asyncio.run(work(tier))  # type: ignore[arg-type]
    return result, tier.metrics.replies_mended, [each for each in events if isinstance(each, DamageFound)]


@pytest.mark.parametrize(
    ("work", "keys"),
    [
        (read, [*ANCHORS, ROOT, GROUP, FRAGMENT]),
        (streams, ANCHORS),
        (verified, [*ANCHORS, ROOT, GROUP, FRAGMENT]),
        (swept, [*ANCHORS, ROOT, GROUP, SIGHTING]),
        (adopted, [ROOT, FRAGMENT]),
        (rebuilt, [FRAGMENT]),
    ],
)
@pytest.mark.parametrize("fault", [Fault.FLIP, Fault.CUT])
def test_a_damaged_reply_changes_nothing(objects: Objects, work: Work, keys: list[str], fault: Fault) -> None:
    """For each checked read in turn the result is the same, no damage is reported, and one reply
    is counted.
    """
    expected, mended, _ = run(objects, work)
    assert mended == 0
    for key in keys:
        nth = 0
        while True:
            nth += 1
            rule = Rule(fault, "get", key, nth=nth)
            found, mended, events = run(objects, work, [rule])
            if rule.matched < nth:
                break
            assert (found, mended, events) == (expected, 1, []), (key, nth)
        assert nth > 1, f"{key} is not read"


def test_damage_on_the_store_is_reported_as_before(objects: Objects) -> None:
    """The error names the same object as always, and the sound chunks before the damage are delivered."""
    [key] = [key for key in objects if key.startswith(f"marked/data/{10:020}.")]
    raw = objects[key]
    damaged = raw[:80] + bytes([raw[80] ^ 1]) + raw[81:]

    delivered, error = small_tier.read({**objects, key: damaged}, "marked")

    assert [row[0] for row in delivered] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert isinstance(error, Corrupt)
    assert (error.where, error.stream, error.position) == (key, "marked", 16)
    assert (error.what, error.expected, error.found) == ("stored chunk checksum", 1586894752, 2731069501)


class TestChecked:
    """Tests of the code that fetches a reply again."""

    @staticmethod
    def check(raw: bytes) -> bytes:
        if raw != b"sound":
            raise Corrupt("bytes", "k", expected=b"sound", found=raw)
        return raw

    def test_the_second_error_is_raised_and_nothing_is_counted(self) -> None:
        store = MeteredStore(MemoryStore(objects={"k": b"rotten"}))

        with pytest.raises(Corrupt, match="rotten"):
            asyncio.run(checked(store, "k", self.check))

        assert (store.metrics.requests["get"], store.metrics.replies_mended) == (2, 0)

    def test_a_sound_reply_costs_one_request(self) -> None:
        store = MeteredStore(MemoryStore(objects={"k": b"sound"}))

        assert asyncio.run(checked(store, "k", self.check)) == b"sound"

        assert (store.metrics.requests["get"], store.metrics.replies_mended) == (1, 0)

    @pytest.mark.parametrize("inline_size_bytes_max", [0, 100])
    def test_a_reply_with_an_unknown_version_is_fetched_again_too(self, inline_size_bytes_max: int) -> None:
        """One flipped bit can change the version, which is read before any checksum."""
        seen: list[bytes] = []

        def check(raw: bytes) -> int:
            seen.append(raw)
            if len(seen) == 1:
                raise UnsupportedFormat("version 3")
            return len(seen)

        store = MeteredStore(MemoryStore(objects={"k": b"sound"}))

        found = asyncio.run(checked(store, "k", check, inline_size_bytes_max=inline_size_bytes_max))

        assert (found, store.metrics.replies_mended) == (2, 1)

    def test_the_damaged_reply_is_free_before_the_second_is_fetched(self) -> None:
        import gc
        import weakref

        class Reply(bytearray):
            """Bytes that a weak reference can watch."""

        watched: list[weakref.ref[Reply]] = []
        alive: list[bool] = []

        class Store(MemoryStore):
            async def get(self, key: str, span: object = None) -> bytes:
                alive.extend(each() is not None for each in watched)
                reply = Reply(b"rotten")
                watched.append(weakref.ref(reply))
                return reply

        with pytest.raises(Corrupt):
            asyncio.run(checked(Store(), "k", self.check))

        gc.collect()
        assert alive == [False]

    def test_a_failing_second_read_is_not_damage(self) -> None:
        rules = [Rule(Fault.FLIP, "get", nth=1), Rule(Fault.FAIL_BEFORE, "get", nth=2)]

        with pytest.raises(TryAgain):
            asyncio.run(
                checked(FaultyStore(MemoryStore(objects={"k": b"sound"}), rules=rules), "k", self.check)
            )

    def test_a_mended_reply_is_counted_behind_other_decorators(self) -> None:
        faulty = FaultyStore(MemoryStore(objects={"k": b"sound"}), rules=[Rule(Fault.FLIP, "get", nth=1)])
        metered = MeteredStore(faulty)

        asyncio.run(checked(LimitedStore(metered), "k", self.check))

        assert metered.metrics.replies_mended == 1


def test_a_damaged_reply_to_a_probe_does_not_refuse_the_store() -> None:
    class Probed(MemoryStore):
        @property
        def capabilities(self):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return replace(super().capabilities, create_is_probed=True)

    store: ObjectStore = FaultyStore(Probed(), rules=[Rule(Fault.FLIP, "get", f"{PROBE}*", nth=1)])

    asyncio.run(make_sure_of_create(store, Env()))
