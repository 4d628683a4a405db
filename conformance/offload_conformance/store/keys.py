"""Keys: checked before any effect, and stored exactly as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pytest

from offload.contracts.store import Body, ObjectStore
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, OffloadError
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    StoreClauses,
    in_turn,
    keys,
    level_like,
    listed,
    make_sure_of_keys,
    naming,
    refuses,
    store_by,
    ways_of,
)
from offload_conformance.store.edges import KINDS

KeyCall = Callable[[str], Coroutine[Any, Any, object]]
KEY: Final = KINDS["key: str"]

ODD_KEYS: Final = ("a\\b", "\\", "a.", "a./b", "a/b...", "a:b", "con", "a ", "\ue000", "\uffee", "\U0001f4be")
"""Keys that some stores confuse with others or cannot hold, because of file names or of UTF-16."""


NUMERIC: Final = ("007", "7", "07", "1000", "1e3")
"""Whole keys, of which a column of numbers takes some for the same. The command puts them in a folder."""

ALIKE: Final = (
    *(
        ("key", "KEY"),
        ("key", "Key"),
        ("stra\u00dfe", "strasse"),
        ("\u017f", "s"),
        ("i", "\u0130"),
        ("\u03c2", "\u03c3"),
    ),
    *(
        ("\u00e9", "e\u0301"),
        ("\ufb01n", "fin"),
        ("\u212b", "\u00c5"),
        ("\u212a", "K"),
        ("\u2460", "1"),
        ("\uff41", "a"),
    ),
    *(("x\u00b2", "x2"), ("\u00a0b", " b"), ("\u00e9", "e"), ("a\u200db", "ab"), ("a", "a ")),
    *(("a", "a."), ("a", "a\n"), ("a", "a\u00a0"), ("a0", "a00"), ("1", "01"), ("1", "1.0"), ("a+b", "a b")),
)
"""Pairs that are equal after folding case, after NFC, NFD or NFKC, without accents or blanks, as numbers."""


LONG_PART: Final = 200
LEVELS_SIZE: Final = 20
"""Levels are asked for only above a slash in the first letters of a key. The others are no different."""

UPLOAD_ROOM: Final = 100
"""An upload's key is this many bytes shorter: RGW appends the upload's id and cannot complete longer ones."""


class KeyClauses(StoreClauses):
    """The clauses on keys: they are checked, and never changed."""

    def test_keys_are_checked(self, run: Run, store: ObjectStore) -> None:
        """An invalid key raises `Misuse` from every call, before the call has any effect.

        A batch with one such key deletes nothing.
        """
        run(store.put("good", Body.of(b"good")))
        optional: Mapping[str, KeyCall] = {
            "the stored checksum": store.stored_crc32c,
            "the metadata": store.metadata_of,
            "the retention": store.retained,
        }

        for key in KEY.refused[Misuse]:
            self.all_calls_refuse(run, store, key, "good")
            for name, call in optional.items():
                with raises(Misuse, f"{name} of {key[:40]!r}"):
                    run(call(key))

        assert self.keys_in_store() == {"good"}

    def test_keys_are_taken_as_they_are(self, run: Run, store: ObjectStore) -> None:
        """No character of a key is special, escaped or folded, in writes, reads, listings and deletions.

        This holds for every way to store an object, and for levels, checksums and metadata. Keys that the
        store declares as refused are refused by every call.
        """
        placed = {f"{number:03}": key for number, key in enumerate(KEY.taken)}
        special = [f"{place}/{key}" for place, key in placed.items() if not refuses(store, f"{place}/{key}")]
        # Each has a neighbour that matches too if the store takes the key for a pattern.
        beside = {f"{key[:4]}{re.sub('[^A-Za-z/]+', 'x', key[4:])}" for key in special} - {*special}
        there = sorted({*special, *beside}, key=str.encode)

        async def write(key: str) -> None:
            # What lands under another key is listed there. So the last way alone is read: a put.
            for way in ways_of(store)[::-1] if key in special else ("put",):
                # RGW appends the upload's id to the key, and S3's limit of a file name holds for the two.
                if way != "upload" or len(key.encode()) < LONG_PART:
                    with naming(f"{key!r} by {way}"):
                        await store_by(way, store, key, f"{way}/{key}".encode())

        async def make_sure(key: str) -> None:
            with naming(f"a read of {key!r}"):
                assert await store.get(key) == f"put/{key}".encode()
                assert await store.stored_crc32c(key) in {None, crc32c(f"put/{key}".encode())}
                assert (
                    await store.metadata_of(key) in (None, {}) or store.capabilities.metadata_size_bytes_max
                )
                await store.retained(key)
            # Azurite lists nothing by a prefix that ends with the last byte of a longest part.
            begin = key if len(key.encode()) < LONG_PART else key[:-1]
            for prefix, after in ((begin, ""), (key[:4], key)):
                found = keys(await listed(store, prefix, after=after))
                wanted = [
                    each for each in there if each.startswith(prefix) and each.encode() > after.encode()
                ]
                make_sure_of_keys(found, wanted, f"a listing of {prefix!r} after {after!r}")
            if store.capabilities.atomic_create:
                with raises(AlreadyExists, f"a create of {key!r}, which exists"):
                    await store.create(key, b"again")

        run(in_turn(write, there))

        make_sure_of_keys(sorted(self.keys_in_store(), key=str.encode), there, "the keys that were put")
        make_sure_of_keys(keys(run(listed(store, awaiting=there))), there, "a listing of special keys")
        run(in_turn(make_sure, special))
        run(in_turn(partial(is_in_levels, store, there), special))
        for place, key in placed.items():
            if refuses(store, f"{place}/{key}"):
                self.all_calls_refuse(run, store, f"{place}/{key}", special[0])
        run(store.delete(special))
        make_sure_of_keys(sorted(self.keys_in_store()), sorted(beside), "what is left beside special keys")

    @pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
    def test_keys_are_refused_as_declared(self, run: Run, store: ObjectStore, key: str) -> None:
        """A key that the store declares as refused is `Misuse` from every call; every other key is taken."""
        if refuses(store, key):
            self.is_refused(run, store, key)
            return

        run(store.create(key, b"data"))

        assert self.keys_in_store() == {key}
        assert run(store.get(key)) == b"data"

    def all_calls_refuse(self, run: Run, store: ObjectStore, key: str, good: str) -> None:
        """Fail unless every call refuses this key. A deletion must refuse it also beside a valid key."""
        calls: Mapping[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "a put": lambda: store.put(key, Body.of(b"")),
            "a create": lambda: store.create(key, b""),
            "a read": lambda: store.get(key),
            "a deletion": lambda: store.delete([key]),
            "a deletion beside a valid key": lambda: store.delete([good, key]),
            "an upload": lambda: store.start_upload(key),
        }
        for name, call in calls.items():
            with raises(Misuse, f"{name} with {key[:40]!r}"):
                run(call())

    def is_refused(self, run: Run, store: ObjectStore, key: str) -> None:
        """Assert that every call refuses a key which the store declares as refused, and changes nothing."""
        run(store.put("a/b", Body.of(b"good")))
        self.all_calls_refuse(run, store, key, "a/b")
        assert self.keys_in_store() == {"a/b"}

    @pytest.mark.parametrize("letter", ["k", "é", "日", "\U0001f4be"])
    def test_keys_may_be_long(self, run: Run, store: ObjectStore, letter: str) -> None:
        """A key may have as many bytes as declared, in parts of at most 128 bytes; one byte more is `Misuse`.

        Every call takes such a key. Only uploads are tested with a key that is `UPLOAD_ROOM` bytes shorter.
        """
        most = min(self.key_size_bytes_max, store.capabilities.key_size_bytes_max)
        key, less = key_of(most, letter), key_of(most - 1, letter)
        shorter = key_of(max(most - UPLOAD_ROOM, 1), letter)
        if refuses(store, key):
            return

        for way in ways_of(store):
            for each in [shorter] if way == "upload" else [key, less]:
                try:
                    run(store_by(way, store, each, way.encode()))
                    found = run(store.get(each))
                    run(store.stored_crc32c(each))
                except OffloadError as error:
                    what = f"{way} with a key of {len(each.encode()):,} bytes"
                    pytest.fail(f"{what}: expected an object; found {error!r}")
                assert found == way.encode()
        run(store.delete([shorter]))
        there = sorted((key, less))
        make_sure_of_keys(keys(run(listed(store, awaiting=there))), there, "a listing of the longest keys")
        prefix = key[:-1]  # Azurite takes no prefix of 1,024 bytes
        wanted = [each for each in there if each.startswith(prefix)]
        rows = run(listed(store, prefix, awaiting=wanted))
        make_sure_of_keys(keys(rows), wanted, "a listing by all but the last letter of a longest key")
        rows = run(listed(store, after=there[0], awaiting=there[1:]))
        make_sure_of_keys(keys(rows), there[1:], "a listing after a longest key")
        run(store.delete([key, less]))
        assert self.keys_in_store() == set()
        self.is_refused(run, store, key_of(store.capabilities.key_size_bytes_max + 1, letter))

    def test_keys_that_look_alike_differ(self, run: Run, store: ObjectStore) -> None:
        """Keys that differ only in case, in Unicode form or at their end are two keys, in either order.

        So are keys that are the same number.
        """
        pairs = [pair for pair in ALIKE if not any(refuses(store, key) for key in pair)]
        there: dict[str, bytes] = {}

        async def both(place: str, pair: Sequence[str], *, by_put: bool) -> None:
            for key in (f"{place}/{each}" for each in pair):
                there[key] = key.encode()
                await (store.put(key, Body.of(there[key])) if by_put else store.create(key, there[key]))

        for key in (each for each in NUMERIC if not refuses(store, each)):
            there[key] = key.encode()
            run(store.create(key, there[key]))
        for number, pair in enumerate(pairs):
            run(both(f"{number}.created", pair, by_put=False))
            run(both(f"{number}.reversed", pair[::-1], by_put=False))
            run(both(f"{number}.put", pair, by_put=True))

        assert self.keys_in_store() == set(there)
        for key, data in there.items():
            assert run(store.get(key)) == data
        dropped = {f"{number}.put/{pair[0]}" for number, pair in enumerate(pairs)}
        run(store.delete([*dropped]))
        assert self.keys_in_store() == set(there) - dropped


async def is_in_levels(store: ObjectStore, there: Sequence[str], key: str) -> None:
    """Fail unless each level above a key names exactly the keys and folders that are directly below it."""
    for end in (number for number, letter in enumerate(key[:LEVELS_SIZE]) if letter == "/"):
        prefix = key[: end + 1]
        below = (each[len(prefix) :].partition("/") for each in there if each.startswith(prefix))
        wanted = sorted({prefix + part + slash for part, slash, _ in below}, key=str.encode)
        make_sure_of_keys(await level_like(store, prefix, wanted), wanted, f"the level {prefix!r}")


def key_of(size_bytes: int, letter: str = "k") -> str:
    """Return a key of this length in parts of at most 128 bytes. The last part is filled up with `k`."""
    width = len(letter.encode())
    part = letter * (120 // width) + "/"
    whole, rest = divmod(size_bytes - 1, len(part.encode()))
    return part * whole + letter * (rest // width) + "k" * (rest % width + 1)
