"""A session: one object that opens tiers, sources and stores, and closes them.

It belongs to one event loop of one process. Whatever it opens has its plugins, clock, listener and limits.
Tiers of one place share the client of the store, tiers of one host the turns of their limits, and all tiers
of our own layout the cache of groups. docs/adr/0021-session.md has the reasons.

Invariants: what was opened is closed once, whatever happens before or meanwhile; a store is closed with its
last lease, never while another tier uses it; a wish that a backend cannot honour is refused, not dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, Protocol, Self, cast
from urllib.parse import urlsplit

from offload.commit.groups import GroupCache
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.opening import OpeningContext, RequestLimits, StoreMetrics
from offload.contracts.plugin import Backend
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.errors import Misuse
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.plugins import Plugins
from offload.store.limit import RequestTurns
from offload.store.metrics import MeteredStore
from offload.store.prefix import PrefixStore
from offload.store.retry import RetryPolicy
from offload.store.stack import stacked_store
from offload.urls import FILE_SCHEME, scheme_of, with_lower_scheme

__all__ = ["GivenOptions", "Session", "as_offloader", "backend_of"]

COMMIT_OPTION: Final = "commit."
"""What the names of options for the commit store begin with."""

_log: Final = logging.getLogger(__name__)


class Session:
    """Opens tiers, sources and stores that share what they can: `async with Session() as session: ...`.

    A session is used on one event loop, in one process. After a fork its methods raise `Misuse`, and closing
    does nothing. Opening touches no store: `open` of a tier, or its first call, finds out what is there.
    """

    def __init__(
        self,
        *,
        plugins: Plugins | None = None,
        env: Env | None = None,
        emit: Callable[[Event], None] | None = None,
        limits: RequestLimits | None = None,
    ) -> None:
        """`plugins` are those of this environment, if none are given, and `emit` tells these of events.

        It hears of what tiers and their stores do. `sync` and `StreamReader` have an `emit` of their own, for
        `CopyBegun`, `Skipped` and damage that a reader finds: pass them `session.emit`.

        `limits` bound what is asked of each host. A tier's own `storage_options` override them one by one. A
        backend that cannot honour `limits` or `env` is refused, if they are given.
        """
        self.plugins: Final = plugins or Plugins.find()
        self.env: Final = env or Env()
        self.emit: Final = emit or self.plugins.emit
        self.limits: Final = limits or RequestLimits()
        self.metrics: Final = StoreMetrics()
        """The requests that were sent, repeats included, and their bytes, of all that the session opened."""

        self._has_own_env = env is not None
        self._groups = GroupCache()
        self._turns: list[tuple[object, RequestTurns]] = []
        self._stores: list[_SharedStore] = []
        self._opened: list[_Closable] = []
        self._pid = os.getpid()
        self._closing: asyncio.Task[BaseException | None] | None = None

    def tier(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> LedgerOffloader:
        """Open the offloader behind a URL. As `catalogue`, but raises `Misuse` for what is only read."""
        return as_offloader(
            self.catalogue(url, storage_options=storage_options, options=options, plan=plan, emit=emit)
        )

    def catalogue(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> Catalogue:
        """Open what can be read at a tier's URL.

        `storage_options` are the backend's. Those that `RequestLimits` names bound this tier's requests.
        Those that begin with `commit.` are the commit store's. `plan` is for a tier yet to be made. `emit`
        hears of this tier's events in place of the session's. Raises `Misuse` if no plugin serves the scheme,
        if the plugin refuses the URL, and if the backend cannot honour something that is asked: it is named.
        """
        self._refuse_if_over()
        given = GivenOptions.of(storage_options or {}, self.limits)
        backend = backend_of(url, self.plugins)
        tell = _logging(emit or self.emit)
        if backend.kind == "store":
            return ObjectStoreOffloader(
                self._guarded(url, given.data, given.limits, tell),
                env=self.env,
                options=options,
                emit=tell,
                plan=plan,
                open_store=lambda url: self._guarded(url, given.commits, given.limits, tell),
                groups=self._groups,
            )
        how, plan = options or TierOptions(), plan or TierPlan()
        self._refuse_wishes(backend, given, how, plan)
        asked = {name: getattr(how, name) for name in _changed(how, TierOptions())}
        context = OpeningContext(
            env=self.env,
            emit=tell,
            metrics=self.metrics,
            limits=given.limits,
            fragment_size_bytes=asked.get("fragment_size_bytes"),
            uploads_max=asked.get("uploads_max"),
            open_store=lambda url, options: self._guarded(url, options, given.limits, tell),
        )
        opened = backend.open(url, given.data, context)
        if not isinstance(opened, Catalogue):
            kind = type(opened).__name__
            raise Misuse(f"backend {backend.name!r} says that it is a {backend.kind}, and returns a {kind}")
        self._opened.append(opened)
        return opened

    def store(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
    ) -> ObjectStore:
        """Open the store behind a URL, with retries, limits and a log. Raises `Misuse` as `catalogue` does.

        `policy` says how patient the retries are. A store is no tier: names of objects are its own.
        """
        self._refuse_if_over()
        given = GivenOptions.of(storage_options or {}, self.limits)
        if given.commits:
            raise Misuse(f"a bare store has no commit store, and no options that begin with {COMMIT_OPTION}")
        return self._guarded(url, given.data, given.limits, _logging(self.emit), policy)

    def source(self, url: str) -> Source:
        """Open the source behind a URL. Raises `Misuse` for a scheme that no plugin serves."""
        self._refuse_if_over()
        scheme = scheme_of(url)
        if scheme is None:
            of_sources = self.plugins.of_kind("source")
            known = ", ".join(f"{s}://" for d in of_sources for s in d.declaration.schemes)
            raise Misuse(f"{url!r} names no source: begin it with one of {known}")
        opened: Source = self.plugins.by_scheme("source", scheme).load()(with_lower_scheme(url))
        if hasattr(opened, "aclose"):  # no source must have it
            self._opened.append(opened)
        return opened

    async def aclose(self) -> None:
        """Close what was opened and is still open, the newest first. Idempotent.

        A tier that its backend opened by itself is closed a second time if it was closed: contracts allow it.
        An error keeps nothing else from being closed: the first one is raised at the end, with the others as
        notes. A cancellation is raised when all is closed.
        """
        if self.is_forked:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(_all_closed(self._opened))
        error = await _whole(self._closing)
        if error is not None:
            raise error

    async def __aenter__(self) -> Self:
        """Close on the way out. An error of the block is raised, with errors of closing as notes."""
        self._refuse_if_over()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.aclose()
        except Exception as of_closing:
            if error is None:
                raise
            _joined(error, of_closing)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy of the session in a forked process. Its connections are the parent's."""
        return os.getpid() != self._pid

    def _refuse_if_over(self) -> None:
        if self.is_forked:
            raise Misuse("a session does not survive a fork; make a new one")
        if self._closing is not None:
            raise Misuse("the session was closed; make a new one")

    def _refuse_wishes(self, backend: Backend, given: GivenOptions, how: TierOptions, plan: TierPlan) -> None:
        """Raise `Misuse` if something is asked of a backend that it does not declare to honour."""
        wishes = {
            **dict.fromkeys(_changed(given.limits, RequestLimits()), "limits"),
            **{name: name for name in _changed(how, TierOptions())},
            **dict.fromkeys(_changed(plan, TierPlan()), "only our own layout has it"),
            **dict.fromkeys((COMMIT_OPTION + name for name in given.commits), "only our own layout has it"),
            **({"env": "env"} if self._has_own_env else {}),
        }
        refused = [wish for wish, part in wishes.items() if part not in backend.takes]
        if refused:
            raise Misuse(
                f"backend {backend.name!r} opens tiers by itself and cannot honour {', '.join(refused)}; "
                "leave it out, or open the tier in a session without it"
            )
        if missing := {"emit", "metrics"} - {*backend.takes}:
            _log.info("backend %r tells no %s", backend.name, " and no ".join(sorted(missing)))

    def _guarded(
        self,
        url: str,
        options: Mapping[str, Any],
        limits: RequestLimits,
        emit: Callable[[Event], None],
        policy: RetryPolicy | None = None,
    ) -> ObjectStore:
        """The store of a URL with all that stands before it: the one place where a stack is built."""
        self._refuse_if_over()  # a tier may want its commit store late
        turns = self._turns_of(url, options, limits)
        return stacked_store(self._leased(url, options), self.env, limits, policy, emit=emit, turns=turns)

    def _leased(self, url: str, options: Mapping[str, Any]) -> ObjectStore:
        """The store of a URL, on a client that other stores of the same place share.

        The caller's URL says which place that is, without the prefix that the backend took from its end.
        Options and environment of this moment say the rest.
        """
        backend = backend_of(url, self.plugins)
        opened = open_bare(backend, url, options)
        place = with_lower_scheme(url).rstrip("/")
        asked = backend.name, {**options}, {**os.environ}  # which may name an endpoint, or an account
        if not isinstance(opened, PrefixStore):
            return self._lease(opened, (place, *asked))
        outer = place.removesuffix(f"/{opened.prefix}")
        is_known = outer != place  # else the URL says more than the prefix, and nobody knows what
        opened.inner = self._lease(opened.inner, (outer, *asked) if is_known else None)
        return opened

    def _lease(self, store: ObjectStore, place: object) -> _Lease:
        shared = next((each for each in self._stores if each.serves(place, store)), None)
        if shared is None:
            shared, spare = _SharedStore(store, place), None
            self._stores.append(shared)
        else:
            spare = store  # was never used, and is closed with the lease
        lease = _Lease(self, shared, spare)
        self._opened.append(lease)
        return lease

    def _turns_of(self, url: str, options: Mapping[str, Any], limits: RequestLimits) -> RequestTurns:
        scheme = scheme_of(url)
        host = scheme or FILE_SCHEME, urlsplit(url).netloc if scheme else ""
        for asked, turns in self._turns:
            if asked == (host, options, limits):
                return turns
        turns = RequestTurns(limits, clock=self.env.monotonic, sleep=self.env.sleep)
        self._turns.append(((host, {**options}, limits), turns))
        return turns

    def _forget(self, lease: _Lease) -> None:
        with suppress(ValueError):  # the session itself is closing it
            self._opened.remove(lease)


class _Closable(Protocol):
    async def aclose(self) -> None: ...


@dataclass(slots=True, eq=False)
class _SharedStore:
    """A store that one or more leases use."""

    store: ObjectStore
    place: object
    """What was asked of the backend, or None if nobody can tell whether another URL means the same."""

    leases: int = 0

    def serves(self, place: object, store: ObjectStore) -> bool:
        """Whether `store`, opened by the same words, is this one. A relative path may mean two folders."""
        return place is not None and self.place == place and self.store.url == store.url


class _Lease(MeteredStore):
    """A store as one tier holds it: counts for the session, and closes what nobody else uses."""

    __slots__ = ("_closing", "_session", "_shared", "_spare")

    def __init__(self, session: Session, shared: _SharedStore, spare: ObjectStore | None) -> None:
        super().__init__(shared.store, session.metrics)
        self._session, self._shared, self._spare = session, shared, spare
        self._closing: asyncio.Task[BaseException | None] | None = None
        shared.leases += 1

    async def aclose(self) -> None:
        """Close the store if this is its last lease. Idempotent. Nothing is done in a forked process.

        A cancellation is raised when it is closed.
        """
        if self._session.is_forked:
            return
        if self._closing is None:
            self.inner = cast("ObjectStore", _ClosedStore(self.inner))
            self._closing = asyncio.ensure_future(self._give_back())
        error = await _whole(self._closing)
        if error is not None:
            raise error

    async def _give_back(self) -> BaseException | None:
        """Close what nobody else uses, and return the first error."""
        unused: list[_Closable] = [self._spare] if self._spare is not None else []
        self._shared.leases -= 1
        if not self._shared.leases:
            self._session._stores.remove(self._shared)  # before the wait: nobody may lease it any more
            unused.append(self._shared.store)
        error = await _all_closed(unused)
        self._session._forget(self)  # not before: until then, the session waits for it too
        return error


class _ClosedStore:
    """Stands in for a store that was given back: only its name and capabilities are left."""

    def __init__(self, store: ObjectStore) -> None:
        self.url, self.capabilities = store.url, store.capabilities

    def __getattr__(self, name: str) -> NoReturn:
        raise Misuse(f"{self.url} was closed; open it again")


async def _all_closed(opened: list[_Closable]) -> BaseException | None:
    """Close all of them, the last one first, until none is left, and return the first error."""
    first: BaseException | None = None
    while opened:
        try:
            await opened.pop().aclose()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - others are closed too
            first = _joined(first, error)
    return first


async def _whole(task: asyncio.Task[BaseException | None]) -> BaseException | None:
    """Wait for a task until it is done, however often the waiting is cancelled, and return what it returns.

    If the waiting was cancelled, that is the error, with the task's as a note.
    """
    cancelled: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    found = task.result()
    return _joined(cancelled, found) if found else cancelled


def _joined(first: BaseException | None, error: BaseException) -> BaseException:
    """The first error, with the other as a note on it."""
    if first is None:
        return error
    first.add_note(f"and while closing: {type(error).__name__}: {error}")
    return first


def as_offloader(tier: Catalogue) -> LedgerOffloader:
    """The tier as one that takes data and commits. Raises `Misuse` if it is only read."""
    if not isinstance(tier, LedgerOffloader):
        raise Misuse(f"{tier.url} can only be read: its layout takes no data and no commits from here")
    return tier


def backend_of(url: str, plugins: Plugins) -> Backend:
    """The backend that serves a URL. Raises `Misuse` if there is none, or if it is no URL."""
    backend = plugins.by_scheme("backend", scheme_of(url) or FILE_SCHEME)
    assert isinstance(backend, Backend)
    return backend


def open_bare(backend: Backend, url: str, options: Mapping[str, Any]) -> ObjectStore:
    """The store of a URL without anything before it. Raises `Misuse` if the backend has none."""
    if backend.kind != "store":
        raise Misuse(f"backend {backend.name!r} is no object store")
    store = backend.open(url, options)
    if not isinstance(store, ObjectStore):
        raise Misuse(
            f"backend {backend.name!r} says that it is a store, and returns a {type(store).__name__}"
        )
    return store


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """Options by whom they are for."""

    data: Mapping[str, Any]
    """The backend's."""

    commits: Mapping[str, Any]
    """Those of the commit store's backend, by their own names."""

    limits: RequestLimits
    """What no backend needs to know."""

    @classmethod
    def of(cls, options: Mapping[str, Any], limits: RequestLimits | None = None) -> GivenOptions:
        """Part them; those that name limits change `limits`. Raises `Misuse` for a limit that is none."""
        commits, others = _parted(options, lambda name: name.startswith(COMMIT_OPTION))
        of_limits, data = _parted(others, lambda name: name in RequestLimits.names())
        commits = {name.removeprefix(COMMIT_OPTION): value for name, value in commits.items()}
        return cls(data=data, commits=commits, limits=(limits or RequestLimits()).with_options(of_limits))


def _parted(
    options: Mapping[str, Any], chosen: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options whose names are chosen, and the others."""
    mine = {name: value for name, value in options.items() if chosen(name)}
    return mine, {name: value for name, value in options.items() if name not in mine}


def _changed(value: Any, default: Any) -> list[str]:
    """The names of the fields in which two values of one class differ."""
    names = (each.name for each in fields(value))
    return [name for name in names if getattr(value, name) != getattr(default, name)]


def _logging(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        _log.debug("%r", event)
        emit(event)

    return tell
