"""Opening one tier or source by its URL. Each has a session of its own (`offload.session`).

A path without a scheme names a folder (`offload.urls`). The plugin interprets every other part of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.plugins import Plugins
from offload.session import Session, as_offloader, backend_of, open_bare

__all__ = ["open_source", "open_tier"]


def open_tier(
    url: str,
    *,
    plugins: Plugins | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: TierOptions | None = None,
    plan: TierPlan | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] | None = None,
    keys: str | None = None,
) -> LedgerOffloader:
    """Open the offloader of a tier's URL.

    As `open_catalogue`, but raises `Misuse` if the tier is read-only.
    """
    opened = open_catalogue(
        url,
        plugins=plugins,
        storage_options=storage_options,
        options=options,
        plan=plan,
        env=env,
        emit=emit,
        keys=keys,
    )
    return as_offloader(opened)


def open_catalogue(
    url: str,
    *,
    plugins: Plugins | None = None,
    storage_options: Mapping[str, Any] | None = None,
    options: TierOptions | None = None,
    plan: TierPlan | None = None,
    env: Env | None = None,
    emit: Callable[[Event], None] | None = None,
    keys: str | None = None,
) -> Catalogue:
    """Open the tier at a URL, which can at least be read. Sends no request: `open` checks what is there.

    The tier is alone in its session, so closing the tier closes everything, its key service too. Arguments
    and errors are those of `Session` and `Session.catalogue`. A program that opens several tiers should open
    them in one session: they then share clients and limits.
    """
    session = Session(plugins=plugins, env=env, emit=emit)
    return session.catalogue(url, storage_options=storage_options, options=options, plan=plan, keys=keys)


def open_store(
    url: str, *, plugins: Plugins, storage_options: Mapping[str, Any] | None = None
) -> ObjectStore:
    """Open the bare store of a URL: no retries, no limits, no session. Raises `Misuse` if there is none."""
    return open_bare(backend_of(url, plugins), url, storage_options or {})


def open_source(url: str, *, plugins: Plugins | None = None) -> Source:
    """Open the source of a URL. Raises `Misuse` for a scheme that no plugin serves."""
    return Session(plugins=plugins).source(url)
