"""The place of a run of the black box: a folder of its own below the URL, with one folder for each test.

Invariant: nothing outside the run's folder is written or deleted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname
from uuid import uuid4

from offload.contracts.capabilities import Capabilities
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.plugin import Backend
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Misuse, OffloadError
from offload.ground.urls import FILE_SCHEME
from offload.native.layout_check import native_or_none
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.retry import RetryingStore
from offload.store.wrap import StoreDecorator
from offload_conformance.asynchronous import CLAUSE_SECONDS_MAX
from offload_conformance.contender import ContenderTask, job_of_backend
from offload_conformance.declared import Declared
from offload_conformance.lending import Lending
from offload_conformance.recording import Folder, FolderAccount, Looker, RecordingStore, told

UNSEEN: Final = "the suite cannot see what this offloader stores, because it has no object store"


class BackendPlace:
    """The base of both kinds of places: the run's folder, and an account for each test."""

    def __init__(self, backend: Backend, url: str, options: Mapping[str, Any]) -> None:
        self.backend = backend
        self.folder = f"conformance-{uuid4()}"
        self.accounts: dict[str, FolderAccount] = {}  # by the id that pytest gives the test
        self.clause_seconds_max = CLAUSE_SECONDS_MAX
        self.listing_keys = 0
        self._url, self._options = url, options

    def begin(self, test: str) -> FolderAccount:
        """Return a new account for a test that begins."""
        # Numbered: names of tests are long, and have characters that a place may refuse.
        account = self.accounts[test] = FolderAccount(f"{self.folder}/{len(self.accounts):04}")
        return account

    def finish(self) -> dict[str, str]:
        """Clean up. Return the keys that could not be removed, each with the reason."""
        return {}

    @property
    def shown_url(self) -> str:
        """Return the URL as the backend shows it, without credentials."""
        raise NotImplementedError

    def capabilities(self) -> dict[str, object] | None:
        """Return the capabilities that the backend declares, or None if it declares none."""
        return None

    def try_out(self) -> None:
        """Make one request, so that a wrong endpoint or missing permission is one error, not a hundred."""

    def close(self) -> None:
        """Close the clients of the place itself."""


class StorePlace(BackendPlace):
    """A place in an object store."""

    def __init__(
        self,
        backend: Backend,
        url: str,
        options: Mapping[str, Any],
        *,
        server_version: str | None,
        upload_size_bytes: int,
    ) -> None:
        super().__init__(backend, url, options)
        self.upload_size_bytes = upload_size_bytes
        self.meant = meant_by(backend, server_version)
        self.looker = Looker(self._bare)
        self.lending = Lending(self._bare)
        self._closed = socket.socket()
        # Bound and never listened on: a client that connects is refused, and no other program gets the port.
        self._closed.bind(("127.0.0.1", 0))

    @property
    def shown_url(self) -> str:
        """Return the URL as the store shows it."""
        return self.looker.store.url

    def capabilities(self) -> dict[str, object]:
        """Return the capabilities that the store declares."""
        return self.looker.store.capabilities.as_dict()

    def try_out(self) -> None:
        """Ask for one key. Errors outside the framework's classes are bugs, which clauses find and name."""
        try:
            self.looker.there([f"{self.folder}/nothing"])
        except OffloadError:
            raise
        except Exception:  # noqa: BLE001 - a stranger's store may raise anything
            return

    def open(self, account: FolderAccount) -> ObjectStore:
        """Return a fresh client of a test's folder."""
        return self._in_folder(self._bare(), account)

    def borrow(self, account: FolderAccount, *, is_kept: bool) -> ObjectStore:
        """Return a client of a test's folder that may have served other tests."""
        return self._in_folder(self.lending.borrow(is_kept=is_kept), account)

    def _in_folder(self, client: ObjectStore, account: FolderAccount) -> ObjectStore:
        return Folder(RecordingStore(client, account), account.folder)

    def open_unreachable(self) -> ObjectStore | None:
        """Return a client of a port on which nobody listens; None if neither URL nor options name one."""
        address = f"127.0.0.1:{self._closed.getsockname()[1]}"
        options = {
            name: moved(value, address) if isinstance(value, str) else value
            for name, value in self._options.items()
        }
        url = self._url if options != self._options else moved(self._url, address)
        # Nothing named a port, so the client would reach the real server.
        if (url, options) == (self._url, self._options):
            return None
        store: ObjectStore = self.backend.open(url, options)
        return store

    def job(self, account: FolderAccount, keys: Sequence[str]) -> ContenderTask:
        """Return how another process opens a test's folder. Keys that it may write are noted before."""
        account.note(*(f"{account.folder}/{key}" for key in keys))
        return job_of_backend(self.backend.name, self._url, self._options, account.folder)

    def keys(self, account: FolderAccount) -> set[str]:
        """Return the keys in a test's folder: those written there, and others that a listing names."""
        # Noted keys first: a listing is under test, and may hide a key that the store has.
        found = self.looker.there(account.keys) | self.looker.listed(f"{account.folder}/")
        return {key.removeprefix(f"{account.folder}/") for key in found}

    def top(self) -> set[str]:
        """Return the keys and folders at the top of the place, without the run's own folder."""
        return self.looker.top() - {f"{self.folder}/"}

    def clean(self, account: FolderAccount) -> None:
        """Remove the objects of a test. `finish` tries again to remove those that cannot be removed now."""
        # Only the keys that are still there stay on the account, for `finish`.
        left = self.looker.remove(account.keys)
        account.keys = dict.fromkeys(left)

    def finish(self) -> dict[str, str]:
        """Remove the objects and unfinished uploads that are left of all tests."""
        left: dict[str, str] = {}
        try:
            for account in self.accounts.values():
                left |= self.looker.remove(account.keys)
            self.looker.abort_uploads(f"{self.folder}/")
            # Of many keys, only some were read after their deletion.
            left |= self.looker.remove({*self.looker.named(f"{self.folder}/")} - {*left})
        except Exception as error:  # noqa: BLE001 - a stranger's store may raise anything
            left[f"{self.folder}/"] = f"perhaps unfinished uploads: {told(error)}"
        _remove_empty_folders(self.shown_url, self.folder)
        return left

    def close(self) -> None:
        """Close the client that looks and cleans up."""
        self._closed.close()
        self.lending.end(passed=False)
        self.looker.close()

    def _bare(self) -> ObjectStore:
        store: ObjectStore = self.backend.open(self._url, self._options)
        return store


class OffloaderPlace(BackendPlace):
    """A place of an offloader: a URL below the given one.

    If the offloader shows an object store beneath it as `store`, the suite looks into that store and cleans
    it up. Faults are put before that store if the offloader's class takes any store, as
    `ObjectStoreOffloader` does.
    """

    @property
    def shown_url(self) -> str:
        """Return the URL as the offloader shows it."""
        return self._bare(self._url).url

    def __init__(self, backend: Backend, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(backend, url, options)
        self._left: dict[str, str] = {}

    def open(self, account: FolderAccount) -> LedgerOffloader:
        """Return a fresh offloader at a test's own URL."""
        return self._bare(f"{self._url.rstrip('/')}/{account.folder}")

    def keys(self, account: FolderAccount) -> set[str] | None:
        """Return the keys stored in a test's own tier, or None if the offloader does not show them."""
        with self._looking(account) as looker:
            return None if looker is None else looker.listed("")

    def files(self, account: FolderAccount) -> Sequence[Path]:
        """Return the files of a test's own tier, if its URL is the path of a file or of a folder."""
        urls = (f"{self._url.rstrip('/')}/{account.folder}", self.open(account).url)
        paths = {Path(unquote(url.partition("://")[2].partition("?")[0])) for url in urls}
        # A database may keep files beside its own: `tier.db-wal` beside `tier.db`.
        beside = {
            each for path in paths if path.parent.is_dir() for each in path.parent.glob(f"{path.name}*")
        }
        return sorted(file for each in beside for file in (each, *each.rglob("*")) if file.is_file())

    def clean(self, account: FolderAccount) -> None:
        """Remove the objects of a test, if the suite can see them. Keep the others in `left`."""
        with self._looking(account) as looker:
            if looker is None:
                self._left = {f"{self.folder}/": "an offloader cannot remove a tier"}
            else:
                left = looker.remove(looker.listed(""))
                self._left |= {f"{account.folder}/{key}": why for key, why in left.items()}

    def makes_tiers_of_stores(self) -> bool:
        """Return True if such an offloader can be made on any store, so that faults can be put before it."""
        opened = self._bare(self._url)
        try:
            objects = native_or_none(opened)
            return objects is not None and bool(tier_like(objects, objects.data))
        except Exception:  # noqa: BLE001 - its constructor takes something else
            return False

    def finish(self) -> dict[str, str]:
        """Return what no test could remove, because the contract has no call that removes a tier."""
        return self._left

    @contextmanager
    def _looking(self, account: FolderAccount) -> Iterator[Looker | None]:
        """Yield a client of the store beneath a test's own tier, or None if the offloader shows none."""

        def store_beneath() -> ObjectStore:
            return cast("ObjectStore", _beneath(self.open(account)))

        if _beneath(self.open(account)) is None:
            yield None
            return
        looker = Looker(store_beneath)
        try:
            yield looker
        finally:
            looker.close()

    def _bare(self, url: str) -> LedgerOffloader:
        offloader: LedgerOffloader = self.backend.open(url, self._options)
        return offloader


def tier_like(
    offloader: ObjectStoreOffloader,
    store: ObjectStore,
    *,
    env: Env | None = None,
    options: TierOptions | None = None,
) -> ObjectStoreOffloader:
    """Return another offloader of the same class on this store."""
    return type(offloader)(store, env=env or Env(), options=options or TierOptions())


def has_retries(store: ObjectStore, *, before: ObjectStore) -> bool:
    """Return True if there are retries between `store` and the store `before`, on which it is built."""
    while store is not before and isinstance(store, StoreDecorator):
        if isinstance(store, RetryingStore):
            return True
        store = store.inner
    return False


def moved(url: str, address: str) -> str:
    """Return a URL with another host and port, and the same user.

    Text without a port is returned unchanged.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # not a URL at all
        return url
    if not parts.scheme or port is None:
        return url
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}{address}").geturl()


def meant_by(backend: Backend, server_version: str | None) -> Capabilities | Declared | None:
    """Return the capabilities that a plugin declares for its stores. Raises `Misuse` for an unknown state."""
    if not backend.states:
        return backend.capabilities
    return Declared.of(backend.states, stated=backend.capabilities, server_version=server_version)


def _remove_empty_folders(url: str, folder: str) -> None:
    """Remove the empty folders of a run, which a store in a folder may leave behind. Files stay."""
    parts = urlsplit(url)
    if parts.scheme == FILE_SCHEME:
        for path, _, _ in os.walk(os.path.join(url2pathname(parts.path), folder), topdown=False):
            with suppress(OSError):  # not empty: the report lists the files in it
                os.rmdir(path)


def _beneath(offloader: LedgerOffloader) -> ObjectStore | None:
    """Return the store that an offloader shows: one of this project as `data`, any other as `store`."""
    ours = native_or_none(offloader)
    if ours is not None:
        return ours.data
    try:
        shown = getattr(offloader, "store", None)
    except Misuse:  # it wraps an offloader of this project, whose `store` exists only after `open`
        shown = getattr(offloader, "data", None)
    return shown if isinstance(shown, ObjectStore) else None
