"""The backend of a URL: which plugin serves it, and what it opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.contracts.catalogue import Catalogue
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.plugin import Backend
from offload.contracts.store import ObjectStore
from offload.ground.errors import Misuse
from offload.ground.urls import FILE_SCHEME, scheme_of
from offload.opening.plugins import Plugins

__all__ = ["as_offloader", "backend_of", "open_bare"]


def as_offloader(tier: Catalogue) -> LedgerOffloader:
    """Return the tier as an offloader, which takes data and commits. Raises `Misuse` if it is read-only."""
    if not isinstance(tier, LedgerOffloader):
        raise Misuse(f"{tier.url} is read-only: its layout accepts no data or commits from here")
    return tier


def backend_of(url: str, plugins: Plugins) -> Backend:
    """Return the backend that serves a URL. Raises `Misuse` if there is none, or if the URL is malformed."""
    backend = plugins.by_scheme("backend", scheme_of(url) or FILE_SCHEME)
    assert isinstance(backend, Backend)
    return backend


def open_bare(backend: Backend, url: str, options: Mapping[str, Any]) -> ObjectStore:
    """Return the backend's store for a URL, without decorators. Raises `Misuse` if the backend has none."""
    if backend.kind != "store":
        raise Misuse(f"backend {backend.name!r} is not an object store")
    store = backend.open(url, options)
    if not isinstance(store, ObjectStore):
        raise Misuse(
            f"backend {backend.name!r} says that it is a store, but returned a {type(store).__name__}"
        )
    return store
