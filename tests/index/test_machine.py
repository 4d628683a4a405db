"""A walk of everything that happens to a stream and to its indexes, against the records themselves.

Whatever was lost, damaged, merged or rebuilt, and whatever runs beside it: a find returns the records with
the term, each once and in order, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from index_world import KEYS, IndexWorld, keys_of, make_small, run
from kit.world import STREAM

from offload import OffloadError
from offload.index.find import FindReport
from offload.index.rules import judged, uncovered
from offload.upkeep.compact.stream import compact
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep

LETTERS = "abcdef"
keys = st.lists(st.sampled_from(LETTERS), max_size=3)
records = st.lists(keys, min_size=1, max_size=9)


class IndexedStream(RuleBasedStateMachine):
    """One stream, its writer, and everybody who touches its indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        make_small(self.patch)
        self.world = IndexWorld()
        self.is_live = self.is_damaged = False

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(found=records)
    def begin(self, found: list[list[str]]) -> None:
        self.append(found)

    @rule(found=records)
    def append(self, found: list[list[str]]) -> None:
        run(self.world.append(found))
        self.is_live = True

    @precondition(lambda self: self.is_live)
    @rule()
    def index(self) -> None:
        """After an index run everything is indexed, by objects none of which is within another one."""
        run(self.world.index())
        manifest = run(self.world.tier().load_manifest(STREAM))
        names = self.world.names
        found = judged(names, manifest)
        assert not found.unused
        assert uncovered(found.used, manifest.first_offset, manifest.next_offset) == []
        if not self.is_damaged:
            report = FindReport()
            run(self.world.find("a", report=report))
            assert report.scanned == 0

    @precondition(lambda self: self.is_live)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        run(self._trim(data.draw(st.integers(0, self._end()))))

    @precondition(lambda self: self.is_live)
    @rule()
    def compact(self) -> None:
        run(self._compact())

    @precondition(lambda self: self.is_live)
    @rule()
    def sweep(self) -> None:
        run(self._sweep())
        manifest = run(self.world.tier().load_manifest(STREAM))
        assert not judged(self.world.names, manifest).unused

    @precondition(lambda self: self.is_live)
    @rule(and_sweep=st.booleans())
    def delete(self, and_sweep: bool) -> None:
        run(delete_stream(self.world.others(), STREAM))
        self.is_live = False
        if and_sweep:
            run(self._sweep())
            assert self.world.indexes == []

    @precondition(lambda self: self.world.indexes)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.world.objects[data.draw(st.sampled_from(self.world.indexes))]

    @precondition(lambda self: self.world.indexes)
    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "swap"]))
    def damage(self, data: st.DataObject, how: str) -> None:
        key, self.is_damaged = data.draw(st.sampled_from(self.world.indexes)), True
        raw = self.world.objects[key]
        if not raw:  # it was cut before
            return
        at = data.draw(st.integers(0, len(raw) - 1))
        if how == "flip":
            self.world.flip(key, at)
        elif how == "cut":
            self.world.objects[key] = raw[:at]
        else:
            self.world.objects[key] = self.world.objects[data.draw(st.sampled_from(self.world.indexes))]

    @precondition(lambda self: self.is_live)
    @rule(count=st.integers(1, 4))
    def lose_roots_and_rebuild(self, count: int) -> None:
        """Indexes of the time before end. If they prove the loss, nobody deletes or builds any before."""
        before = dict(self.world.objects)
        roots = sorted(key for key in before if key.startswith(KEYS.roots))
        for key in roots[-count:][: len(roots) - 1]:
            del self.world.objects[key]
        newest = max(KEYS.parse_root(key) or 0 for key in self.world.objects if key.startswith(KEYS.roots))
        if any(name.version > newest for name in self.world.names):
            assert isinstance(self._error_of(self.world.index()), OffloadError)
            indexes = self.world.indexes
            # `RootsLost`, or `Absent` if the older root names a fragment that was trimmed and swept.
            assert run(self._sweep_errors()) != []
            assert self.world.indexes == indexes
        try:
            done = run(rebuild(self.world.others(), STREAM)).manifest is not None
        except OffloadError:
            done = False
        if not done:  # a person must choose: the roots come back
            self.world.objects.clear()
            self.world.objects.update(before)

    @precondition(lambda self: self.is_live)
    @rule(
        term=st.sampled_from(LETTERS),
        at=st.integers(0, 12),
        other=st.sampled_from(["index", "trim", "compact", "sweep", "append"]),
        data=st.data(),
    )
    def find_beside(self, term: str, at: int, other: str, data: st.DataObject) -> None:
        """What was there before the find and is there after it is found."""
        offset = data.draw(st.integers(0, self._end()))
        others: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "index": self.world.index,
            "trim": lambda: self._trim(offset),
            "compact": self._compact,
            "sweep": self._sweep,
            "append": lambda: self.world.append([[term]]),
        }
        before = run(self.world.having(term))
        found = run(self._beside(self.world.find(term), at, others[other]))
        after = run(self.world.having(term))
        assert [each for each in found if each in before and each in after] == [
            each for each in before if each in after
        ]
        assert {*found} <= {*before, *after}

    @precondition(lambda self: self.is_live)
    @rule(at=st.integers(0, 25), data=st.data(), other=st.sampled_from(["index", "trim", "compact", "sweep"]))
    def index_beside(self, at: int, data: st.DataObject, other: str) -> None:
        offset = data.draw(st.integers(0, self._end()))
        others: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "index": self.world.index,
            "trim": lambda: self._trim(offset),
            "compact": self._compact,
            "sweep": self._sweep,
        }
        run(self._beside(self.world.index(), at, others[other]))

    @precondition(lambda self: self.is_live)
    @invariant()
    def every_term_is_found(self) -> None:
        truth = run(self.world.records())
        for terms in ("a", "bc", LETTERS):
            wanted = [(at, raw) for at, raw in truth if {*terms} & {*keys_of(raw)}]
            assert run(self.world.find(*terms)) == wanted

    async def _beside(
        self, work: Coroutine[Any, Any, Any], at: int, other: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Await `work`, and do something else before its request number `at`."""
        count = 0

        async def before(operation: str, key: str) -> None:
            nonlocal count
            count += 1
            if count == at + 1:
                self.world.store.before = nothing
                await other()

        self.world.store.before = before
        try:
            return await work
        finally:
            self.world.store.before = nothing

    def _end(self) -> int:
        return run(self.world.tier().load_manifest(STREAM)).next_offset

    async def _trim(self, offset: int) -> None:
        await trim(self.world.others(), STREAM, Retention(before_offset=offset))

    async def _compact(self) -> None:
        async for each in compact(self.world.others(), fragment_size_bytes=2**20):
            assert each.error is None

    async def _sweep(self) -> None:
        assert await self._sweep_errors() == []

    async def _sweep_errors(self) -> list[OffloadError]:
        report = await sweep(self.world.store.inner, grace_seconds=0, env=self.world.env())
        return [error for each in report.streams for error in each.errors]

    def _error_of(self, work: Coroutine[Any, Any, Any]) -> OffloadError | None:
        try:
            run(work)
        except OffloadError as error:
            return error
        return None


async def nothing(operation: str, key: str) -> None:
    """Do nothing."""


IndexedStream.TestCase.settings = settings(
    max_examples=300 if CAMPAIGN else 10, stateful_step_count=30 if CAMPAIGN else 14, deadline=None
)
TestIndexedStream = IndexedStream.TestCase
