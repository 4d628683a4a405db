"""The metadata of objects: kept as it is and replaced with its object, or refused before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final

import pytest

from offload.contracts.object_metadata import METADATA_PAIRS_MAX, metadata_size
from offload.contracts.store import Body, ObjectStore, begin_upload
from offload.ground.errors import Misuse, NotFound, OffloadError
from offload_conformance.asynchronous import Run
from offload_conformance.clauses import since
from offload_conformance.raising import raises
from offload_conformance.store.base import DIGITS, StoreClauses, body_of, drawn, halves, store_by
from offload_conformance.store.edges import NO_METADATA_NAMES, NO_METADATA_VALUES

SENT: Final = {
    "Role": "data",
    "managedLedgerName": "public/default/persistent/a-topic-partition-0",
    "x9": "a, b; c=\"d\" 'e' %41 + \\ <&> ~ {} =?",
}
STORED: Final = {name.lower(): value for name, value in SENT.items()}

REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    **{f"the name {name!r}": {name: "value"} for name in NO_METADATA_NAMES},
    **{f"the value {value!r}": {"name": value} for value in NO_METADATA_VALUES},
    "a name twice": {"Role": "one", "role": "two"},
    "too many names": {f"n{number}": "v" for number in range(METADATA_PAIRS_MAX + 1)},
}
"""Metadata that not every store keeps as it is, by the reason."""


class MetadataClauses(StoreClauses):
    """The clauses on metadata. A store that declares none must refuse it."""

    @since("0.3", advisory=True)
    def test_undeclared_metadata_is_refused(self, run: Run, store: ObjectStore) -> None:
        """Metadata beyond what is declared is `Misuse` before the body is read: any, if none is declared.

        Nothing is stored, and no object of a store that declares none has metadata.
        """
        run(store.put("old", Body.of(DIGITS)))
        if declared := store.capabilities.metadata_size_bytes_max:
            beyond = of_size(declared + 1, pairs=1)
            self.all_refuse(run, store, beyond, f"{declared + 1} bytes of metadata")
            return
        self.all_refuse(run, store, SENT, "metadata in a store that declares none")
        for reason, metadata in REFUSED.items():
            self.all_refuse(run, store, metadata, reason)
        assert run(store.metadata_of("old")) in (None, {})

    @since("0.3")
    def test_metadata_is_kept_as_declared(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Declared metadata is read back with names in lower case, whichever call stored the object.

        It is so for an empty object, for a large one and for one whose body has only a bound. An object
        without metadata has none, which is not the answer of a store that keeps none. Objects of the same
        bytes each keep their own.
        """
        self.needs_metadata(store)
        for way in ways_with_metadata(store):
            run(stored_with(store, way, SENT | {"way": way}))
        run(store.create("created", DIGITS))
        for way in ways_with_metadata(store):
            found = run(other.metadata_of(way)) or {}
            assert (STORED | {"way": way}).items() <= found.items(), (
                f"the metadata of an object stored by {way}"
            )
            assert run(other.get(way)) == DIGITS
        assert not {*STORED} & {*(run(other.metadata_of("created")) or {})}
        most = store.capabilities.put_size_bytes_max or LARGE_SIZE_BYTES
        for size_bytes in (0, min(most, LARGE_SIZE_BYTES)):
            for is_bound in {False, store.capabilities.unsized_put}:
                body = replace(body_of(*halves(drawn(size_bytes))), metadata=SENT, is_bound=is_bound)
                run(store.put("sized", body))
                kept = run(other.metadata_of("sized"))
                assert kept is not None
                assert STORED.items() <= kept.items(), f"the metadata of an object of {size_bytes:,} bytes"
        run(store.put("plain", Body.of(DIGITS)))
        assert run(other.metadata_of("plain")) is not None, "the metadata of an object that has none"

    @since("0.3")
    @pytest.mark.parametrize("pairs", ["one", "many"])
    def test_metadata_may_be_as_large_as_declared(self, run: Run, store: ObjectStore, pairs: str) -> None:
        """`metadata_size_bytes_max` bytes of metadata are kept, in one pair or in many; one more is `Misuse`.

        At most 7 KiB in one value and 16 KiB in all are tested: HTTP libraries take no longer headers.
        """
        self.needs_metadata(store)
        declared = store.capabilities.metadata_size_bytes_max
        most = min(declared, ONE_SIZE_BYTES_MAX if pairs == "one" else MANY_SIZE_BYTES_MAX)
        sent = of_size(most, pairs=1 if pairs == "one" else min(most // PAIR_SIZE_BYTES, METADATA_PAIRS_MAX))
        assert metadata_size(sent) == most
        run(store.put("old", Body.of(DIGITS)))

        for way in ways_with_metadata(store):
            run(stored_with(store, way, sent))
            found = run(store.metadata_of(way)) or {}
            assert sent.items() <= found.items(), f"{most} bytes of metadata by {way}"
        run(store.delete(ways_with_metadata(store)))

        if declared == most:
            last = [*sent][-1]
            self.all_refuse(run, store, {**sent, last: sent[last] + "v"}, f"{most + 1} bytes of metadata")

    @since("0.3")
    def test_metadata_is_replaced_with_its_object(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """An object has only the metadata that it was written with, not that of one which it replaced.

        This holds for every pair of calls, and for a client that asked before. Two uploads of one key that
        overlap keep their metadata apart. Earlier answers do not change.
        """
        self.needs_metadata(store)
        if store.capabilities.multipart:
            for first in ("one", "two"):
                run(self.uploads_do_not_share(store, other, first))
        ways = [*ways_with_metadata(store), "create"]
        kept: list[tuple[Mapping[str, str], dict[str, str]]] = []
        for number, way in enumerate(way for pair in product(ways, repeat=2) for way in pair):
            sent = {f"only{number}": f"{number}", "both": f"{number}"} if number % 3 else {}
            run(stored_with(store, way, sent, key="key"))
            wanted = {} if way == "create" else sent
            for client in (store, other):
                found = run(client.metadata_of("key")) or {}
                ours = {name: value for name, value in found.items() if name.startswith(("only", "both"))}
                assert ours == wanted, f"the metadata of call {number}, by {way}"
                kept.append((found, {**found}))
        assert all(found == before for found, before in kept), "the metadata that was read before has changed"

    async def uploads_do_not_share(self, store: ObjectStore, other: ObjectStore, first: str) -> None:
        """Fail unless each of several uploads of one key gives its own metadata to its own bytes."""
        clients = {"one": store, "two": other, "three": store}
        uploads = {
            name: await client.start_upload("shared", metadata={"ours": name, f"of{name}": name})
            for name, client in clients.items()
        }
        for name, upload in uploads.items():
            await upload.put_part(1, name.encode())
        for name in sorted(uploads, key=lambda name: name != first):
            try:
                await uploads[name].complete()
            except OffloadError:  # the key was written meanwhile, by the first of them
                if name == first:
                    raise
                await uploads[name].abort()
            stored = bytes(await other.get("shared")).decode()
            found = await other.metadata_of("shared") or {}
            ours = {key: value for key, value in found.items() if key.startswith("o")}
            assert ours == {"ours": stored, f"of{stored}": stored}, f"the metadata of the upload {stored!r}"

    def needs_metadata(self, store: ObjectStore) -> None:
        """Skip the rest of a test if the store declares no metadata."""
        if not store.capabilities.metadata_size_bytes_max:
            pytest.skip(
                "the store declares no metadata: `undeclared_metadata_is_refused` has what it refuses"
            )

    @since("0.3")
    def test_metadata_that_some_store_cannot_keep_is_refused(self, run: Run, store: ObjectStore) -> None:
        """Other names than letters and digits, and other values than printable ASCII, are `Misuse`.

        It is raised before the body is read, and nothing is stored. So every store that keeps metadata takes
        the same.
        """
        self.needs_metadata(store)
        run(store.put("old", Body.of(DIGITS)))

        for reason, metadata in REFUSED.items():
            self.all_refuse(run, store, metadata, reason)

    @since("0.3")
    def test_what_is_absent_has_no_metadata(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The metadata of an absent object is None or `NotFound`, also after a deletion."""
        described = bool(store.capabilities.metadata_size_bytes_max)
        run(store.put("gone", Body.of(DIGITS, metadata=STORED if described else {})))
        run(store.put("folder/key", Body.of(DIGITS)))
        run(other.metadata_of("gone"))
        run(store.delete(["gone"]))

        for key in ("gone", "never", "folder", "folder/key/below"):
            for client in (store, other):
                try:
                    found = run(client.metadata_of(key))
                except NotFound:
                    continue
                assert found is None, f"the metadata of {key!r}, which is absent"
        if described:
            run(store.put("never", Body.of(DIGITS, metadata=STORED)))
            for client in (store, other):
                found = run(client.metadata_of("never")) or {}
                assert STORED.items() <= found.items(), "the metadata of an object that was absent before"

    def all_refuse(self, run: Run, store: ObjectStore, metadata: Mapping[str, str], what: str) -> None:
        """Fail unless puts and uploads refuse this metadata and read no body. There is one object, `old`."""
        is_read = False

        async def windows() -> AsyncIterator[bytes]:
            nonlocal is_read
            is_read = True
            yield DIGITS

        body = replace(Body.of(DIGITS, metadata=metadata), windows=windows)
        for key in ("old", "new"):
            with raises(Misuse, f"a put with {what}"):
                run(store.put(key, body))
            with raises(Misuse, f"an upload with {what}"):
                run(store.start_upload(key, metadata=metadata))
        assert not is_read, f"{what}: the body was read before the metadata was refused"
        assert run(store.get("old")) == DIGITS
        with raises(NotFound, f"a read of an object that was refused with {what}"):
            run(store.get("new"))


LARGE_SIZE_BYTES: Final = 9 * 2**20 + 7
"""A size that SDKs send in parts, in requests that have headers of their own."""

ONE_SIZE_BYTES_MAX: Final = 7 * 2**10
MANY_SIZE_BYTES_MAX: Final = 16 * 2**10
PAIR_SIZE_BYTES: Final = 64


def ways_with_metadata(store: ObjectStore) -> list[str]:
    """Return the ways in which an object with metadata gets into this store."""
    can = store.capabilities
    return ["put", *["upload"] * can.multipart] if can.metadata_size_bytes_max else []


def of_size(size_bytes: int, *, pairs: int) -> dict[str, str]:
    """Return metadata of exactly this size, in so many pairs of about the same size."""
    names = [f"n{number:05}" for number in range(max(pairs, 1))]
    values = dict.fromkeys(names, "v")
    left = size_bytes - metadata_size(values)
    each, rest = divmod(left, len(names))
    return {name: "v" * (1 + each + (number < rest)) for number, name in enumerate(names)}


async def stored_with(store: ObjectStore, way: str, metadata: Mapping[str, str], *, key: str = "") -> None:
    """Store digits with this metadata, under the name of the way if no key is given. A create has none."""
    match way:
        case "put":
            body = Body.of(DIGITS, metadata=metadata)
            await store.put(key or way, body)
        case "create":
            await store_by(way, store, key or way, DIGITS)
        case "upload":
            upload = await begin_upload(store, key or way, metadata)
            await upload.put_part(1, DIGITS)
            await upload.complete()
