"""Errors: each for its cause, in words for a person; and whoever met one can go on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import pytest

from offload.errors import AlreadyExists, Misuse, NotFound, OffloadError
from offload.store.port import Body, ObjectStore, Span
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import DIGITS, StoreClauses, body_of, level, listed

PROVOKED: Final[
    dict[str, tuple[type[OffloadError], Callable[[ObjectStore], Coroutine[Any, Any, object]]]]
] = {
    "read what is absent": (NotFound, lambda store: store.get("absent")),
    "read a range of what is absent": (NotFound, lambda store: store.get("absent", Span(1, 2))),
    "create what is there": (AlreadyExists, lambda store: store.create("there", b"again")),
    "read no key": (Misuse, lambda store: store.get("a//b")),
    "put no key": (Misuse, lambda store: store.put("../out", Body.of(b""))),
    "create no key": (Misuse, lambda store: store.create("", b"")),
    "delete no key": (Misuse, lambda store: store.delete(["there", "/"])),
    "read a negative range": (Misuse, lambda store: store.get("there", Span(-1, 2))),
    "put less than was announced": (Misuse, lambda store: store.put("new", short_body())),
}
"""What can be provoked from outside, by name: the one error of the port that means it, and the call."""


class ErrorClauses(StoreClauses):
    """Of the port's clauses: absence is an error, keys are checked; seen from their errors."""

    @pytest.mark.parametrize("cause", PROVOKED)
    def test_errors_are_of_their_cause_alone(self, run: Run, store: ObjectStore, cause: str) -> None:
        """An error is of the class that means its cause and no other, in one line; and the client goes on."""
        kind, call = PROVOKED[cause]
        if kind is AlreadyExists and not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        run(store.put("there", Body.of(DIGITS)))

        for _ in range(2):
            with pytest.raises(OffloadError) as caught:
                run(call(store))
            others = {NotFound, AlreadyExists, Misuse} - {kind}
            assert [each for each in type(caught.value).__mro__ if each in (kind, *others)] == [kind]
            assert str(caught.value).strip()
            assert "\n" not in str(caught.value)

        assert run(store.get("there")) == DIGITS
        run(store.put("more", Body.of(b"")))
        assert self.keys_in_store() == {"there", "more"}

    @pytest.mark.parametrize("first", ["folder", "folder/key"])
    def test_a_key_beside_its_folder_is_kept_or_refused(
        self, run: Run, store: ObjectStore, first: str
    ) -> None:
        """Of `folder` and `folder/key` the second is stored too, or it is `Misuse` and the first stays.

        Nothing is asked of listings: MinIO on a single disk lists one of the two, and the framework writes no
        such pair.
        """
        [second] = {"folder", "folder/key"} - {first}
        run(store.put(first, Body.of(b"first")))

        writes: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            lambda: store.put(second, Body.of(b"second")),
            lambda: store.create(second, b"second"),
        )
        for write in writes:
            try:
                run(write())
            except Misuse:
                assert self.keys_in_store() == {first}
            else:
                assert run(store.get(second)) == b"second"
                run(store.delete([second]))
            assert run(store.get(first)) == b"first"

    def test_what_is_absent_has_no_checksum(self, run: Run, store: ObjectStore) -> None:
        """Of an object that is not there a stored checksum is None or `NotFound`, after a deletion too."""
        run(store.put("key", Body.of(DIGITS)))
        run(store.stored_crc32c("key"))
        run(store.delete(["key"]))

        for key in ("key", "never"):
            with suppress(NotFound):
                assert run(store.stored_crc32c(key)) is None

    @pytest.mark.parametrize("key", ["", "a//b", "../x", "nul\0"], ids=ascii)
    def test_a_checksum_is_asked_of_keys_alone(self, run: Run, store: ObjectStore, key: str) -> None:
        """The stored checksum of what is no key is `Misuse`."""
        with pytest.raises(Misuse):
            run(store.stored_crc32c(key))

    def test_retention_is_told_in_words(self, run: Run, store: ObjectStore) -> None:
        """What keeps the bytes of a deleted object is told in one line of words, or it is None."""
        run(store.put("key", Body.of(DIGITS)))

        told = run(store.retained("key"))

        assert told is None or (isinstance(told, str) and told.strip() and "\n" not in told)
        assert run(store.get("key")) == DIGITS
        run(store.delete(["key"]))
        for key in ("key", "never"):
            with suppress(NotFound):
                assert run(store.retained(key)) is None
        with pytest.raises(Misuse):
            run(store.retained("a//b"))

    def test_looking_at_nothing_is_no_error(self, run: Run, store: ObjectStore) -> None:
        """Whatever is asked of a prefix that nothing begins with, the answer is empty, and no error."""
        assert run(listed(store, "none/", after="none/x")) == []
        assert run(level(store, "none/")) == []
        assert [*run(unfinished(store, "none/"))] == []
        assert self.keys_in_store() == set()


async def unfinished(store: ObjectStore, prefix: str) -> list[str]:
    """The keys of unfinished uploads."""
    return [each.key for each in await store.unfinished_uploads(prefix)]


def short_body() -> Body:
    """A body that announces a byte more than it has."""
    return Body(size_bytes=len(DIGITS) + 1, windows=body_of(DIGITS).windows)
