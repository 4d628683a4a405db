"""Errors: each has one cause and one line of text, and the client works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import product
from typing import Any, Final

import pytest

from offload.contracts.store import Body, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OffloadError, OutcomeUnknown, TryAgain
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    DIGITS,
    StoreClauses,
    body_of,
    keys,
    level,
    listed,
    make_sure_of_keys,
)

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
    "put more than was announced": (Misuse, lambda store: store.put("new", long_body())),
    "upload no key": (Misuse, lambda store: store.start_upload("a/")),
    "look up the checksum of no key": (Misuse, lambda store: store.stored_crc32c("a/..")),
    "look up the metadata of no key": (Misuse, lambda store: store.metadata_of(".a")),
    "read a negative end": (Misuse, lambda store: store.get("there", Suffix(-1))),
    "read below an object": (NotFound, lambda store: store.get("there/below")),
    "read the end of what is absent": (NotFound, lambda store: store.get("absent", Suffix(2))),
}
"""Errors that a caller can provoke, by name: the one class of the port that fits, and the call."""


UNREACHABLE: Final[dict[str, tuple[bool, Callable[[ObjectStore], Coroutine[Any, Any, object]]]]] = {
    "put": (True, lambda store: store.put("key", Body.of(DIGITS))),
    "create": (True, lambda store: store.create("key", DIGITS)),
    "delete": (True, lambda store: store.delete(["key"])),
    "upload": (True, lambda store: upload_of_one_part(store)),
    "get": (False, lambda store: store.get("key")),
    "get a range": (False, lambda store: store.get("key", Span(1, 0))),
    "get the end": (False, lambda store: store.get("key", Suffix(3))),
    "list": (False, lambda store: listed(store)),
    "level": (False, lambda store: level(store, "")),
    "stored_crc32c": (False, lambda store: store.stored_crc32c("key")),
    "metadata_of": (False, lambda store: store.metadata_of("key")),
    "retained": (False, lambda store: store.retained("key")),
    "unfinished_uploads": (False, lambda store: unfinished(store, "")),
}
"""Every method of a store: True if it changes something, and a call of it."""

OPTIONAL: Final = ("stored_crc32c", "metadata_of", "retained", "unfinished_uploads")
"""Methods that need not ask the server, because they are allowed to know nothing."""


class ErrorClauses(StoreClauses):
    """The clauses on errors: their classes, their texts, and the calls that follow them."""

    @pytest.mark.parametrize("cause", PROVOKED)
    def test_errors_are_of_their_cause_alone(self, run: Run, store: ObjectStore, cause: str) -> None:
        """An error has the one class that means its cause and one line of text; the client keeps working."""
        kind, call = PROVOKED[cause]
        if kind is AlreadyExists and not store.capabilities.atomic_create:
            self.holds_no_tier(run, store)
            return
        run(store.put("there", Body.of(DIGITS)))

        for _ in range(2):
            with raises(OffloadError, cause) as caught:
                run(call(store))
            others = {NotFound, AlreadyExists, Misuse} - {kind}
            assert [each for each in type(caught.value).__mro__ if each in (kind, *others)] == [kind]
            assert str(caught.value).strip()
            assert "\n" not in str(caught.value)

        assert run(store.get("there")) == DIGITS
        run(store.put("more", Body.of(b"")))
        assert self.keys_in_store() == {"there", "more"}

    @pytest.mark.parametrize("name", UNREACHABLE)
    def test_an_unreachable_server_is_no_answer(
        self, run: Run, name: str, note: Callable[[str], None]
    ) -> None:
        """Without its server, every call raises `TryAgain`, or possibly `OutcomeUnknown` if it writes."""
        is_change, call = UNREACHABLE[name]
        if (found := run(unreachable(self.open_unreachable, call))) is None:
            note("the store has no server, or the URL and the options do not say where it is")
            return

        wanted = (TryAgain, OutcomeUnknown) if is_change else (TryAgain,)
        if not isinstance(found, wanted) and not (name in OPTIONAL and found == "no error"):
            names = " or ".join(each.__name__ for each in wanted)
            pytest.fail(f"{name} without a server: expected {names}; found {found!r}")

    @pytest.mark.parametrize("first", ["folder", "folder/key"])
    def test_a_key_beside_its_folder_is_kept_or_refused(
        self, run: Run, store: ObjectStore, first: str
    ) -> None:
        """A key and a folder of the same name are both stored, or the second is `Misuse` and the first stays.

        MinIO on a single disk lists only one of the two, and the framework writes no such pair. So listings
        are tested in one point only: if a listing shows both, a level names both.
        """
        [second] = {"folder", "folder/key"} - {first}
        run(store.put(first, Body.of(b"first")))

        writes: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            lambda: store.put(second, Body.of(b"second")),
            lambda: store.create(second, b"second"),
            *([lambda: upload_or_refusal(store, second, b"second")] if store.capabilities.multipart else []),
        )
        for write in writes:
            try:
                run(write())
            except Misuse:
                assert self.keys_in_store() == {first}
            else:
                assert run(store.get(second)) == b"second"
                if keys(run(listed(store))) == ["folder", "folder/key"]:
                    found = run(level(store, ""))
                    make_sure_of_keys(found, ["folder", "folder/"], "the level of a key and its folder")
                run(store.delete([second]))
            assert run(store.get(first)) == b"first"

    def test_what_is_absent_has_no_checksum(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The stored checksum of an absent object is None or `NotFound`, also after a deletion.

        An object that is stored later has its own checksum, although a client looked for it before.
        """
        run(store.put("key", Body.of(DIGITS)))
        for client in (store, other):
            run(client.stored_crc32c("key"))
        run(store.delete(["key"]))

        for client, key in product((store, other), ("key", "never", "later", "key/below", "none/key")):
            with suppress(NotFound):
                assert run(client.stored_crc32c(key)) is None
        run(store.put("later", Body.of(DIGITS)))
        for client in (store, other):
            assert run(client.stored_crc32c("later")) in {None, crc32c(DIGITS)}

    def test_retention_is_told_in_words(self, run: Run, store: ObjectStore) -> None:
        """`retained` returns None, or one line of text that says what keeps the bytes of a deleted object."""
        run(store.put("key", Body.of(DIGITS)))

        answer = run(store.retained("key"))

        assert answer is None or (isinstance(answer, str) and answer.strip() and "\n" not in answer)
        assert run(store.get("key")) == DIGITS
        run(store.delete(["key"]))
        for key in ("key", "never"):
            with suppress(NotFound):
                assert run(store.retained(key)) is None

    def test_looking_at_nothing_is_no_error(self, run: Run, store: ObjectStore) -> None:
        """Listings, levels and unfinished uploads below a prefix without keys are empty, and no error."""
        assert run(listed(store, "none/", after="none/x")) == []
        assert run(level(store, "none/")) == []
        assert [*run(unfinished(store, "none/"))] == []
        assert self.keys_in_store() == set()


async def unfinished(store: ObjectStore, prefix: str) -> list[str]:
    """Return the keys of unfinished uploads."""
    return [each.key for each in await store.unfinished_uploads(prefix)]


def short_body() -> Body:
    """Return a body that announces one byte more than it has."""
    return Body(size_bytes=len(DIGITS) + 1, windows=body_of(DIGITS).windows)


def long_body() -> Body:
    """Return a body that announces one byte less than it has."""
    return Body(size_bytes=len(DIGITS) - 1, windows=body_of(DIGITS).windows)


async def unreachable(
    open_store: Callable[[], ObjectStore | None], call: Callable[[ObjectStore], Coroutine[Any, Any, object]]
) -> Exception | str | None:
    """Return what a call raises, or "no error"; None if there is no server.

    Opening the store may also raise.
    """
    try:
        if (store := open_store()) is None:
            return None
        try:
            await call(store)
        finally:
            await store.aclose()
    except Exception as error:  # noqa: BLE001 - the clause is about errors of wrong classes
        return error
    return "no error"


async def upload_or_refusal(store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object by an upload, which is aborted if the store refuses any of its calls."""
    upload = await store.start_upload(key)
    try:
        await upload.put_part(1, data)
        await upload.complete()
    except OffloadError:
        await upload.abort()
        raise


async def upload_of_one_part(store: ObjectStore) -> None:
    """Start an upload and put a part.

    A store without uploads has no request to send, so this raises `TryAgain`.
    """
    if not store.capabilities.multipart:
        raise TryAgain("the store has no uploads")
    upload = await store.start_upload("key")
    await upload.put_part(1, DIGITS)
