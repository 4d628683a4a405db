"""Keys: checked before anything happens, and taken exactly as they are."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from offload.errors import Misuse
from offload.store.port import Body, ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import StoreClauses, keys, listed, refuses

NO_KEYS: Final = (
    "",
    "/",
    "/abs",
    "a/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.hidden",
    "nul\0",
    "k" * 1025,
    "é" * 513,
)

ODD_KEYS: Final = ("a\\b", "\\", "a.", "a./b", "a/b...", "a:b", "con", "a ", "\ue000", "\uffee", "\U0001f4be")
"""Keys that some store takes for others, or cannot hold: by a system's file names, or by UTF-16."""


class KeyClauses(StoreClauses):
    """Of the port's clauses: keys are checked."""

    @pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: ascii(key[:12]))
    def test_keys_are_checked(self, run: Run, store: ObjectStore, key: str) -> None:
        """What is no key raises `Misuse` from every call, before anything is touched.

        A batch with one such key deletes nothing.
        """
        run(store.put("good", Body.of(b"good")))

        calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: store.put(key, Body.of(b"")),
            lambda: store.create(key, b""),
            lambda: store.get(key),
            lambda: store.delete([key]),
            lambda: store.delete(["good", key]),
            lambda: store.start_upload(key),
        )
        for call in calls:
            with pytest.raises(Misuse):
                run(call())

        assert self.keys_in_store() == {"good"}

    @pytest.mark.parametrize(
        "key", ["a b", "a%2Fb", "100%", "~", "a\\b", "*", "?x", "a+b", "é/日本", "x" * 200]
    )
    def test_keys_are_taken_as_they_are(self, run: Run, store: ObjectStore, key: str) -> None:
        """No character of a key is special, escaped or folded."""
        if refuses(store, key):
            self.is_refused(run, store, key)
            return

        run(store.put(key, Body.of(b"data")))

        assert self.keys_in_store() == {key}
        assert keys(run(listed(store, awaiting=[key]))) == [key]
        assert run(store.get(key)) == b"data"

    @pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
    def test_keys_are_refused_as_declared(self, run: Run, store: ObjectStore, key: str) -> None:
        """A key is `Misuse` from every call where the store declares so, and taken everywhere else."""
        if refuses(store, key):
            self.is_refused(run, store, key)
            return

        run(store.create(key, b"data"))

        assert self.keys_in_store() == {key}
        assert run(store.get(key)) == b"data"

    def is_refused(self, run: Run, store: ObjectStore, key: str) -> None:
        """Assert what follows where a store declares that it cannot hold a key."""
        run(store.put("a/b", Body.of(b"good")))
        calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
            lambda: store.put(key, Body.of(b"")),
            lambda: store.create(key, b""),
            lambda: store.get(key),
            lambda: store.delete(["a/b", key]),
            lambda: store.start_upload(key),
        )
        for call in calls:
            with pytest.raises(Misuse):
                run(call())
        assert self.keys_in_store() == {"a/b"}

    def test_keys_may_be_long(self, run: Run, store: ObjectStore) -> None:
        """A key may have as many bytes as declared, in parts of at most 128; one more is `Misuse`."""
        key = key_of(min(self.key_size_bytes_max, store.capabilities.key_size_bytes_max))

        run(store.create(key, b"data"))

        assert run(store.get(key)) == b"data"
        assert keys(run(listed(store, awaiting=[key]))) == [key]
        run(store.delete([key]))
        self.is_refused(run, store, key_of(store.capabilities.key_size_bytes_max + 1))

    def test_keys_that_look_alike_differ(self, run: Run, store: ObjectStore) -> None:
        """Upper and lower case, and the forms in which Unicode writes one letter, make different keys."""
        alike = ["key", "Key", "KEY", *(unicodedata.normalize(form, "k\u00e9y") for form in ("NFC", "NFD"))]
        there = [key for key in alike if not refuses(store, key)]
        for key in there:
            run(store.create(key, key.encode()))

        assert self.keys_in_store() == set(there)
        for key in there:
            assert run(store.get(key)) == key.encode()


def key_of(size_bytes: int) -> str:
    """Return a key of this length, whose parts have at most 128 bytes."""
    return (("k" * 127 + "/") * size_bytes)[: size_bytes - 1] + "k"
