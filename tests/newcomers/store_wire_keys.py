"""Mistakes with keys on their way to a service and back, and with the check of keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote, unquote, unquote_plus

from newcomers import proofs
from newcomers.registry import bug
from newcomers.service import ServiceStore, ServiceUpload
from offload.contracts.store import Body, Listed, Span, Suffix, Upload, check_key
from offload.ground.errors import Misuse


@bug(proofs.key_round("run=2026-01-01T00:00:00+00:00/log"))
class PlusIsListedAsBlank(ServiceStore):
    """Keys of a listing are decoded as form fields, so that `+` becomes a blank.

    Breaks "Every object whose key begins with `prefix`": the key that is listed cannot be read.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            yield Listed(unquote_plus(quote(row.key, safe="/+")), row.size_bytes)


@bug(proofs.apart("a%2Fb", "a/b"))
class KeysAreDecodedOnceMore(ServiceStore):
    """A gateway decodes the path once more than the client encodes it: `%2F` in a key is a slash.

    Breaks "Keys are whole names": the stream `a/b`, escaped, shares objects with another key.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unquote(check_key(key)), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(unquote(check_key(key)), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unquote(check_key(key)), span)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([unquote(check_key(key)) for key in keys])


@bug(proofs.lists(["a\u2028b", "a\x85b", "ab"]))
class ListingIsSplitIntoLines(ServiceStore):
    """The reply of a listing has a line for each key, and `str.splitlines` also splits at U+2028, U+0085 and
    more.

    Breaks "Every object whose key begins with `prefix`": one key is listed as two that do not exist.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            for line in f"{row.key}".splitlines():
                yield Listed(line, row.size_bytes)


@bug(proofs.lists(["\uffee", "\U0001f600", "z"]))
class ListedInOrderOfUtf16(ServiceStore):
    """Keys are sorted as UTF-16, as Java and JavaScript sort strings: U+1F600 comes before U+FFEE.

    Breaks "Keys ascend by their UTF-8 bytes": a merge with another listing drops keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.encode("utf-16-be")):
            yield row


@bug(proofs.key_round("é" * 500 + "/" + "a" * 23))
class KeyOfMaximalLengthIsRefused(ServiceStore):
    """A key of exactly 1,024 bytes is refused: `>=` where `>` is meant.

    Breaks "Keys are non-empty strings of at most 1,024 bytes".
    """

    async def put(self, key: str, body: Body) -> None:
        if len(check_key(key).encode()) >= 1024:
            raise Misuse(f"{key[:40]!r} is too long")
        await super().put(key, body)


@bug(proofs.answers(Misuse, lambda store: store.delete(["a", "b/../c"]), before=["a", "b"]))
class DeletesBeforeItChecks(ServiceStore):
    """Keys are checked one by one as they are deleted, so that good keys before a bad one are gone.

    Breaks "A key that is no key raises `Misuse` and touches nothing".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await super().delete([key])


@bug(proofs.answers(Misuse, lambda store: store.start_upload("a//b")))
class UploadsCheckTheirKeyAtTheEnd(ServiceStore):
    """An upload begins under any key, and only `complete` finds an invalid one: gigabytes are sent in vain.

    Breaks "Keys are checked: a key that is no key raises `Misuse` and touches nothing".
    """

    async def start_upload(self, key: str) -> Upload:
        return ServiceUpload(self, key, await self.ask(self.service.begin, key))
