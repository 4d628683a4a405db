"""A store that fails on purpose, for tests: replies get lost, writes land late, bytes are damaged.

    store = FaultyStore(MemoryStore(), rules=[
        Rule(Fault.LOSE_REPLY, "create", "*/root.*", nth=1),   # applied, yet OutcomeUnknown
        Rule(Fault.DELAY, "put", "*.fragment"),                # OutcomeUnknown, and applied by land()
    ])

What goes wrong is decided by rules, or by chance from a seeded `random`; the first rule that fits
decides. `before` and `after` are awaited around every request: there a test pauses one writer,
lets another run, or raises to crash. `calls` is what was asked, in order. Nothing is skipped or
reordered that no rule or hook touches.

Operations are put, create, get, list, delete, start_upload, put_part, complete and abort; a list's
key is its prefix, and a delete is one request under its first key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Final, NamedTuple

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload
from offload.errors import AlreadyExists, Denied, OutcomeUnknown, TryAgain
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["MUTATIONS", "Call", "Fault", "FaultyStore", "Rule"]


Hook = Callable[[str, str], Awaitable[None]]

MUTATIONS: Final = frozenset({"put", "create", "delete", "put_part", "complete", "abort"})
READS: Final = frozenset({"get", "list"})


class Fault(Enum):
    """What goes wrong with one request. A rule or chance skips operations it cannot befall."""

    FAIL_BEFORE = "not applied; TryAgain"
    LOSE_REPLY = "applied; OutcomeUnknown. A request the store itself refused fails as it would have"
    DELAY = "not applied until land() is called; OutcomeUnknown"
    DENY = "not applied; Denied"
    CUT = "get returns the first half; list breaks off with TryAgain after one row"
    FLIP = "get returns its bytes with one bit in the middle flipped"

    def fits(self, operation: str) -> bool:
        """Whether it can happen to this operation."""
        if self in (Fault.LOSE_REPLY, Fault.DELAY):
            return operation in MUTATIONS
        if self is Fault.CUT:
            return operation in READS
        return self is not Fault.FLIP or operation == "get"


@dataclass(slots=True)
class Rule:
    """Fault the requests of `operation` whose key matches `key`, both as shell patterns.

    `nth` counts the requests that match, from 1, and picks a single one; without it all are hit.
    """

    fault: Fault
    operation: str = "*"
    key: str = "*"
    nth: int | None = field(default=None, kw_only=True)
    matched: int = field(default=0, init=False)

    def hits(self, operation: str, key: str) -> bool:
        """Count this request if it matches, and say whether it is to fail."""
        if not (fnmatchcase(operation, self.operation) and fnmatchcase(key, self.key)):
            return False
        if not self.fault.fits(operation):
            return False
        self.matched += 1
        return self.nth in (None, self.matched)


class Call(NamedTuple):
    """One request as it was asked."""

    operation: str
    key: str


async def _nothing(_operation: str, _key: str) -> None:
    """The hook that does nothing."""


class FaultyStore(StoreDecorator):
    """See the module's head. `rules`, `before` and `after` may be changed at any time.

    With `random` and `chances`, a request that no rule hits suffers each fitting fault with its
    chance; the same seed and the same requests give the same faults.
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
        """The delayed mutations that have not landed yet, oldest first."""
        return tuple(call for call, _ in self._late)

    async def land(self, key: str = "*") -> int:
        """Apply the delayed mutations whose key matches, oldest first; return how many took effect.

        A create that finds its key taken by then has no effect, as in a real store.
        """
        landing = [late for late in self._late if fnmatchcase(late[0].key, key)]
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
        """Put, or not."""

        async def gather() -> Callable[[], Awaitable[None]]:
            # The bytes of a late put are those of the request, whatever becomes of its sender.
            data = b"".join([window async for window in body.windows()])
            return partial(self.inner.put, key, Body.of(data))

        await self.mutate("put", key, partial(self.inner.put, key, body), late=gather)

    async def create(self, key: str, data: bytes) -> None:
        """Create, or not."""
        await self.mutate("create", key, partial(self.inner.create, key, bytes(data)))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read, perhaps what was never written."""
        fault = await self._begin("get", key)
        data = await self.inner.get(key, span)
        await self.after("get", key)
        if fault is Fault.CUT:
            return data[: len(data) // 2]
        if fault is Fault.FLIP and data:
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask, perhaps in vain."""
        await self._begin("stored_crc32c", key)
        checksum = await self.inner.stored_crc32c(key)
        await self.after("stored_crc32c", key)
        return checksum

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List, perhaps not to the end."""
        fault = await self._begin("list", prefix)
        async for row in self.inner.list(prefix, after=after):
            yield row
            if fault is Fault.CUT:
                raise TryAgain(f"the listing of {prefix!r} broke off on purpose")
        await self.after("list", prefix)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level, perhaps not to the end."""
        fault = await self._begin("list", prefix)
        async for name in self.inner.level(prefix):
            yield name
            if fault is Fault.CUT:
                raise TryAgain(f"the listing of {prefix!r} broke off on purpose")
        await self.after("list", prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete, or not."""
        keys = tuple(keys)
        await self.mutate("delete", keys[0] if keys else "", partial(self.inner.delete, keys))

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload, whose calls may fail in the same ways."""
        await self._begin("start_upload", key)
        upload = _FaultyUpload(await self.inner.start_upload(key), self, key)
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
        """Apply a mutation as the rules have it. `late` gives what is to land, where it is not `apply`."""
        fault = await self._begin(operation, key)
        if fault is Fault.DELAY:
            self._late.append((Call(operation, key), await late() if late else apply))
        else:
            await apply()
        await self.after(operation, key)
        if fault in (Fault.DELAY, Fault.LOSE_REPLY):
            raise OutcomeUnknown(f"the reply to {operation} of {key!r} was lost on purpose")

    async def _begin(self, operation: str, key: str) -> Fault | None:
        """Log the request, run the hook, and decide; raises what is raised before anything is applied."""
        self.calls.append(Call(operation, key))
        await self.before(operation, key)
        fault = self._decide(operation, key)
        if fault is Fault.FAIL_BEFORE:
            raise TryAgain(f"{operation} of {key!r} failed on purpose")
        if fault is Fault.DENY:
            raise Denied(f"{operation} of {key!r} was denied on purpose")
        return fault

    def _decide(self, operation: str, key: str) -> Fault | None:
        hits = [rule.fault for rule in self.rules if rule.hits(operation, key)]  # every rule counts
        if hits:
            return hits[0]
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
