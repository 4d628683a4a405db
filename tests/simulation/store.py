"""The store of one simulated process. Each request waits for its turn, and may fail in every way we know.

All stores of a world share its objects. A request takes effect in one step, at its turn; its reply may come
at a turn of its own. A listing has one request per page, and each page shows the moment of its answer. In
some worlds a put of data is a multipart upload, which a crash leaves unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from protocol_world import KEYS

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.keys import TIER_ANCHOR, is_decisive
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OutcomeUnknown, Throttled, TryAgain
from offload.store.spans import clip

if TYPE_CHECKING:
    from simulation.world import Process, World

T = TypeVar("T")


def is_data(key: str) -> bool:
    """Return True if the data store beside a commit store may hold this key. Both have the tier's anchor."""
    return key == TIER_ANCHOR or not is_decisive(key)


class Crash(BaseException):
    """The error that ends a process. No program catches it."""


@dataclass
class Life:
    """The creation and deletion of each object, counted in changes, for weak listings."""

    now: int = 0
    born: dict[str, int] = field(default_factory=dict)
    gone: list[tuple[int, int, str, int]] = field(default_factory=list)
    """The creation, the deletion, the key and the size of each deleted object."""

    def begins(self, key: str) -> None:
        """Record that an object appears, or is put again."""
        self.now += 1
        self.born.setdefault(key, self.now)

    def ends(self, key: str, size_bytes: int) -> None:
        """Record that an object is deleted."""
        self.now += 1
        self.gone.append((self.born.pop(key, 0), self.now, key, size_bytes))

    def shown(
        self,
        there: dict[str, int],
        wanted: Callable[[str], bool],
        since: int,
        chance: Callable[[float], bool],
    ) -> dict[str, int]:
        """Return the worst listing that "What listings show" in docs/commit-protocol.md allows."""
        rows = [row for row in self.gone if row[1] > since and wanted(row[2])]
        gone = {key: size for _, _, key, size in rows}
        shown = {key: size for key, size in there.items() if self.born.get(key, 0) <= since or chance(0.5)}
        shown |= {key: size for key, size in gone.items() if chance(0.5)}
        for folder in {key.rpartition("/")[0] for key in gone}:
            at_first = [key for born, _, key, _ in rows if born <= since and key.rpartition("/")[0] == folder]
            later = [key for key in (*gone, *there) if key.rpartition("/")[0] == folder]
            end = max(at_first, default="")
            if not any(key.rpartition("/")[0] == folder and key >= end for key in shown):
                key = min(key for key in later if key >= end)
                shown[key] = (gone | there)[key]
        return shown


@dataclass(eq=False)
class Turn:
    """A request, or the reply to one, that waits for its turn."""

    process: Process
    operation: str
    key: str
    given: asyncio.Future[None]
    act: Callable[[], None] | None = None
    """The effect of the request, which may still happen after the process dies."""
    torn: Callable[[], None] | None = None
    """The effect in a store that breaks its promise: the object exists, and is damaged."""


class SimulatedStore(ObjectStore):
    """A store, as the module's docstring describes it."""

    def __init__(self, process: Process, world: World, *, holds: Callable[[str], bool] | None = None) -> None:
        """Make the store. `holds` selects the keys that it may have, if there are other stores."""
        self._process, self._world, self._holds = process, world, holds
        self._objects = world.objects

    @property
    def url(self) -> str:
        if self._holds is None:
            return f"simulated://{self._process.name}"
        return "simulated://data" if self._holds is is_data else "simulated://roots"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=self._holds is not is_data,
            strong_listing=True,
            multipart=True,
            durable=True,
            create_is_probed=False,
            delete_batch_max=3,
            unsized_put=not self._world.weather.needs_sizes,
        )

    async def put(self, key: str, body: Body) -> None:
        self._check(key)
        self._world.judge.sent(key, self._process.name)
        assert not (body.is_bound and self._world.weather.needs_sizes), f"the size of {key!r} is not known"
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        if not (self._world.weather.multipart and key.startswith(KEYS.data)):
            torn = (lambda: self._store(key, self._flipped(data))) if key.startswith(KEYS.data) else None
            await self.ask("put", key, lambda: self._store(key, data), torn=torn)
            return
        upload = await self.ask("begin", key, lambda: self._begun(key))

        def complete() -> None:
            if self._world.unfinished.pop(upload.upload_id, None) is None:
                raise TryAgain(f"the upload of {key!r} was aborted")
            self._store(key, data)

        await self.ask("complete", key, complete)

    async def create(self, key: str, data: bytes) -> None:
        self._check(key)
        self._world.judge.asks(key, data, decided_before=self._process.saw_losses != self._world.judge.losses)

        def create() -> None:
            if key in self._objects:
                raise AlreadyExists(key)
            self._store(key, data)

        await self.ask("create", key, create)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self._check(key, reads=True)

        def get() -> bytes:
            if key not in self._objects:
                raise NotFound(key, store=self.url)
            start, end = clip(span, len(self._objects[key]))
            data = self._objects[key][start:end]
            if self._world.chance(self._world.weather.flips):
                self._world.happened("flipped bits")
                return self._flipped(data)
            return data

        return await self.ask("get", key, get, changes=False)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        since = self._world.life.now
        while True:
            begin, page_keys = after, self._world.page_keys

            def page(begin: str = begin, page_keys: int = page_keys) -> list[Listed]:
                sizes = self._shown(lambda key: key.startswith(prefix) and key > begin, since)
                return [Listed(key, sizes[key]) for key in sorted(sizes)[: page_keys + 1]]

            rows = await self.ask("list", prefix, page, changes=False)
            for row in rows[:page_keys]:
                yield row
            if len(rows) <= page_keys:
                return
            after = rows[page_keys - 1].key

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check(key)

        def delete() -> None:
            for key in keys:
                if (data := self._objects.pop(key, None)) is not None:
                    self._world.life.ends(key, len(data))

        await self.ask("delete", ", ".join(keys), delete)

    async def start_upload(self, key: str) -> Upload:
        raise Misuse(f"{key!r}: only `put` makes uploads by parts in the simulation")

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        def uploads() -> list[Unfinished]:
            return [each for each in self._world.unfinished.values() if each.key.startswith(prefix)]

        return await self.ask("uploads", prefix, uploads, changes=False)

    async def abort_upload(self, upload: Unfinished) -> None:
        await self.ask("abort", upload.key, lambda: self._aborted(upload))

    def _shown(self, wanted: Callable[[str], bool], since: int) -> dict[str, int]:
        """Return the sizes of the objects in a listing that began at `since`. A weak one may show others."""

        def mine(key: str) -> bool:
            return wanted(key) and (self._holds is None or self._holds(key))

        there = {key: len(data) for key, data in self._objects.items() if mine(key)}
        if not self._world.weather.weak_listings:
            return there
        return self._world.life.shown(there, mine, since, self._world.chance)

    def _check(self, key: str, *, reads: bool = False) -> None:
        """Check that this store may hold the key.

        If the tier's anchor is lost, a reader cannot know that there are two stores.
        """
        check_key(key)
        if reads and (self._world.in_doubt or self._process.lived_through_a_loss):
            return
        if self._holds is not None and not self._holds(key):
            self._world.fail(f"{key} was asked of a store that never holds it")

    def _store(self, key: str, data: bytes) -> None:
        if key not in self._world.torn:  # an object that a crash tore stays torn
            self._world.life.begins(key)
            self._objects[key] = bytes(data)

    def _flipped(self, data: bytes) -> bytes:
        """Return the data with one bit flipped."""
        if not data:
            return data
        bit = self._world.random.randrange(8 * len(data))
        at = bit // 8
        return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]

    def _begun(self, key: str) -> Unfinished:
        uploads = self._world.unfinished
        upload = Unfinished(key, f"{len(uploads)}.{self._process.env.uuid()}", self._world.now_ms())
        uploads[upload.upload_id] = upload
        return upload

    def _aborted(self, upload: Unfinished) -> None:
        self._world.unfinished.pop(upload.upload_id, None)

    async def ask(
        self,
        operation: str,
        key: str,
        act: Callable[[], T],
        *,
        changes: bool = True,
        torn: Callable[[], None] | None = None,
    ) -> T:
        """Make one request: wait for its turn, apply it or fail, and deliver its reply."""
        world, weather = self._world, self._world.weather
        await self.turn(operation, key, self._landing(act) if changes else None, torn)
        if world.chance(weather.refused):
            world.happened("refused")
            raise TryAgain(f"{operation} of {key!r}: refused")
        if world.chance(weather.throttled):
            world.happened("throttled")
            raise Throttled(f"{operation} of {key!r}: too many requests", pause_seconds=world.random.random())
        if changes and world.chance(weather.late):
            world.happened("late requests")
            world.late.append(self._landing(act))
            raise OutcomeUnknown(f"{operation} of {key!r}: no answer")
        result = self._judged(act)
        if world.chance(0.5):
            await self.turn("  replied", key)
        if world.chance(weather.lost_reply):
            world.happened("lost replies")
            if not changes:
                raise TryAgain(f"{operation} of {key!r}: the answer broke off")
            raise OutcomeUnknown(f"{operation} of {key!r}: no answer")
        return result

    async def turn(
        self,
        operation: str,
        key: str,
        act: Callable[[], None] | None = None,
        torn: Callable[[], None] | None = None,
    ) -> None:
        """Wait for a turn. Raises `Crash` if the process ends meanwhile."""
        if self._process.dead:
            raise Crash
        turn = Turn(self._process, operation, key, self._world.loop.create_future(), act, torn)
        self._world.turns.append(turn)
        try:
            await turn.given
        except asyncio.CancelledError:
            if turn in self._world.turns:
                self._world.turns.remove(turn)
                if act is not None and self._world.chance(0.5):  # it was in flight, and may land
                    self._world.late.append(act)
            raise
        if self._process.dead:
            raise Crash

    def _landing(self, act: Callable[[], T]) -> Callable[[], None]:
        def land() -> None:
            with suppress(AlreadyExists, TryAgain):  # nobody hears of it
                self._judged(act)

        return land

    def _judged(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except AssertionError as broken:  # the judge cannot even read what was stored
            self._world.fail(str(broken), broken)
            raise
