"""Tests of `check`: it reports as working only features that it saw work, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import offload
from key_world import Service
from osiris_data import DATA
from split_tier import Overwriting

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload
from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Denied, NoSpace, NotFound, OffloadError
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator, UploadDecorator
from offload.upkeep.check import CheckReport, CheckVerdict, check, check_master_key


def checked(store: ObjectStore, *, writing: bool = True) -> CheckReport:
    return asyncio.run(check(store, writing=writing))


def failed(report: CheckReport) -> list[str]:
    return [finding.name for finding in report.findings if finding.verdict is CheckVerdict.FAILS]


def test_everything_works_on_a_sound_store_and_nothing_is_left() -> None:
    objects: dict[str, bytes] = {"a stranger": b""}

    report = checked(MemoryStore(objects=objects))

    assert failed(report) == []
    assert all(finding.verdict is CheckVerdict.WORKS for finding in report.findings)
    assert [report.can(what) for what in ("read", "write", "commit")] == [True] * 3
    assert objects == {"a stranger": b""}


@pytest.mark.parametrize("place", ["nowhere", "nowhere/at/all", "empty"])
def test_a_place_that_did_not_exist_does_not_exist_afterwards(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()

    assert offload("check", tmp_path / place).code == 0

    assert [*tmp_path.rglob("*")] == [tmp_path / "empty"]


def test_a_read_only_check_changes_nothing_and_claims_nothing() -> None:
    class Guarded(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            pytest.fail("put")

        async def create(self, key: str, data: bytes) -> None:
            pytest.fail("create")

        async def delete(self, keys: Sequence[str]) -> None:
            pytest.fail("delete")

    report = checked(Guarded(), writing=False)

    assert [report.can(what) for what in ("read", "write", "commit")] == [True, False, False]


class LosesTheLastByte(StoreDecorator):
    async def put(self, key: str, body: Body) -> None:
        data = b"".join([window async for window in body.windows()])
        await self.inner.put(key, Body.of(data[:-1]))


class CountsFromOne(StoreDecorator):
    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span):
            span = Span(span.start + 1, span.length)
        return await self.inner.get(key, span)


class ListsLate(StoreDecorator):
    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return self._rows(prefix, after)

    async def _rows(self, prefix: str, after: str) -> AsyncIterator[Listed]:
        async for row in self.inner.list(prefix, after=after):
            if ".listed.4" not in row.key:
                yield row


class SaysThatListingsAreLate(StoreDecorator):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, strong_listing=False)


class KeepsWhatIsDeleted(StoreDecorator):
    async def delete(self, keys: Sequence[str]) -> None:
        pass


class MayNotDelete(StoreDecorator):
    async def delete(self, keys: Sequence[str]) -> None:
        raise Denied("the credentials lack the permission s3:DeleteObject")


class TakesSmallObjects(StoreDecorator):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, multipart=False, put_size_bytes_max=1_500_000)

    async def put(self, key: str, body: Body) -> None:
        assert body.size_bytes <= 1_500_000
        await self.inner.put(key, body)


def test_a_store_of_small_objects_is_measured_with_small_ones() -> None:
    report = checked(TakesSmallObjects(MemoryStore()))

    says = {finding.name: finding.says for finding in report.findings}
    assert failed(report) == []
    assert says["large objects"].endswith("one request takes an object of at most 1,500,000 bytes")
    assert says["throughput"].endswith("objects of 1.43 MiB at once")


class MixesParts(StoreDecorator):
    async def start_upload(self, key: str) -> Upload:
        return _Mixed(await self.inner.start_upload(key))


class _Mixed(UploadDecorator):
    async def put_part(self, number: int, data: bytes) -> None:
        await self.inner.put_part(3 - number, data)


class CreatesTwice(Overwriting):
    """A store that refuses the second create, and overwrites all the same."""

    async def create(self, key: str, data: bytes) -> None:
        was_there = key in self.objects
        await super().create(key, data)
        if was_there:
            raise AlreadyExists(key)


@pytest.mark.parametrize(
    ("store", "names", "can"),
    [
        (Overwriting(), ["create"], ["read", "write"]),
        (CreatesTwice(), ["create"], ["read", "write"]),
        (CountsFromOne(MemoryStore()), ["ranges", "large objects"], ["read"]),
        (LosesTheLastByte(MemoryStore()), ["put"], ["read"]),
        (ListsLate(MemoryStore()), ["list after write"], ["read", "write"]),
        (SaysThatListingsAreLate(MemoryStore()), ["list after write"], ["read", "write"]),
        (KeepsWhatIsDeleted(MemoryStore()), ["delete", "clean up"], ["read"]),
        (MayNotDelete(MemoryStore()), ["delete", "clean up"], ["read"]),
        (MixesParts(MemoryStore()), ["large objects"], ["read"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ObjectStore) else "",
)
def test_a_broken_feature_is_named_and_its_dependents_do_not_work(
    store: ObjectStore, names: list[str], can: list[str]
) -> None:
    report = checked(store)

    assert [name for name in failed(report) if name in names] == names
    assert [what for what in ("read", "write", "commit") if report.can(what)] == can


def test_an_unreachable_place_gets_no_further_requests() -> None:
    class Gone(MemoryStore):
        asked = 0

        async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
            raise Denied("the bucket does not exist")
            yield Listed("", 0)

        async def get(self, key: str, span: object = None) -> bytes:
            raise OffloadError("the bucket does not exist")

        async def put(self, key: str, body: Body) -> None:
            pytest.fail("put")

    report = checked(Gone())

    assert failed(report) == ["list", "read"]
    assert not any(report.can(what) for what in ("read", "write", "commit"))


def test_a_bug_in_the_backend_is_reported_as_a_failure() -> None:
    class Unfinished(MemoryStore):
        async def create(self, key: str, data: bytes) -> None:
            raise NotImplementedError("create is not written yet")

    objects: dict[str, bytes] = {}

    report = checked(Unfinished(objects=objects))

    assert failed(report) == ["create"]
    [says] = [each.says for each in report.findings if each.name == "create"]
    assert says == "a bug in the backend: NotImplementedError: create is not written yet"
    assert (report.can("write"), report.can("commit"), objects) == (True, False, {})


def test_an_error_in_the_middle_still_cleans_up() -> None:
    class Breaks(MemoryStore):
        async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
            if "latency" in key:
                raise NotFound(key)
            return await super().get(key, span)

    objects: dict[str, bytes] = {}

    assert failed(checked(Breaks(objects=objects))) == ["latency"]
    assert objects == {}


def test_a_full_store_is_reported_although_small_objects_fit() -> None:
    class NearlyFull(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            if body.size_bytes > 100_000:
                raise NoSpace("the store is full: make room")
            await super().put(key, body)

    report = checked(NearlyFull())

    assert "throughput" in failed(report)
    assert (report.can("read"), report.can("write"), report.can("commit")) == (True, False, False)


def test_a_put_that_is_still_under_way_when_another_fails_leaves_nothing_behind() -> None:
    """A full disk refuses one object while others are being written."""
    objects: dict[str, bytes] = {}

    class FullInTheMiddle(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            if key.endswith("throughput.0"):
                raise NoSpace("the store is full: make room")
            if "throughput" in key:
                await asyncio.sleep(0.05)
            await super().put(key, body)

    async def scenario() -> list[str]:
        report = await check(FullInTheMiddle(objects=objects))
        await asyncio.sleep(0.1)
        return failed(report)

    assert asyncio.run(scenario()) == ["throughput"]
    assert objects == {}


class TestCommand:
    def test_a_folder_that_is_not_a_tier_yet_may_become_one(self, tmp_path: Path) -> None:
        done = offload("check", str(tmp_path / "tier"))

        assert done.code == 0, done.stderr
        assert "no tier yet; `offload sync` makes one" in done.text
        assert done.text.rstrip().endswith("reading: yes; writing: yes; committing: yes")
        assert [path for path in (tmp_path / "tier").rglob("*") if "check" in path.name] == []

    def test_a_check_with_a_commit_store_judges_both_stores(self, tmp_path: Path) -> None:
        data, roots = tmp_path / "data", tmp_path / "roots"
        assert (
            offload("sync", f"rabbitmq://{DATA / 'tiny'}", str(data), "--commit-store", str(roots)).code == 0
        )

        done = offload("check", str(data), "--json")

        document = done.document
        assert [store["url"] for store in document["stores"]] == [f"file://{data}", f"file://{roots}"]
        assert document["can"] == {"read": True, "write": True, "commit": True}

    def test_a_copy_of_data_whose_roots_are_elsewhere_can_only_be_read(self, tmp_path: Path) -> None:
        """A run on it would be refused at its first commit."""
        data, roots, copied = (tmp_path / name for name in ("data", "roots", "copied"))
        tiny = f"rabbitmq://{DATA / 'tiny'}"
        assert offload("sync", tiny, str(data), "--commit-store", str(roots)).code == 0
        shutil.copytree(data, copied)

        done, run = offload("check", str(copied), "--json"), offload("run", "--check", tiny, str(copied))

        assert done.document["can"] == {"read": True, "write": False, "commit": False}
        assert f"FAILS place             a copy of the data at file://{data}: it can be read" in run.text
        assert (run.code, run.lines[-1]) == (1, "ready: NO")

    @pytest.mark.parametrize("options", [(), ("--hashed-keys",)], ids=["plain", "hashed"])
    def test_a_check_of_a_tier_that_lost_its_anchor_fails(
        self, tmp_path: Path, options: tuple[str, ...]
    ) -> None:
        tier = tmp_path / "tier"
        assert offload("sync", f"rabbitmq://{DATA / 'tiny'}", str(tier), *options).code == 0
        (tier / "tier.anchor").unlink()

        done = offload("check", str(tier))

        assert done.code == 1
        assert "FAILS read              tier.anchor at byte 0: anchor: expected present" in done.text
        assert f"To restore it, run: offload rebuild {tier.as_uri()}" in done.text

    def test_a_check_of_a_folder_of_other_files_says_that_it_is_no_tier(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")

        done = offload("check", str(tmp_path), "--read-only")

        assert "no tier; this place is not empty, so `offload sync` will not make one here" in done.text

    def test_a_read_only_check_makes_no_folder(self, tmp_path: Path) -> None:
        done = offload("check", str(tmp_path / "tier"), "--read-only")

        assert (done.code, [*tmp_path.iterdir()]) == (0, [])

    def test_a_wrong_option_is_a_wrong_call(self, tmp_path: Path) -> None:
        done = offload("check", str(tmp_path), "-o", "colour=blue")

        assert done.code == 2
        assert "has no option 'colour'" in done.stderr


DAY_MS = 24 * 3600 * 1000
ENOUGH = 4
"""The objects of a small check: one each that is put, created, listed, and uploaded in parts."""


def says(report: CheckReport, name: str) -> str:
    return next(finding.says for finding in report.findings if finding.name == name)


def test_a_store_that_forbids_deletion_gets_few_objects_and_the_report_names_them() -> None:
    objects: dict[str, bytes] = {}

    report = checked(MayNotDelete(MemoryStore(objects=objects)))

    [prefix] = {key.rpartition(".")[0].removesuffix(".listed") for key in objects}
    assert len(objects) == ENOUGH
    assert f"begin with '{prefix}.'" in says(report, "put")
    assert f"4 objects are left; remove by hand what begins with '{prefix}.'" in says(report, "clean up")
    untried = [finding.name for finding in report.findings if finding.verdict is CheckVerdict.NOT_TRIED]
    assert untried == ["latency", "throughput"]
    assert failed(report) == ["delete", "clean up"]


def test_a_store_that_keeps_versions_gets_few_objects_and_the_report_says_so() -> None:
    puts: list[str] = []

    class Versioned(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            puts.append(key)
            await super().put(key, body)

        async def retained(self, key: str) -> str | None:
            assert key in self.objects
            return "the bucket keeps deleted objects as versions"

    report = checked(Versioned())

    assert len(puts) == ENOUGH - 1, "one is created"
    assert "keeps deleted objects as versions: remove by hand all versions" in says(report, "clean up")
    assert failed(report) == ["clean up"]
    assert report.can("commit")


def test_a_check_removes_day_old_trial_objects_and_no_younger_ones() -> None:
    now_ms = 1_000 * DAY_MS
    old, young = now_ms - DAY_MS - 1, now_ms - DAY_MS
    left = [f"tier.check.{old:020}.uuid.small", f"tier.probe.{old:020}.uuid"]
    stay = [f"tier.check.{young:020}.uuid.small", "tier.check.uuid.small", "tier.anchor.old", "orders/x"]
    store = MemoryStore(objects=dict.fromkeys([*left, *stay], b""))

    report = asyncio.run(check(store, env=Env(now_ms=lambda: now_ms)))

    assert sorted(store.objects) == sorted(stay)
    assert says(report, "clean up").endswith("removed 2 objects of interrupted trials")


def test_the_key_that_a_check_wraps_is_a_secret_of_the_environment() -> None:
    service, wrapped = Service("main"), list[bytes]()
    service.unwraps_to = lambda key: wrapped.append(key) or key

    env = Env(secret=lambda size_bytes: b"\x07" * size_bytes)
    asyncio.run(check_master_key(service, "main", env=env))

    assert wrapped == [b"\x07" * 32]


def test_a_key_service_that_unwraps_another_key_fails() -> None:
    service = Service("main")
    service.unwraps_to = lambda key: bytes(32)

    found = asyncio.run(check_master_key(service, "main"))

    assert (found.verdict, found.says) == (
        CheckVerdict.FAILS,
        "the key service does not return the key that it has wrapped",
    )
