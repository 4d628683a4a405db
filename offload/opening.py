"""From a URL to a tier or a source: which plugin serves it, and what stands before its store.

A path without a scheme is a folder (`offload.urls`). Everything else that a URL says is for the plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.plugin import Backend
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.errors import Misuse
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.plugins import Plugins
from offload.store.limit import RequestLimits
from offload.store.stack import stacked_store
from offload.urls import FILE_SCHEME, scheme_of, with_lower_scheme

__all__ = ["backend_of", "open_source", "open_tier"]


COMMIT_OPTION: Final = "commit."
"""What the names of options for the commit store begin with."""

_log: Final = logging.getLogger(__name__)


def open_tier(
    url: str,
    *,
    plugins: Plugins | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: TierOptions | None = None,
    plan: TierPlan | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] | None = None,
) -> LedgerOffloader:
    """The offloader behind a tier's URL. As `open_catalogue`, but raises `Misuse` for what is only read."""
    opened = open_catalogue(
        url,
        plugins=plugins,
        storage_options=storage_options,
        options=options,
        plan=plan,
        env=env,
        emit=emit,
    )
    return as_offloader(opened)


def as_offloader(tier: Catalogue) -> LedgerOffloader:
    """The tier as one that takes data and commits. Raises `Misuse` if it is only read."""
    if not isinstance(tier, LedgerOffloader):
        raise Misuse(f"{tier.url} can only be read: its layout takes no data and no commits from here")
    return tier


def open_catalogue(
    url: str,
    *,
    plugins: Plugins | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: TierOptions | None = None,
    plan: TierPlan | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] | None = None,
) -> Catalogue:
    """What can be read at a tier's URL. Touches nothing: its `open` finds out whether a tier is there.

    `plugins` are those of this environment, where none are given; `storage_options` are the backend's.
    Those that `RequestLimits` names bound what this client asks of the store, whatever the backend; those
    that begin with `commit.` are the commit store's, where the tier has one. `plan` is for a tier yet to be
    made. Raises `Misuse` for a scheme that no plugin serves, or an URL that its plugin refuses.
    """
    plugins = plugins or Plugins.find()
    env = env or Env()
    given = GivenOptions.of(storage_options or {})
    backend = backend_of(url, plugins)
    opened = backend.open(url, given.data)
    if isinstance(opened, Catalogue):
        return opened
    emit = _logging(emit or plugins.emit)
    return ObjectStoreOffloader(
        stacked_store(opened, env, given.limits, emit=emit),
        env=env,
        options=options,
        emit=emit,
        plan=plan,
        open_store=lambda url: stacked_store(
            open_store(url, plugins=plugins, storage_options=given.commits), env, given.limits, emit=emit
        ),
    )


def _logging(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        _log.debug("%r", event)
        emit(event)

    return tell


def backend_of(url: str, plugins: Plugins) -> Backend:
    """The backend that serves a URL. Raises `Misuse` if there is none, or if it is no URL."""
    backend = plugins.by_scheme("backend", scheme_of(url) or FILE_SCHEME)
    assert isinstance(backend, Backend)
    return backend


def open_store(
    url: str, *, plugins: Plugins, storage_options: Mapping[str, Any] | None = None
) -> ObjectStore:
    """The bare store behind a URL: no retries, no limits. Raises `Misuse` where there is none."""
    backend = backend_of(url, plugins)
    if backend.kind != "store":
        raise Misuse(f"backend {backend.name!r} is no object store")
    store: ObjectStore = backend.open(url, storage_options or {})
    return store


def open_source(url: str, *, plugins: Plugins | None = None) -> Source:
    """The source behind a URL. Raises `Misuse` for a scheme that no plugin serves."""
    plugins = plugins or Plugins.find()
    scheme = scheme_of(url)
    if scheme is None:
        known = ", ".join(f"{s}://" for d in plugins.of_kind("source") for s in d.declaration.schemes)
        raise Misuse(f"{url!r} names no source: begin it with one of {known}")
    source: Source = plugins.by_scheme("source", scheme).load()(with_lower_scheme(url))
    return source


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
    def of(cls, options: Mapping[str, Any]) -> GivenOptions:
        """Part them. Raises `Misuse` for a limit that is none."""
        commits, others = _parted(options, lambda name: name.startswith(COMMIT_OPTION))
        limits, data = _parted(others, lambda name: name in RequestLimits.names())
        commits = {name.removeprefix(COMMIT_OPTION): value for name, value in commits.items()}
        return cls(data=data, commits=commits, limits=RequestLimits.of(limits))


def _parted(
    options: Mapping[str, Any], chosen: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options whose names are chosen, and the others."""
    mine = {name: value for name, value in options.items() if chosen(name)}
    return mine, {name: value for name, value in options.items() if name not in mine}
