"""From a URL to a tier or a source, each with a session of its own (`offload.session`).

A path without a scheme is a folder (`offload.urls`). Everything else that a URL says is for the plugin.
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

    It is all of its session: closing it closes everything. The arguments are those of `Session` and
    `Session.catalogue`; it raises what these raise. Several tiers in one process share more in one session.
    """
    session = Session(plugins=plugins, env=env, emit=emit)
    return session.catalogue(url, storage_options=storage_options, options=options, plan=plan)


def open_store(
    url: str, *, plugins: Plugins, storage_options: Mapping[str, Any] | None = None
) -> ObjectStore:
    """The bare store behind a URL: no retries, no limits, no session. Raises `Misuse` where there is none."""
    return open_bare(backend_of(url, plugins), url, storage_options or {})


def open_source(url: str, *, plugins: Plugins | None = None) -> Source:
    """The source behind a URL. Raises `Misuse` for a scheme that no plugin serves."""
    return Session(plugins=plugins).source(url)
