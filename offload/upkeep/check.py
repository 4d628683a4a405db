"""Checking what a store can do with these credentials, and how fast it is, by trying it.

The check uses names of its own, `tier.check.<time>.<uuid>.…`, which no tier uses. It removes its objects at
the end, whatever happened. If the store cannot remove objects, or keeps old versions of them, the check puts
as few as possible, and says what is left. A later check or a sweep removes what an interrupted check left.

Each trial is a `CheckFinding`: the name of the trial, whether it works, what that means and what to change. A
trial that needs an earlier one is not made if that one failed, and its finding says so.

Invariant: the report never calls something working that was not seen to work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, Final, cast

from offload.contracts.keys import KeyService
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, shows_a_tier
from offload.formats.sealing import KEY_SIZE_BYTES
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import AlreadyExists, AnchorLost, NotFound, OffloadError
from offload.model.labels import MasterKey
from offload.native.anchors import read_anchor
from offload.native.key_objects import try_master_key
from offload.store.probe import CHECK, is_left_behind, trial_name

SMALL: Final = b"0123456789"
"""The content of small objects. Each byte is different, so a wrong range shows."""

LISTED_OBJECTS: Final = 5
LATENCY_ROUNDS: Final = 10
THROUGHPUT_OBJECTS: Final = 4
THROUGHPUT_SIZE_BYTES: Final = 8 * 2**20


class CheckVerdict(StrEnum):
    """The outcome of a trial."""

    WORKS = "works"
    FAILS = "fails"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """One trial."""

    name: str
    verdict: CheckVerdict
    says: str
    """The outcome and its meaning, in one sentence for a person."""

    needed_for: str
    """`read`, `write` or `commit`: the first of these that needs it. Empty: none of them does."""

    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the finding for `offload check --json`."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class CheckReport:
    """All findings, in the order of trying."""

    url: str
    findings: list[CheckFinding] = field(default_factory=list)
    commit_store: str = ""
    """The URL of the store that keeps the tier's roots, if it is another one. Check that store as well."""
    foreign_object: str = ""
    """An object of a place that is no tier and not empty: nobody makes a tier there."""

    def can(self, what: str) -> bool:
        """Return whether everything that `read`, `write` or `commit` needs was seen to work."""
        needs = NEEDS[: NEEDS.index(what) + 1]
        mine = [finding for finding in self.findings if finding.needed_for in needs]
        return bool(mine) and all(finding.verdict is CheckVerdict.WORKS for finding in mine)


NEEDS: Final = ("read", "write", "commit")
"""Each one needs those before it."""


async def check(
    store: ObjectStore,
    *,
    env: Env | None = None,
    writing: bool = True,
    tell: Callable[[CheckFinding], None] = lambda finding: None,
) -> CheckReport:
    """Try everything. `tell` is called after each trial. An error of the store becomes a finding.

    Without `writing`, nothing is put or deleted, and trials that need it are not made.
    """
    checking = _Checking(store=store, env=env or Env(), tell=tell)
    await checking.run(writing=writing)
    return checking.report


async def check_master_key(service: KeyService, label: str, *, env: Env = REAL_ENV) -> CheckFinding:
    """Wrap and unwrap a key that nothing is encrypted with. An error of the service becomes a finding.

    A label of own master keys is not tried: it would leave a master key in the service.
    """
    master, raw = MasterKey.parse(label), env.secret(KEY_SIZE_BYTES)
    if master.is_own:
        says = "a check makes no master key; name one that exists, without own:"
        return CheckFinding(name="key", verdict=CheckVerdict.NOT_TRIED, says=says, needed_for="")
    verdict, says = CheckVerdict.WORKS, f"the master key {label!r} wraps and unwraps"
    try:
        await try_master_key(service, label, raw)
    except OffloadError as error:
        verdict, says = CheckVerdict.FAILS, str(error)
    return CheckFinding(name="key", verdict=verdict, says=says, needed_for="")


@dataclass(kw_only=True)
class _Checking:
    store: ObjectStore
    env: Env
    tell: Callable[[CheckFinding], None]
    report: CheckReport = field(init=False)
    below: str = field(init=False)
    kept: str | None = None
    """Remains of removed objects, such as versions, in the words of the store; None if it names none."""
    removes: bool = True
    """True unless the store failed to remove an object."""

    def __post_init__(self) -> None:
        self.report = CheckReport(url=self.store.url)
        self.below = f"{trial_name(CHECK, self.env)}."

    async def run(self, *, writing: bool) -> None:
        reached = await self.attempt("list", "read", self._list)
        await self.attempt("read", "read", self._read_anchor)
        if not reached or not writing:
            why = "the store was not reached" if not reached else "the check is read-only"
            for name, needed_for, _ in self._writing_trials():
                self._note(name, needed_for, CheckVerdict.NOT_TRIED, why)
            return
        try:
            written = True
            for name, needed_for, trial in self._writing_trials():
                if not written:
                    self._note(name, needed_for, CheckVerdict.NOT_TRIED, "it needs put, which failed")
                elif not needed_for and self._leaves_objects:
                    self._note(
                        name, needed_for, CheckVerdict.NOT_TRIED, "its objects would stay in the store"
                    )
                else:
                    # A measurement that is skipped says nothing about the store. One that fails is a failed
                    # write, so it counts as one.
                    works = await self.attempt(name, needed_for or "write", trial)
                    written = works if name == "put" else written
                    self.removes = works if name == "delete" else self.removes
        finally:  # also after Ctrl-C
            await self.attempt("clean up", "", self._clean_up)

    @property
    def _leaves_objects(self) -> bool:
        return not self.removes or self.kept is not None

    def _writing_trials(self) -> Sequence[tuple[str, str, Callable[[], Awaitable[str]]]]:
        return (
            ("put", "write", self._put),
            ("ranges", "write", self._ranges),
            ("delete", "write", self._delete),
            ("create", "commit", self._create),
            ("list after write", "commit", self._list_after_write),
            ("large objects", "write", self._upload),
            ("latency", "", self._latency),
            ("throughput", "", self._throughput),
        )

    async def attempt(self, name: str, needed_for: str, trial: Callable[[], Awaitable[str]]) -> bool:
        """Make one trial. Its text, or its error, becomes the finding. Return whether it worked."""
        begin = self.env.monotonic()
        try:
            says = await trial()
        except (OffloadError, _Broken) as error:
            self._note(name, needed_for, CheckVerdict.FAILS, str(error), self.env.monotonic() - begin)
            return False
        except Exception as error:  # noqa: BLE001 - a bug in a third party's backend is a finding as well
            says = f"a bug in the backend: {type(error).__name__}: {error}"
            self._note(name, needed_for, CheckVerdict.FAILS, says, self.env.monotonic() - begin)
            return False
        self._note(name, needed_for, CheckVerdict.WORKS, says, self.env.monotonic() - begin)
        return True

    def _note(
        self, name: str, needed_for: str, verdict: CheckVerdict, says: str, seconds: float = 0.0
    ) -> None:
        finding = CheckFinding(name=name, verdict=verdict, says=says, needed_for=needed_for, seconds=seconds)
        self.report.findings.append(finding)
        self.tell(finding)

    async def _list(self) -> str:
        first = await self._first("")
        return f"holds objects, such as {first!r}" if first is not None else "empty"

    async def _read_anchor(self) -> str:
        try:
            raw, anchor = await read_anchor(self.store, TIER_ANCHOR, _with_bytes)
        except NotFound:
            first = await self._first_of_others()
            if first is None:
                return "no tier yet; `offload sync` makes one"
            if shows_a_tier(first):
                raise AnchorLost(TIER_ANCHOR, tier=self.store.url) from None
            self.report.foreign_object = first
            return "no tier; this place is not empty, so `offload sync` will not make one here"
        part = await self.store.get(TIER_ANCHOR, Span(5, 9))  # readers need ranges, also with --read-only
        _same(part, raw[5:14], "a part of an object is not that part")
        self.report.commit_store = anchor.commit_store
        if anchor.commit_store and self.store.url not in (anchor.data_store, anchor.commit_store):
            says = f"a copy of the data at {anchor.data_store}: it can be read, and takes no commit"
            self._note("place", "write", CheckVerdict.FAILS, says)
        return f"a tier; its roots are at {anchor.commit_store}" if anchor.commit_store else "a tier"

    async def _put(self) -> str:
        await self.store.put(self.below + "small", Body.of(SMALL))
        found = await self.store.get(self.below + "small")
        _same(found, SMALL, "an object does not read back as it was put")
        with suppress(OffloadError):  # credentials may not allow this question: then nothing is known
            self.kept = await self.store.retained(self.below + "small")
        return f"an object reads back as it was put; names of this check begin with {self.below!r}"

    async def _ranges(self) -> str:
        key = self.below + "small"
        for span, expected in (
            (Span(3, 4), SMALL[3:7]),
            (Span(8, 100), SMALL[8:]),
            (Span(10, 1), b""),
            (Suffix(3), SMALL[-3:]),
        ):
            _same(await self.store.get(key, span), expected, f"{span} of an object is not what it should be")
        return "parts of an object are exact"

    async def _create(self) -> str:
        key = self.below + "created"
        await self.store.create(key, b"first")
        try:
            await self.store.create(key, b"second")
        except AlreadyExists:
            _same(await self.store.get(key), b"first", "a refused create changed the object")
            return "an object is created only if it is absent: commits are safe"
        raise _Broken(
            "overwrites what it was asked to create only if absent, so two writers could both commit; keep "
            "the roots elsewhere: `offload sync --commit-store URL`"
        )

    async def _list_after_write(self) -> str:
        if not self.store.capabilities.strong_listing:
            raise _Broken("its listings may miss what was just written, says its backend: no commits here")
        for number in range(1 if self._leaves_objects else LISTED_OBJECTS):
            key = f"{self.below}listed.{number}"
            await self.store.put(key, Body.of(b""))
            # Listed at once, object by object: a listing that is late shows it only in the first moments.
            if await self._first(key) != key:
                raise _Broken("a listing misses what was just written: commits are not safe here")
        return "listings show what was just written"

    async def _delete(self) -> str:
        await self.store.delete([self.below + "small", self.below + "absent"])
        if await self._first(self.below + "small") is not None:
            raise _Broken("a deleted object is still listed")
        return "objects are removed, and absent ones do no harm"

    async def _upload(self) -> str:
        capabilities = self.store.capabilities
        if not capabilities.multipart:
            most = capabilities.put_size_bytes_max
            limit = "any size that occurs" if most is None else f"at most {most:,} bytes"
            return f"no uploads in parts; one request takes an object of {limit}"
        key, part = self.below + "large", b"\x00" * max(capabilities.part_size_bytes_min, 4096)
        dropped = await self.store.start_upload(key)
        await dropped.put_part(1, part)
        await dropped.abort()
        if await self._first(key) is not None:
            raise _Broken("an aborted upload left an object")
        upload = await self.store.start_upload(key)
        await upload.put_part(1, part)
        await upload.put_part(2, b"end")
        await upload.complete()
        end = await self.store.get(key, Span(len(part) - 1, 10))
        _same(end, b"\x00end", "an upload in parts is put together wrongly")
        return "uploads in parts work, and can be aborted"

    async def _latency(self) -> str:
        ups, downs = [], []
        for number in range(LATENCY_ROUNDS):
            key = f"{self.below}latency.{number}"
            ups.append(await self._timed(self.store.put(key, Body.of(SMALL))))
            downs.append(await self._timed(self.store.get(key)))
        return f"a small put takes {_spread(ups)}, a small get {_spread(downs)}"

    async def _throughput(self) -> str:
        size_bytes = min(
            THROUGHPUT_SIZE_BYTES, self.store.capabilities.put_size_bytes_max or THROUGHPUT_SIZE_BYTES
        )
        block = (bytes(range(256)) * (THROUGHPUT_SIZE_BYTES // 256))[:size_bytes]
        keys = [f"{self.below}throughput.{number}" for number in range(THROUGHPUT_OBJECTS)]
        up = await self._timed(_all_ended([self.store.put(key, Body.of(block)) for key in keys]))
        down = await self._timed(_all_ended([self.store.get(key) for key in keys]))
        mebibytes = THROUGHPUT_OBJECTS * size_bytes / 2**20
        return (
            f"up {mebibytes / up:,.0f} MiB/s, down {mebibytes / down:,.0f} MiB/s, by "
            f"{THROUGHPUT_OBJECTS} objects of {size_bytes / 2**20:.3g} MiB at once"
        )

    async def _clean_up(self) -> str:
        left = [row.key async for row in self.store.list(self.below)]
        why = ""
        try:
            await self.store.delete(left)
            left = [row.key async for row in self.store.list(self.below)]
        except OffloadError as error:
            why = f" ({error})"
        if left:
            objects = "1 object is" if len(left) == 1 else f"{len(left)} objects are"
            raise _Broken(f"{objects} left; remove by hand what begins with {self.below!r}{why}")
        if self.kept is not None:
            raise _Broken(f"{self.kept}: remove by hand all versions of what begins with {self.below!r}")
        earlier = await self._remove_what_earlier_checks_left()
        return f"nothing of this check is left{earlier}"

    async def _remove_what_earlier_checks_left(self) -> str:
        keys = [row.key async for row in self.store.list(TIER_PREFIX) if is_left_behind(row.key, self.env)]
        if not keys:
            return ""
        await self.store.delete(keys)
        objects = "1 object" if len(keys) == 1 else f"{len(keys)} objects"
        return f"; removed {objects} of interrupted trials"

    async def _first(self, prefix: str) -> str | None:
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.store.list(prefix))) as listing:
            row = await anext(listing, None)
        return None if row is None else row.key

    async def _first_of_others(self) -> str | None:
        """Return the first key that is no anchor and no object of a check or a probe."""
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.store.list(""))) as listing:
            async for row in listing:
                if not row.key.startswith(TIER_PREFIX):
                    return row.key
        return None

    async def _timed(self, work: Awaitable[object]) -> float:
        begin = self.env.monotonic()
        await work
        return max(self.env.monotonic() - begin, 1e-9)  # never zero: rates divide by it


async def _all_ended(requests: Sequence[Awaitable[object]]) -> None:
    """Return when every request has ended. Raises the first error, and not before that.

    A put that is still under way after a failure would store its object behind the clean-up.
    """
    for ended in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


class _Broken(Exception):
    """A request was answered, and the answer is wrong."""


def _same(found: Buffer, expected: bytes, otherwise: str) -> None:
    if found != expected:
        raise _Broken(otherwise)


def _with_bytes(raw: bytes) -> tuple[bytes, TierAnchor]:
    return raw, TierAnchor.decode(raw, where=TIER_ANCHOR)


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:,.1f} ms (at most {max(seconds) * 1000:,.1f})"
