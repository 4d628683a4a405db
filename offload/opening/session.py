"""A session: one object that opens tiers, sources and stores, and closes them.

It belongs to one event loop of one process. Everything that it opens has its plugins, clock, listener and
limits. Tiers of one place share the store's client. Tiers of one host share the turns of their limits. All
tiers of our own layout share the cache of groups. Readers that the session opens share one cache of blocks,
and wait together. docs/adr/0021-session.md has the reasons.

Invariants:

- Everything that was opened is closed once, even if an opening, another closing or the caller's block fails.
- If a backend cannot honour an option, the option is refused, never dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from offload.commit.groups import GroupCache
from offload.contracts.broker import BrokerView
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.keys import KeyService
from offload.contracts.listener import Listener
from offload.contracts.metrics import StoreMetrics
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.opening import OpeningContext, RequestLimits
from offload.contracts.plugin import Backend, SourceType, TargetType
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.contracts.target import RestoreTarget
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.ground.urls import FILE_SCHEME, refuse_login, scheme_of, with_lower_scheme
from offload.model.labels import MasterKey, shown
from offload.native.key_ring import KeyRing
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.opening.backends import as_offloader, backend_of
from offload.opening.closing import Closable, all_closed, joined_errors, whole_result
from offload.opening.given_options import COMMIT_OPTION, GivenOptions
from offload.opening.plugins import Plugins
from offload.opening.shared_stores import SharedStores
from offload.store.limit import RequestTurns
from offload.store.retry import RetryPolicy
from offload.store.stack import stacked_store

if TYPE_CHECKING:  # imported where they are used: most commands read no messages, and need no codec
    from offload.cache.block_cache import BlockCache
    from offload.read.reader import StreamReader
    from offload.read.watch import StreamWatch

__all__ = ["Session"]

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class Session:
    """The opener and owner of tiers, sources and stores: `async with Session() as session: ...`.

    A session is used on one event loop, in one process. After a fork its methods raise `Misuse`, and closing
    does nothing. Opening sends no request to a store: a tier's `open`, or its first call, reads what is
    there.
    """

    def __init__(
        self,
        *,
        plugins: Plugins | None = None,
        env: Env | None = None,
        emit: Callable[[Event], None] | None = None,
        limits: RequestLimits | None = None,
        keys: str | None = None,
        cache_size_bytes: int | None = None,
    ) -> None:
        """`plugins` defaults to the plugins of this environment. The default `emit` sends them the events.

        `emit` is called with the events of tiers and their stores. `sync` and `StreamReader` take an `emit`
        of their own, for `CopyBegun`, `Skipped` and damage that a reader finds: pass them `session.emit`.

        `limits` bound the requests to each host. A tier's own `storage_options` override them one by one. If
        `limits` or `env` is given, a backend that cannot honour it is refused.

        `keys` is the URL of the key service for encrypted streams, for example `keyfile:/etc/offload/keys`.
        Raises `Misuse` if no plugin serves it, or if the plugin refuses it.

        `cache_size_bytes` bounds `cache`: 128 MiB by default.
        """
        self.plugins: Final = plugins or Plugins.find()
        self.env: Final = env or Env()
        self.emit: Final = emit or self.plugins.emit
        self.limits: Final = limits or RequestLimits()
        self.metrics: Final = StoreMetrics()
        """The requests of everything that the session opened, repeats included, and their bytes."""

        # A caller's clock must be honoured, because a simulation needs it. The default asks for nothing.
        self._has_own_env = env is not None
        self._groups = GroupCache()
        self._cache_size_bytes, self._cache = cache_size_bytes, cast("BlockCache | None", None)
        self._listeners: WeakValueDictionary[int, _Listener] = WeakValueDictionary()
        """By the id of the tier, which lives as long as its listener."""

        self._turns: list[tuple[object, RequestTurns]] = []
        self._opened: list[Closable] = []
        self._shared = SharedStores(
            self._opened, metrics=self.metrics, clock=self.env.monotonic, is_forked=lambda: self.is_forked
        )
        self._opened_listeners: list[_Listener] = []
        """Those of backends that open tiers by themselves: such a tier need not keep its listener."""

        self._pid = os.getpid()
        self._closing: asyncio.Task[BaseException | None] | None = None
        self._ring = None if keys is None else self._new_ring(keys)

    def tier(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
        keys: str | None = None,
    ) -> LedgerOffloader:
        """Open the offloader of a URL. As `catalogue`, but raises `Misuse` for a tier that is read-only."""
        opened = self.catalogue(
            url, storage_options=storage_options, options=options, plan=plan, emit=emit, keys=keys
        )
        return as_offloader(opened)

    def catalogue(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        options: TierOptions | None = None,
        plan: TierPlan | None = None,
        emit: Callable[[Event], None] | None = None,
        keys: str | None = None,
    ) -> Catalogue:
        """Open the tier at a URL, which can at least be read.

        `storage_options` go to the backend, with two exceptions. Those that are names of `RequestLimits`
        bound this tier's requests. Those that begin with `commit.` go to the commit store. `plan` is
        for a tier that does not exist yet. `emit` gets this tier's events in place of the session's `emit`.
        `keys` is the URL of a key service in place of the session's. It is opened for this tier alone, and
        closed with it.

        Raises `Misuse` if no plugin serves the scheme, if the plugin refuses the URL, and if the backend
        cannot honour an option. The error names the option.
        """
        self._refuse_if_over()
        given = GivenOptions.of(storage_options or {}, self.limits)
        backend = backend_of(url, self.plugins)
        tell = _Listener(emit or self.emit)
        if backend.kind == "store":
            ring = self._ring_of(keys, options or TierOptions())
            tier = ObjectStoreOffloader(
                self._guarded(url, given.data, given.limits, tell),
                env=self.env,
                options=options,
                emit=tell,
                plan=plan,
                # A function, because the URL of the commit store may be known only from the tier's anchor.
                open_store=lambda url: self._guarded(url, given.commits, given.limits, tell),
                groups=self._groups,
                ring=ring,
            )
            return self._heard(tier, tell)
        how, plan = options or TierOptions(), plan or TierPlan()
        # Before the backend is called: no code of a plugin runs for an option that would be dropped.
        self._refuse_wishes(backend, given, how, plan, keys)
        asked = {name: getattr(how, name) for name in _changed(how, TierOptions())}
        context = replace(
            self._context(given.limits, tell),
            fragment_size_bytes=asked.get("fragment_size_bytes"),
            uploads_max=asked.get("uploads_max"),
        )
        opened = backend.open(url, given.data, context)
        if not isinstance(opened, Catalogue):
            kind = type(opened).__name__
            raise Misuse(f"backend {backend.name!r} says that it is a {backend.kind}, but returned a {kind}")
        self._opened.append(opened)
        self._opened_listeners.append(tell)
        return self._heard(opened, tell)

    @property
    def cache(self) -> BlockCache:
        """The blocks that the readers of this session share, of all tiers. Closed with the session."""
        if self._cache is None:
            from offload.cache.block_cache import CACHE_SIZE_BYTES, BlockCache

            self._refuse_if_over()
            size_bytes = CACHE_SIZE_BYTES if self._cache_size_bytes is None else self._cache_size_bytes
            self._cache = BlockCache(size_bytes, env=self.env, throttled=lambda: self.metrics.throttled)
        return self._cache

    async def reader(
        self,
        tier: Catalogue,
        stream: str,
        *,
        in_flight: int | None = None,
        max_staleness_seconds: float = 0.0,
        emit: Callable[[Event], None] | None = None,
    ) -> StreamReader:
        """Open a reader of a stream of `tier`, with the cache and the watch of this session.

        So all readers that are opened in this way share what they read, and wait together when they follow.
        The other arguments and the errors are those of `StreamReader.open`; `emit` is the session's by
        default. One reader alone is faster if it is opened by `StreamReader.open`, without a cache.
        """
        from offload.read.reader import IN_FLIGHT, StreamReader

        return await StreamReader.open(
            tier,
            stream,
            in_flight=IN_FLIGHT if in_flight is None else in_flight,
            emit=emit or self.emit,
            cache=self.cache,
            watch=self.watch(tier),
            max_staleness_seconds=max_staleness_seconds,
        )

    def watch(self, tier: Catalogue) -> StreamWatch:
        """Return the watch of a tier of this session, which hears of each commit through this tier object.

        Raises `Misuse` for a tier that the session has not opened.
        """
        self._refuse_if_over()
        listener = self._listeners.get(id(tier))
        if listener is None:
            raise Misuse(f"{tier.url} was not opened by this session")
        if listener.watch is None:
            from offload.read.watch import StreamWatch

            listener.watch = StreamWatch(tier, env=self.env)
        return listener.watch

    def store(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        policy: RetryPolicy | None = None,
    ) -> ObjectStore:
        """Open the store of a URL, for a program or a plugin that reads and writes objects of its own.

        It has retries, limits and a log, and counts its requests in `metrics`. It shares the client of its
        place with the tiers of the session, and uses the session's clock. `storage_options` are those of the
        backend, and may name limits (`RequestLimits`), which then hold for this store. `policy` bounds the
        retries. The keys are the backend's: a tier's layout is not looked at.

        The session closes the store, if its user does not close it before. Raises `Misuse` as `catalogue`
        does. A source or a backend gets the same as `OpeningContext.open_store`.
        """
        self._refuse_if_over()
        given = GivenOptions.of(storage_options or {}, self.limits)
        if given.commits:
            raise Misuse(f"a bare store has no commit store, and no options that begin with {COMMIT_OPTION}")
        return self._guarded(url, given.data, given.limits, _Listener(self.emit), policy)

    def source(self, url: str, *, source_options: Mapping[str, Any] | None = None) -> Source:
        """Open the source of a URL. Raises `Misuse` for a scheme that no plugin serves.

        `source_options` go to the source, which may refuse them with `Misuse` as well. A source that opens
        stores also takes options of the store, and limits of its requests.
        """
        self._refuse_if_over()
        scheme = scheme_of(url)
        if scheme is None:
            of_sources = self.plugins.of_kind("source")
            known = ", ".join(f"{s}://" for d in of_sources for s in d.declaration.schemes)
            raise Misuse(f"{url!r} is not the URL of a source: begin it with one of {known}")
        declared = cast("SourceType", self.plugins.by_scheme("source", scheme))
        options, context = source_options or {}, None
        if declared.opens_stores:
            given = GivenOptions.of(options, self.limits)
            if given.commits:
                raise Misuse(f"a source has no commit store, and no options that begin with {COMMIT_OPTION}")
            options, context = given.data, self._context(given.limits, _Listener(self.emit))
        opened: Source = declared.open(url, options, context)
        if hasattr(opened, "aclose"):  # the contract of a source does not ask for it
            self._opened.append(opened)
        return opened

    def target(self, url: str, *, target_options: Mapping[str, Any] | None = None) -> RestoreTarget:
        """Open the place to restore a stream to. Raises `Misuse` for a scheme that no plugin serves.

        `target_options` go to the target, which may refuse them with `Misuse` as well.
        """
        self._refuse_if_over()
        scheme = scheme_of(url)
        if scheme is None:
            known = ", ".join(
                f"{s}://" for d in self.plugins.of_kind("target") for s in d.declaration.schemes
            )
            raise Misuse(f"{url!r} is not the URL of a target: begin it with one of {known}")
        declared = cast("TargetType", self.plugins.by_scheme("target", scheme))
        opened: RestoreTarget = declared.open(url, target_options or {})
        self._opened.append(opened)
        return opened

    def key_service(self, url: str) -> KeyService:
        """Open the key service of a URL. Raises `Misuse` if no plugin serves it, or if the plugin refuses."""
        self._refuse_if_over()
        opened = _key_service(url, self.plugins)
        self._opened.append(opened)
        return opened

    def broker(self, url: str, *, user: str | None = None, password: str | None = None) -> BrokerView:
        """Open a view of the broker at a URL, which sends nothing yet. Raises `Misuse` as `source` does.

        The URL has no login, because URLs are shown.
        """
        self._refuse_if_over()
        refuse_login(url, of="a broker", where="as broker_user and broker_password_file")
        scheme = scheme_of(url)
        declared = self.plugins.by_scheme("broker", scheme or url)
        opened = declared.load()(with_lower_scheme(url), user=user, password=password, env=self.env)
        if not isinstance(opened, BrokerView):
            kind = type(opened).__name__
            raise Misuse(f"the plugin of {scheme}:// returned a {kind}, which is no view of a broker")
        self._opened.append(opened)
        return opened

    def listener(self, url: str) -> Listener:
        """Open the server of a broker's protocol at a URL. It does not listen before its `listen` is called.

        Raises `Misuse` for a scheme that no plugin serves, and for an option that the listener refuses.
        """
        self._refuse_if_over()
        refuse_login(url, of="a listener", where="in its file of users")
        declared = self.plugins.by_scheme("listener", scheme_of(url) or url)
        opened: Listener = declared.load()(with_lower_scheme(url), env=self.env)
        self._opened.append(opened)
        return opened

    async def aclose(self) -> None:
        """Close everything that was opened and is still open, the newest first. Idempotent.

        A tier that its backend opened by itself may be closed a second time here, which its contract allows.
        If closing one object fails, the others are still closed. The first error is raised at the end, with
        the others as notes. A cancellation is raised when everything is closed.
        """
        if self.is_forked:  # the connections are the parent's, and closing them here would break it
            return
        # A task of its own: a cancelled caller interrupts its waiting, never a closing half-way. A second
        # caller waits for the same task.
        if self._closing is None:
            # The cache first: its requests go to the stores behind it in the list.
            if self._cache is not None:
                self._opened.append(self._cache)
            self._closing = asyncio.ensure_future(all_closed(self._opened))
        error = await whole_result(self._closing)
        if error is not None:
            raise error

    async def __aenter__(self) -> Self:
        """Return the session. The exit closes it; an error of the block has errors of closing as notes."""
        self._refuse_if_over()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.aclose()
        except Exception as of_closing:
            if error is None:
                raise
            # Raised here, it would replace the error of the block, which is the cause of the trouble.
            joined_errors(error, of_closing)

    @property
    def is_forked(self) -> bool:
        """True if this is a copy of the session in a forked process. Its connections are the parent's."""
        return os.getpid() != self._pid

    def _heard(self, tier: T, listener: _Listener) -> T:
        self._listeners[id(tier)] = listener
        return tier

    def _refuse_if_over(self) -> None:
        if self.is_forked:
            raise Misuse("a session does not survive a fork; make a new one")
        if self._closing is not None:
            raise Misuse("the session was closed; make a new one")

    def _refuse_wishes(
        self, backend: Backend, given: GivenOptions, how: TierOptions, plan: TierPlan, keys: str | None
    ) -> None:
        """Raise `Misuse` if an option is given that the backend does not declare to honour."""
        # A value that equals the default asks for nothing, even if the caller gave it.
        wishes = {
            **dict.fromkeys(_changed(given.limits, RequestLimits()), "limits"),
            **{name: name for name in _changed(how, TierOptions())},
            **dict.fromkeys(_changed(plan, TierPlan()), "only our own layout has it"),
            **dict.fromkeys((COMMIT_OPTION + name for name in given.commits), "only our own layout has it"),
            **({"env": "env"} if self._has_own_env else {}),
            **({} if keys is None else {"keys": "only our own layout has it"}),
        }
        # No backend can declare the sentence that marks parts of our own layout, so these are refused.
        refused = [wish for wish, part in wishes.items() if part not in backend.takes]
        if refused:
            raise Misuse(
                f"backend {backend.name!r} opens tiers by itself and cannot honour {', '.join(refused)}; "
                "leave it out, or open the tier in a session without it"
            )
        # Events and metrics are no wishes of a caller: a backend without them still does its work. But
        # whoever waits for them should find the reason in the log.
        if missing := {"emit", "metrics"} - {*backend.takes}:
            _log.info("backend %r does not honour %s", backend.name, " and ".join(sorted(missing)))

    def _ring_of(self, keys: str | None, options: TierOptions) -> KeyRing | None:
        """Return the ring of a tier: of its own key service, or of the session's, or None."""
        new = None if options.encrypt is None else MasterKey.parse(options.encrypt)
        if keys is not None:
            return self._new_ring(keys, new, encrypted_only=options.encrypted_only)
        if self._ring is not None:
            # All tiers share the memory of the session's ring, so a process keeps a key once.
            return self._ring.shared(new=new, encrypted_only=options.encrypted_only)
        if new is not None or options.encrypted_only:
            raise Misuse("encryption needs a key service: give its URL as `keys`, or by --keys")
        return None

    def _new_ring(self, keys: str, new: MasterKey | None = None, *, encrypted_only: bool = False) -> KeyRing:
        service = _key_service(keys, self.plugins)
        ring = KeyRing(service=service, new=new, encrypted_only=encrypted_only, env=self.env)
        self._opened.append(ring)
        return ring

    def _context(self, limits: RequestLimits, emit: _Listener) -> OpeningContext:
        """Return the services of this session for a plugin that opens something by itself."""
        return OpeningContext(
            env=self.env,
            emit=emit,
            metrics=self.metrics,
            limits=limits,
            fragment_size_bytes=None,
            uploads_max=None,
            open_store=lambda url, options: self._guarded(url, options, limits, emit),
        )

    def _guarded(
        self,
        url: str,
        options: Mapping[str, Any],
        limits: RequestLimits,
        emit: Callable[[Event], None],
        policy: RetryPolicy | None = None,
    ) -> ObjectStore:
        """Return the store of a URL with its decorators. Only this method builds a stack."""
        self._refuse_if_over()  # a tier opens its commit store late, perhaps after the session was closed
        turns = self._turns_of(url, options, limits)
        store = self._shared.leased(backend_of(url, self.plugins), url, options)
        return stacked_store(store, self.env, limits, policy, emit=emit, turns=turns)

    def _turns_of(self, url: str, options: Mapping[str, Any], limits: RequestLimits) -> RequestTurns:
        scheme = scheme_of(url)
        host = scheme or FILE_SCHEME, urlsplit(url).netloc if scheme else ""
        # A list, because options may hold values that cannot be hashed. It has few rows.
        for asked, turns in self._turns:
            if asked == (host, options, limits):
                return turns
        turns = RequestTurns(limits, clock=self.env.monotonic, sleep=self.env.sleep)
        # A copy of the options, because the caller may change its mapping later.
        self._turns.append(((host, {**options}, limits), turns))
        return turns


def _key_service(url: str, plugins: Plugins) -> KeyService:
    """Open the key service of a URL. Raises `Misuse` if there is none, or if the URL has a login."""
    refuse_login(url)
    scheme, colon, _ = url.partition(":")
    if not colon:
        of_keys = plugins.of_kind("key service")
        known = ", ".join(f"{scheme}:" for each in of_keys for scheme in each.declaration.schemes)
        raise Misuse(f"{shown(url)} is the URL of no key service: begin it with one of {known or 'none'}")
    opened = plugins.by_scheme("key service", scheme.lower()).load()(url)
    if not isinstance(opened, KeyService):
        raise Misuse(f"the plugin of {scheme}: returned a {type(opened).__name__}, which is no key service")
    return opened


def _changed(value: Any, default: Any) -> list[str]:
    """Return the names of the fields in which two values of one class differ."""
    names = (each.name for each in fields(value))
    return [name for name in names if getattr(value, name) != getattr(default, name)]


class _Listener:
    """Logs the events of a tier or store, wakes the readers that wait for commits, and passes them on."""

    __slots__ = ("__weakref__", "_emit", "watch")

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.watch: StreamWatch | None = None
        """The watch of the tier. It refers to the tier, which refers to its listener."""

    def __call__(self, event: Event) -> None:
        _log.debug("%r", event)
        if self.watch is not None:  # first: a commit is a fact, even if a caller's function raises
            self.watch.committed(event)
        self._emit(event)
