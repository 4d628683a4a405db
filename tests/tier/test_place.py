"""Tests of tiers with a commit store or with hashed keys: the anchor records both, and is checked
before it is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from osiris_data import DATA, STREAMS
from split_tier import ROOTS, Overwriting, split_tier

from offload import ObjectStoreOffloader, Plugins, StreamReader, StreamWriter, open_source, open_tier, verify
from offload import sync as sync_all
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, ObjectStore
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys, is_decisive, sides_of
from offload.ground.errors import Denied, Misuse
from offload.native.place import TierPlan
from offload.store.hashed import HashedStore, folder_of
from offload.store.memory import MemoryStore
from offload.store.split import SplitStore
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import delete_stream

T = TypeVar("T")
Objects = dict[str, bytes]


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def fill(tier: ObjectStoreOffloader) -> None:
    async with tier:
        async for report in sync_all(open_source(f"rabbitmq://{DATA}", plugins=Plugins.find()), tier):
            if report.error is not None:
                raise report.error


async def counts(tier: ObjectStoreOffloader) -> dict[str, int]:
    async with tier:
        found = {}
        for stream in await tier.streams():
            reader = await StreamReader.open(tier, stream)
            batches = reader.messages(reader.manifest.first_offset)
            found[stream] = sum([len(batch.bodies) async for batch in batches])
        assert (await verify(tier)).damages == []
        return found


@pytest.fixture(scope="module")
def whole() -> dict[str, int]:
    """Return the objects of a plain tier of the sample streams."""
    objects: Objects = {}
    run(fill(ObjectStoreOffloader(MemoryStore(objects=objects))))
    return run(counts(ObjectStoreOffloader(MemoryStore(objects=objects))))


class Late(MemoryStore):
    """A store whose listings may miss recently written objects."""

    @property
    def capabilities(self) -> Capabilities:
        """Declare late listings."""
        return replace(super().capabilities, strong_listing=False)


class TestCommitStore:
    def test_data_on_a_store_that_overwrites_is_committed_on_another_one(self, whole: dict[str, int]) -> None:
        data: Objects = {}
        roots: Objects = {}

        run(fill(split_tier(data, roots)))

        assert all(is_decisive(key) for key in roots)
        assert {key for key in data if is_decisive(key)} == {TIER_ANCHOR}
        assert {*whole} == {*STREAMS}
        assert run(counts(split_tier(data, roots, plan=TierPlan()))) == whole

    def test_a_store_that_overwrites_is_refused_before_any_write(self) -> None:
        data: Objects = {}

        with pytest.raises(Denied, match=r"--commit-store URL"):
            run(fill(ObjectStoreOffloader(Overwriting(objects=data))))

        assert data == {}

    def test_both_stores_carry_the_same_anchor_without_credentials(self) -> None:
        data: Objects = {}
        roots: Objects = {}
        run(fill(split_tier(data, roots)))

        anchor = TierAnchor.decode(data[TIER_ANCHOR], where="here")

        assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]
        assert (anchor.commit_store, anchor.data_store) == (ROOTS, "memory://data")

    def test_a_tier_cannot_be_begun_on_a_commit_store_that_overwrites(self) -> None:
        tier = ObjectStoreOffloader(
            Overwriting(), plan=TierPlan(commit_store=ROOTS), open_store=lambda url: Overwriting()
        )

        with pytest.raises(Denied, match="two writers could both commit"):
            run(fill(tier))

    def test_a_commit_store_does_not_help_a_store_of_data_whose_listings_are_late(self) -> None:
        data: Objects = {}
        roots: Objects = {}
        tier = ObjectStoreOffloader(
            Late(objects=data),
            plan=TierPlan(commit_store=ROOTS),
            open_store=lambda url: MemoryStore(objects=roots, name="roots"),
        )

        with pytest.raises(Denied, match="may miss what was just written"):
            run(fill(tier))

        assert (data, roots) == ({}, {})

    def test_a_commit_store_serves_one_tier(self) -> None:
        roots: Objects = {}
        run(fill(split_tier({}, roots)))
        other = ObjectStoreOffloader(
            Overwriting(name="other"),
            plan=TierPlan(commit_store=ROOTS),
            open_store=lambda url: MemoryStore(objects=roots, name="roots"),
        )

        with pytest.raises(Misuse, match="belongs to another tier, that of memory://data"):
            run(fill(other))

    def test_a_plain_tier_is_refused_as_commit_store(self) -> None:
        roots: Objects = {}
        run(fill(ObjectStoreOffloader(MemoryStore(objects=roots))))

        with pytest.raises(Misuse, match="belongs to another tier"):
            run(fill(split_tier({}, roots)))

    def test_a_copy_of_the_data_is_read_and_commits_nothing(self, whole: dict[str, int]) -> None:
        """Its roots would be those of the original, which lacks the copy's new fragments."""
        data: Objects = {}
        roots: Objects = {}
        run(fill(split_tier(data, roots)))

        def at_another_url() -> ObjectStoreOffloader:
            return ObjectStoreOffloader(
                Overwriting(objects=dict(data), name="copy"),
                open_store=lambda url: MemoryStore(objects=roots, name="roots"),
            )

        lost = {key: raw for key, raw in roots.items() if key.startswith(StreamKeys("filtered").roots)}
        before = {key: raw for key, raw in roots.items() if key not in lost}
        roots.clear()  # the rebuild needs a loss
        roots.update(before)
        changes: list[Callable[[ObjectStoreOffloader], Coroutine[Any, Any, object]]] = [
            lambda tier: StreamWriter.claim(tier, "tiny"),
            lambda tier: StreamWriter.claim(tier, "new"),
            lambda tier: delete_stream(tier, "tiny"),
            lambda tier: rebuild(tier, "filtered"),
        ]
        for change in changes:
            with pytest.raises(Misuse, match=r"can only be read: .* data of this tier is at memory://data"):
                run(change(at_another_url()))
        assert roots == before
        roots.update(lost)
        assert run(counts(at_another_url())) == whole

    def test_another_commit_store_than_the_recorded_one_is_refused(self) -> None:
        data: Objects = {}
        run(fill(ObjectStoreOffloader(MemoryStore(objects=data))))

        with pytest.raises(Misuse, match="are beside its data, not at memory://roots"):
            run(fill(split_tier(data, {})))

    def test_a_false_anchor_leads_nowhere(self) -> None:
        """A false anchor on the data store must not make a program write to a place of another tier."""
        mine: Objects = {}
        theirs: Objects = {}
        run(fill(split_tier({}, mine)))
        forged = TierAnchor(commit_store=ROOTS, data_store="memory://data", uid="forged").encode()
        theirs[TIER_ANCHOR] = forged
        before = dict(mine)

        async def write() -> None:
            async with split_tier(theirs, mine) as tier:
                await StreamWriter.claim(tier, "orders")

        with pytest.raises(Misuse, match="belongs to another tier"):
            run(write())
        assert mine == before

    def test_a_tier_without_its_recorded_commit_store_is_not_taken_for_empty(self) -> None:
        data: Objects = {}
        run(fill(split_tier(data, {})))

        with pytest.raises(Misuse, match=r"there is no tier\.anchor there"):
            run(counts(split_tier(data, {}, plan=TierPlan())))

    def test_the_next_writer_repairs_a_crash_between_the_two_anchors(self, whole: dict[str, int]) -> None:
        data: Objects = {}
        roots: Objects = {}
        run(fill(split_tier(data, roots)))
        only_anchor = {TIER_ANCHOR: roots[TIER_ANCHOR]}

        run(fill(split_tier({}, only_anchor)))

        assert len(only_anchor) == len(roots)

    def test_many_simultaneous_makers_of_a_tier_agree(self) -> None:
        data: Objects = {}
        roots: Objects = {}

        async def scenario() -> None:
            tiers = [split_tier(data, roots) for _ in range(8)]
            await asyncio.gather(*(StreamWriter.claim(tier, f"stream {n}") for n, tier in enumerate(tiers)))

        run(scenario())

        assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]
        assert sum(key.endswith("stream.anchor") for key in roots) == 8

    def test_every_command_needs_only_the_url_of_the_tier(
        self, tmp_path: Path, whole: dict[str, int]
    ) -> None:
        """It also works if the folder's name contains characters that URLs escape."""
        data, roots = tmp_path / "da ta%41", tmp_path / "ro ots%41"

        async def main() -> dict[str, int]:
            first = open_tier(str(data), plan=TierPlan(commit_store=str(roots)))
            assert isinstance(first, ObjectStoreOffloader)
            await fill(first)
            second = open_tier(str(data))
            assert isinstance(second, ObjectStoreOffloader)
            return await counts(second)

        assert run(main()) == whole
        assert {path.parent.name for path in data.rglob("*") if path.is_file()} == {data.name, "data"}

    def test_options_of_the_commit_store_have_separate_names(self, tmp_path: Path) -> None:
        tier = open_tier(
            str(tmp_path / "data"),
            plan=TierPlan(commit_store=str(tmp_path / "roots")),
            storage_options={"commit.colour": "blue"},
        )

        with pytest.raises(Misuse, match="has no option 'colour'"):
            run(StreamWriter.claim(tier, "orders"))


def test_the_probe_of_another_writer_is_not_a_foreign_object() -> None:
    """Many writers begin on one empty place, each probes the store first, and all succeed."""

    class Probed(MemoryStore):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, create_is_probed=True)

    objects: Objects = {"tier.probe.left-by-a-crash": b""}

    async def scenario() -> None:
        tiers = [ObjectStoreOffloader(Probed(objects=objects)) for _ in range(8)]
        await asyncio.gather(*(StreamWriter.claim(tier, f"stream {n}") for n, tier in enumerate(tiers)))

    run(scenario())

    assert sum(key.endswith("stream.anchor") for key in objects) == 8


class TestHashedKeys:
    def test_a_tier_with_hashed_keys_reads_back(self, whole: dict[str, int]) -> None:
        objects: Objects = {}
        run(fill(ObjectStoreOffloader(MemoryStore(objects=objects), plan=TierPlan(hashed_keys=True))))

        assert {key[:2] for key in objects if key != TIER_ANCHOR} == {f"{folder_of(s)}/" for s in STREAMS}
        assert run(counts(ObjectStoreOffloader(MemoryStore(objects=objects)))) == whole

    def test_a_tier_that_was_made_plain_stays_plain(self) -> None:
        objects: Objects = {}
        run(fill(ObjectStoreOffloader(MemoryStore(objects=objects))))

        with pytest.raises(Misuse, match="made without hashed keys"):
            run(fill(ObjectStoreOffloader(MemoryStore(objects=objects), plan=TierPlan(hashed_keys=True))))

    def test_hashed_keys_and_a_commit_store_work_together(self, whole: dict[str, int]) -> None:
        data: Objects = {}
        roots: Objects = {}
        run(fill(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS, hashed_keys=True))))

        assert run(counts(split_tier(data, roots, plan=TierPlan()))) == whole

    def test_foreign_files_in_a_folder_are_not_keys(self) -> None:
        wrong = FOLDERS_WITHOUT["orders"]
        store = HashedStore(MemoryStore(objects={f"{wrong}/orders/x": b"", "7": b""}), lone="tier.")

        assert run(listed(store, "")) == []
        assert run(listed(store, "orders/")) == []


FOLDERS_WITHOUT = {part: next(f for f in "0123456789abcdef" if f != folder_of(part)) for part in ["orders"]}


async def listed(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [row.key async for row in store.list(prefix, after=after)]


KEYS = st.sampled_from(
    [
        TIER_ANCHOR,
        *(
            key
            for stream in ("a", "b", "a-b", "é", "x" * 300)
            for keys in [StreamKeys(stream)]
            for key in (keys.anchor, keys.root(1), keys.root(2), f"{keys.data}1", f"{keys.data}2")
        ),
        "a/metadata/group.1",
        "a/metadata/roo",
        "a/stranger",
        StreamKeys("a").key_objects(UUID(int=1), UUID(int=2), 1)[0],
        "a/keys.1",
        "stranger",
    ]
)
PREFIXES = st.one_of(
    KEYS, st.sampled_from(["", "a", "a/", "a/m", "a/metadata/", "a/data/", "tier", "z", "s"])
)


@given(st.sets(KEYS), PREFIXES, st.one_of(st.just(""), KEYS))
def test_two_stores_list_as_one(keys: set[str], prefix: str, after: str) -> None:
    data: Objects = {}
    commits: Objects = {}
    store = SplitStore(
        MemoryStore(objects=data), MemoryStore(objects=commits), decisive=is_decisive, sides_of=sides_of
    )

    async def scenario() -> list[str]:
        for key in keys:
            await store.put(key, Body.of(b""))
        return await listed(store, prefix, after)

    expected = sorted((k for k in keys if k.startswith(prefix) and k > after), key=str.encode)
    assert run(scenario()) == expected
    assert {*commits} == {key for key in keys if is_decisive(key)}
    assert {*data} == keys - {*commits}


def test_only_the_store_that_can_hold_the_keys_is_listed() -> None:
    """Loading a root lists only the store of the roots, not the distant data store."""
    keys = StreamKeys("a")

    assert sides_of(keys.roots) == (True, False)
    assert sides_of(keys.data) == (False, True)
    assert sides_of(keys.prefix) == (True, True)


def test_a_split_store_refuses_to_create_data() -> None:
    store = SplitStore(MemoryStore(), MemoryStore(), decisive=is_decisive, sides_of=sides_of)

    with pytest.raises(Misuse):
        run(store.create(f"{StreamKeys('a').data}1", b""))
