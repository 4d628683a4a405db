"""A store that fails on purpose, for tests: replies get lost, writes land late, bytes are damaged.

    store = FaultyStore(MemoryStore(), rules=[
        Rule(Fault.LOSE_REPLY, "create", "*/root.*", nth=1),   # applied, yet OutcomeUnknown
        Rule(Fault.DELAY, "put", "*.fragment"),                # OutcomeUnknown, and applied by land()
    ])

Rules decide which requests fail, or chances and a seeded `random` do. If several rules match a request, the
first one decides. `before` and `after` are awaited around every request: a test can use them to pause one
writer, let another run, or raise to simulate a crash. `calls` lists all requests in order. A request that no
rule or hook touches is neither skipped nor reordered.

Operations are put, create, get, list, delete, start_upload, put_part, complete and abort. The key of a list
is its prefix. A delete counts as one request under its first key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from random import Random  # noqa: TID251 - seeded: it decides the faults of a test
from typing import Final, NamedTuple

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Upload, begin_upload
from offload.ground.errors import AlreadyExists, Denied, OutcomeUnknown, TryAgain
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["MUTATIONS", "Call", "Fault", "FaultyStore", "Rule"]


Hook = Callable[[str, str], Awaitable[None]]

MUTATIONS: Final = frozenset({"put", "create", "delete", "put_part", "complete", "abort"})
READS: Final = frozenset({"get", "list"})


class Fault(Enum):
    """A failure of one request. Rules and chances skip operations that cannot fail in this way."""

    FAIL_BEFORE = "not applied; TryAgain"
    LOSE_REPLY = "applied; OutcomeUnknown. If the store itself refuses the request, that error is raised"
    DELAY = "not applied until land() is called; OutcomeUnknown"
    DENY = "not applied; Denied"
    CUT = "get returns the first half; list breaks off with TryAgain after one row"
    FLIP = "get returns its bytes with one bit in the middle flipped"

    def fits(self, operation: str) -> bool:
        """Return True if this fault can happen to `operation`."""
        if self in (Fault.LOSE_REPLY, Fault.DELAY):
            return operation in MUTATIONS
        if self is Fault.CUT:
            return operation in READS
        return self is not Fault.FLIP or operation == "get"


@dataclass(slots=True)
class Rule:
    """A rule that makes requests fail: those whose operation and key match two shell patterns.

    `nth` selects one of the matching requests, counted from 1. If it is None, all of them fail.
    """

    fault: Fault
    operation: str = "*"
    key: str = "*"
    nth: int | None = field(default=None, kw_only=True)
    matched: int = field(default=0, init=False)

    def hits(self, operation: str, key: str) -> bool:
        """Count this request if it matches, and return True if it must fail."""
        if not (fnmatchcase(operation, self.operation) and fnmatchcase(key, self.key)):
            return False
        if not self.fault.fits(operation):
            return False
        self.matched += 1
        return self.nth in (None, self.matched)


class Call(NamedTuple):
    """One request: its operation and its key."""

    operation: str
    key: str


async def _nothing(_operation: str, _key: str) -> None:
    """Do nothing: the default hook."""


class FaultyStore(StoreDecorator):
    """A store that fails as the module head describes. `rules`, `before` and `after` may change at any time.

    If `chances` are given, a request that no rule matches suffers each fitting fault with its chance. The
    same seed and the same requests give the same faults.
    """

    __slots__ = ("_late", "after", "before", "calls", "chances", "random", "rules")

    def __init__(
        self,
        inner: ObjectStore,
        *,
        rules: Sequence[Rule] = (),
        chances: Mapping[Fault, float] | None = None,
        random: Random | None = None,
        before: Hook = _nothing,
        after: Hook = _nothing,
    ) -> None:
        super().__init__(inner)
        self.rules = [*rules]
        self.chances = dict(chances or {})
        self.random = random or Random(0)  # noqa: S311 - a seed is the point, not secrecy
        self.before = before
        self.after = after
        self.calls: list[Call] = []
        self._late: list[tuple[Call, Callable[[], Awaitable[None]]]] = []

    @property
    def late(self) -> tuple[Call, ...]:
        """The delayed mutations that were not applied yet, oldest first."""
        return tuple(call for call, _ in self._late)

    async def land(self, key: str = "*") -> int:
        """Apply the delayed mutations whose key matches, oldest first. Return how many took effect.

        A create whose key exists by then has no effect, as in a real store.
        """
        landing = [late for late in self._late if fnmatchcase(late[0].key, key)]
        # Off the list before the first wait: a call of `land` meanwhile must not apply them twice.
        self._late = [late for late in self._late if late not in landing]
        landed = 0
        for _, apply in landing:
            try:
                await apply()
            except AlreadyExists:
                continue
            landed += 1
        return landed

    async def put(self, key: str, body: Body) -> None:
        """Put the object, or fail as the rules say."""

        async def gather() -> Callable[[], Awaitable[None]]:
            # The bytes are read now: a request that lands late carries the bytes that it was sent with, even
            # if its sender has ended or its source has changed.
            data = b"".join([window async for window in body.windows()])
            return partial(self.inner.put, key, Body.of(data, metadata=body.metadata))

        await self.mutate("put", key, partial(self.inner.put, key, body), late=gather)

    async def create(self, key: str, data: bytes) -> None:
        """Create the object, or fail as the rules say."""
        # `bytes` copies a buffer that the caller may change before a delayed create lands.
        await self.mutate("create", key, partial(self.inner.create, key, bytes(data)))

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read the object. The bytes may be cut or damaged."""
        # The fault is chosen before the read, as for every operation, and applied to the reply.
        fault = await self._begin("get", key)
        data = await self.inner.get(key, span)
        await self.after("get", key)
        if fault is Fault.CUT:
            return data[: len(data) // 2]
        if fault is Fault.FLIP and data:
            middle = len(data) // 2
            return bytes(data[:middle]) + bytes([data[middle] ^ 1]) + bytes(data[middle + 1 :])
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for the checksum, or fail as the rules say."""
        await self._begin("stored_crc32c", key)
        checksum = await self.inner.stored_crc32c(key)
        await self.after("stored_crc32c", key)
        return checksum

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for the metadata, or fail as the rules say."""
        await self._begin("metadata_of", key)
        metadata = await self.inner.metadata_of(key)
        await self.after("metadata_of", key)
        return metadata

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List objects. The listing may break off after one row."""
        fault = await self._begin("list", prefix)
        async for row in self.inner.list(prefix, after=after):
            yield row
            # After a row: a listing that breaks off half-way may make a caller lose or repeat rows.
            if fault is Fault.CUT:
                raise TryAgain(f"the listing of {prefix!r} broke off on purpose")
        await self.after("list", prefix)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level. The listing may break off after one name."""
        fault = await self._begin("list", prefix)
        async for name in self.inner.level(prefix):
            yield name
            if fault is Fault.CUT:
                raise TryAgain(f"the listing of {prefix!r} broke off on purpose")
        await self.after("list", prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects, or fail as the rules say."""
        keys = tuple(keys)
        await self.mutate("delete", keys[0] if keys else "", partial(self.inner.delete, keys))

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload whose calls may fail in the same ways."""
        await self._begin("start_upload", key)
        upload = _FaultyUpload(await begin_upload(self.inner, key, metadata), self, key)
        await self.after("start_upload", key)
        return upload

    async def mutate(
        self,
        operation: str,
        key: str,
        apply: Callable[[], Awaitable[None]],
        *,
        late: Callable[[], Awaitable[Callable[[], Awaitable[None]]]] | None = None,
    ) -> None:
        """Apply a mutation as the rules say.

        If `late` is given, a delayed mutation calls it at once, and `land` applies what it returns.
        """
        fault = await self._begin(operation, key)
        if fault is Fault.DELAY:
            # The sender gets `OutcomeUnknown`, and the request takes effect when the test says so: much
            # later, or after a sweep. The counterexamples of the commit protocol need this.
            self._late.append((Call(operation, key), await late() if late else apply))
        else:
            await apply()
        # The hook runs before the error is raised: for the store the request is over.
        await self.after(operation, key)
        if fault in (Fault.DELAY, Fault.LOSE_REPLY):
            raise OutcomeUnknown(f"the reply to {operation} of {key!r} was lost on purpose")

    async def _begin(self, operation: str, key: str) -> Fault | None:
        """Record the request, run the hook, and return the fault.

        Raises if the request must not be applied.
        """
        self.calls.append(Call(operation, key))  # before the hook, at which the request may pause or crash
        await self.before(operation, key)
        # Decided after the hook, which may change the rules for this very request.
        fault = self._decide(operation, key)
        if fault is Fault.FAIL_BEFORE:
            raise TryAgain(f"{operation} of {key!r} failed on purpose")
        if fault is Fault.DENY:
            raise Denied(f"{operation} of {key!r} was denied on purpose")
        return fault

    def _decide(self, operation: str, key: str) -> Fault | None:
        # Every rule is asked, also behind the first that matches: each counts its own requests for `nth`.
        hits = [rule.fault for rule in self.rules if rule.hits(operation, key)]
        if hits:
            return hits[0]
        # A random number is drawn only for a fault that fits, so the requests alone fix the run.
        for fault, chance in self.chances.items():
            if fault.fits(operation) and self.random.random() < chance:
                return fault
        return None


class _FaultyUpload(UploadDecorator):
    __slots__ = ("_key", "_store")

    def __init__(self, inner: Upload, store: FaultyStore, key: str) -> None:
        super().__init__(inner)
        self._store = store
        self._key = key

    async def put_part(self, number: int, data: bytes) -> None:
        await self._store.mutate("put_part", self._key, partial(self.inner.put_part, number, bytes(data)))

    async def complete(self) -> None:
        await self._store.mutate("complete", self._key, self.inner.complete)

    async def abort(self) -> None:
        await self._store.mutate("abort", self._key, self.inner.abort)
