"""Opening one tier or source by its URL. Each has a session of its own (`offload.opening.session`).

A path without a scheme names a folder (`ground.urls`). The plugin interprets every other part of a URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.opening.backends import as_offloader, backend_of, open_bare
from offload.opening.plugins import Plugins
from offload.opening.session import Session

if TYPE_CHECKING:
    from offload.opening.tables import ArrowTier

__all__ = ["open", "open_source", "open_tier"]


def open(  # noqa: A001 - `offload.open` says it; this module opens no file
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    keys: str | None = None,
) -> ArrowTier:
    """Open a tier for notebooks and scripts: `offload.open("s3://bucket/tier")["orders"].to_arrow()`.

    The calls block, and tables are those of Arrow (docs/arrow.md). A folder may be a `Path`. `keys` is the
    URL of the key service of encrypted streams; by default it is that of `OFFLOAD_KEYS`. Raises `Misuse` if
    pyarrow is not installed (the extra `arrow`), `NotOffloaded` if there is no tier, and as `Blocking`.
    """
    try:
        import pyarrow as pa  # noqa: F401 - the module below would fail with an error that names no extra
    except ModuleNotFoundError as exc:
        raise Misuse(missing_text("offload.open", "pyarrow", "ledger-offload[arrow]")) from exc
    from offload.opening.tables import ArrowTier

    return ArrowTier(
        url, storage_options=storage_options, keys=keys or os.environ.get("OFFLOAD_KEYS") or None
    )


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
