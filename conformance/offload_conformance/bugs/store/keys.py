"""Bugs of keys: two keys that become one, and keys that are refused without a declaration."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote, unquote_plus

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Listed, Span, Suffix, Upload, check_key
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import apart, raises
from offload_conformance.bugs.sound.proofs import names as keys
from offload_conformance.bugs.sound.service import ServiceStore
from offload_conformance.bugs.sound.views import keeps_keys, listed
from offload_conformance.bugs.sound.wrappers import KEY_MAX, Gateway


@bug("store/keys_are_checked")
class ChecksOnlyPuts(MemoryStore):
    """Takes any key for an upload in parts.

    Only the methods that were written first have the check.
    """

    async def start_upload(self, key: str) -> Upload:
        return await super().start_upload("key")


@bug("store/keys_are_checked")
class LeavesTheRoot(MemoryStore):
    """Normalizes a key with dots as a path.

    `root / key` over a file system: `../x` is outside the store.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(posixpath.normpath(key) if ".." in key else key, body)


@bug("store/keys_are_taken_as_they_are")
class DecodesTwice(MemoryStore):
    """Decodes a key once more than it was encoded.

    `encoding-type=url` in a listing, decoded by the SDK and then again; `a%2Fb` becomes `a/b`.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unquote(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unquote(key), span)


@bug("store/keys_are_taken_as_they_are")
class ReadsPlusAsSpace(MemoryStore):
    """Takes `+` for a space.

    `unquote_plus` is applied to a path, but its rule is for forms only.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unquote_plus(key) if "+" in key else key, body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unquote_plus(key) if "+" in key else key, span)


@bug("store/keys_that_look_alike_differ")
class FoldsCase(MemoryStore):
    """Does not distinguish upper and lower case.

    The file systems of Windows and macOS; a database column with a collation.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key.casefold(), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key.casefold(), span)


@bug("store/keys_that_look_alike_differ")
class NormalizesUnicode(MemoryStore):
    """Does not distinguish the Unicode forms of a letter.

    HFS+ does, and several gateways that pass through a file system.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(unicodedata.normalize("NFC", key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unicodedata.normalize("NFC", key), span)


@bug("store/keys_may_be_long")
class CutsLongKeys(MemoryStore):
    """Keeps the first 255 characters of a key.

    `VARCHAR(255)` on a server that cuts instead of refusing; the limit of a file's name for the whole key.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key[:255].rstrip("/"), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key[:255].rstrip("/"), span)


@bug("store/keys_may_be_long")
class CutsWhatItDeclaresTooLong(MemoryStore):
    """Declares that keys have at most 511 bytes, and cuts longer ones.

    The width of a column is declared, and nothing checks it.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, key_size_bytes_max=511)

    async def put(self, key: str, body: Body) -> None:
        await super().put(key[:511], body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key[:511], data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key[:511], span)


@bug("store/keys_are_refused_as_declared")
class DropsDotsAtTheEnd(MemoryStore):
    """Removes dots at the end of a key, so that two keys become one.

    Azure and Windows do this.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key.rstrip("."), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key.rstrip("."), span)


@bug("store/keys_are_refused_as_declared")
class RefusesUndeclared(MemoryStore):
    """Refuses a key that its server cannot hold, and does not declare it.

    The first user with such a key notices it.
    """

    async def create(self, key: str, data: bytes) -> None:
        if "\\" in key:
            raise Misuse(f"{key!r} has a backslash")
        await super().create(key, data)


@bug("store/keys_are_refused_as_declared")
class DeclaresAndTakes(MemoryStore):
    """Declares that it cannot hold some keys, and accepts them.

    A rule of an older server was kept in the declaration alone.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, keys_refused=r"\\")


@bug("store/keys_are_refused_as_declared")
class RefusesInOneCallOnly(MemoryStore):
    """Refuses a key in a put, and not at the beginning of an upload.

    Only one of the ways to write has the check.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, keys_refused=":")

    @staticmethod
    def check(key: str) -> None:
        """Check the rule of this store."""
        if ":" in check_key(key):
            raise Misuse(f"{key!r} has a colon")

    async def put(self, key: str, body: Body) -> None:
        self.check(key)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        self.check(key)
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.check(key)
        return await super().get(key, span)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.check(key)
        await super().delete(keys)


@bug("store/keys_are_checked")
class LooksUpAnything(MemoryStore):
    """Requests the checksum of any key, valid or not.

    The check of the key was forgotten in this one method.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return None


class _Renames(MemoryStore):
    """Replaces a key by another one, in every call."""

    @staticmethod
    def name(key: str) -> str:
        """Return the replacement of a key."""
        return key

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.name(check_key(key)), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.name(check_key(key)), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(self.name(check_key(key)), span)
        except NotFound as error:
            raise NotFound(key) from error

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.name(check_key(key)) for key in keys])


@bug("store/keys_are_taken_as_they_are")
class CutsAtTheHash(_Renames):
    """Cuts a key at its `#`.

    A URL is built as text without `quote`, so the rest is a URL fragment, which is never sent.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.partition("#")[0] or key


@bug("store/keys_are_taken_as_they_are")
class MendsLineEnds(_Renames):
    """Changes CR to LF.

    XML does this unless it is written as `&#13;`, in listings and in DeleteObjects.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.replace("\r\n", "\n").replace("\r", "\n")


@bug("store/keys_are_taken_as_they_are")
class DeletesByPattern(MemoryStore):
    """Treats a key with `*` as a pattern when it deletes.

    `glob`, or Redis' `KEYS`, is applied to a key of the caller.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await super().delete(
            [each for each in self.objects for key in keys if fnmatchcase(each, key) or each == key]
        )


@bug("store/keys_that_look_alike_differ")
class FoldsByCompatibility(_Renames):
    """Does not distinguish letters that are equal under NFKC.

    Identifiers of several databases and search engines work like this; `ﬁ` and `fi` are then one key.
    """

    @staticmethod
    def name(key: str) -> str:
        return unicodedata.normalize("NFKC", key) if unicodedata.is_normalized("NFC", key) else key


@bug("store/keys_that_look_alike_differ")
class DropsBlanksAtTheEnd(_Renames):
    """Removes blanks at the end of a key.

    `CHAR` columns, and comparisons with `PAD SPACE`, which is the default in MySQL.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.rstrip(" ")


@bug("store/keys_may_be_long")
class NamesPartsBehindTheKey(MemoryStore):
    """Refuses an upload if its key leaves no room for the checksum of a part after it.

    Parts are separate objects, named `KEY.SHA512`, until they are composed.
    """

    async def start_upload(self, key: str) -> Upload:
        check_key(f"{check_key(key)}.{'0' * 128}")
        return await super().start_upload(key)


@bug("store/keys_are_checked")
class AsksForAnyKey(MemoryStore):
    """Asks for the metadata of a key without checking it.

    A key with `..` then reads beside the store's folder.
    """

    async def metadata_of(self, key: str) -> dict[str, str]:
        if key not in self.objects:
            raise NotFound(key, store=self.url)
        return await super().metadata_of(key)


@bug("store/keys_are_taken_as_they_are")
class PartsHave200Bytes(MemoryStore):
    """Refuses a key that has a part of more than 200 bytes, and does not declare it.

    A part is a file name with an end of the store's own, or a column of a table.
    """

    async def put(self, key: str, body: Body) -> None:
        if any(len(part.encode()) > 200 for part in check_key(key).split("/")):
            raise Misuse(f"{key[:40]!r}… is too long")
        await super().put(key, body)


@bug("store/keys_are_taken_as_they_are")
class ReadsMarkersAsForms(MemoryStore):
    """Reads a `+` in the marker of a listing as a space.

    The marker travels in a URL, and is decoded as a form is.
    """

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return super().list(prefix, after=after.replace("+", " "))


@bug("store/keys_are_taken_as_they_are")
class QuotesKeysOfUploads(MemoryStore):
    """Stores an upload under its key as a URL has it.

    The key is quoted for the request that begins an upload, and the reply is taken as it is.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_key(key)
        return await super().start_upload(quote(key, safe="/"), metadata=metadata)


@bug("store/keys_are_taken_as_they_are")
class HasFewFolders(MemoryStore):
    """Refuses a key with more than 32 parts, and does not declare it.

    A limit of nesting of the service, such as that of documents.
    """

    async def put(self, key: str, body: Body) -> None:
        if check_key(key).count("/") > 32:
            raise Misuse(f"{key[:40]!r} has too many parts")
        await super().put(key, body)


@bug("store/keys_are_refused_as_declared")
class RefusesMore(MemoryStore):
    """Refuses keys with a colon, and declares nothing.

    A rule of Windows, on a server that runs there.
    """

    async def create(self, key: str, data: bytes) -> None:
        if ":" in check_key(key):
            raise Misuse(f"{key!r} has a colon")
        await super().create(key, data)


@bug("store/keys_that_look_alike_differ")
class TakesKeysForNumbers(MemoryStore):
    """Refuses to create `7` beside `007`.

    SQLite takes a column of the type `STRING` for one of numbers.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key.isdigit() and any(int(each) == int(key) for each in self.objects if each.isdigit()):
            raise AlreadyExists(key)
        await super().create(key, data)


async def shows_delete_checks_as_it_goes(open_: OpenClient) -> None:
    store = open_()
    await store.put("a", Body.of(b"1"))
    await raises(Misuse, store.delete(["a", "../b"]))
    assert await keys(store) == ["a"]


@bug("store/keys_are_checked", shows_delete_checks_as_it_goes)
class DeleteChecksAsItGoes(SharedMemory):
    """`delete` checks each key just before it removes it, so valid keys before an invalid one are deleted.

    Breaks "A key that is no key raises `Misuse` and touches nothing."
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await super().delete([key])


@bug(
    "store/keys_are_taken_as_they_are", keeps_keys("p/a\x0bb", "p/a\u2028b", "p/a\x85b", "p/a\x1cb", "p/a b")
)
class ListIsLines(SharedMemory):
    """A page is a text with a key on each line, and `str.splitlines` takes more characters for the end of
    one.

    Breaks "Yield every object". Costs keys with U+0085 or U+2028: a listing has two others for each.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        text = "\n".join(f"{row.key}\t{row.size_bytes}" for row in rows)
        for line in text.splitlines():
            key, _, size = line.partition("\t")
            yield Listed(key, int(size or 0))


async def _beside_a_described_one(open_: OpenClient) -> None:
    store = open_()
    await store.put("p/k.meta", Body.of(b"mine"))
    await store.put("p/k", Body.of(b"x", metadata={"kind": "data"}))
    assert await store.get("p/k.meta") == b"mine"
    assert await listed(store) == ["p/k", "p/k.meta"]


@bug("store/keys_are_taken_as_they_are", _beside_a_described_one)
class SidecarIsAnObject(SharedMemory):
    """The metadata of an object is a file of its name and `.meta`, which listings leave out.

    Breaks "Keys are whole names". Costs the object of that name: it is overwritten, and not listed.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if body.metadata:
            await super().put(f"{key}.meta", Body.of(repr(dict(body.metadata)).encode()))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            if not row.key.endswith(".meta"):
                yield row


class Renames(SharedMemory):
    """A base class without a mistake: a store that writes a key under another name."""

    def stored(self, key: str) -> str:
        return check_key(key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.stored(key), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.stored(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.stored(key), span)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        return await super().metadata_of(self.stored(key))

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.stored(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.stored(key), metadata=metadata)


@bug("store/keys_are_taken_as_they_are", apart("a;v=1/b", "a/b"))
class PathParameters(Renames):
    """The web server drops what follows a semicolon in a part of a path.

    Breaks "Keys are whole names". Costs the object whose name differs only by that.
    """

    def stored(self, key: str) -> str:
        parts = check_key(key).split("/")
        return "/".join(part[0] + part[1:].partition(";")[0] for part in parts)


async def _limit_is_in_bytes(open_: OpenClient) -> None:
    await raises(Misuse, open_().put("/".join(["ü" * 60] * 5), Body.of(b"x")))


@bug("store/keys_may_be_long", _limit_is_in_bytes)
class LimitInCharacters(Gateway):
    """The declared limit of 512 bytes is compared with the number of characters.

    Breaks "The longest key in UTF-8. A longer one is `Misuse`". Costs a caller that trusts the limit: the
    gateway behind this one refuses the key.
    """

    def is_too_long(self, key: str) -> bool:
        return len(key) > KEY_MAX


async def _refused_anywhere(open_: OpenClient) -> None:
    await raises(Misuse, open_().put("a/b:c", Body.of(b"x")))


@bug("store/keys_are_refused_as_declared", _refused_anywhere)
class RefusedAtTheStart(Gateway):
    """The declared pattern is compared with the beginning of a key only.

    Breaks "A key in which it matches is `Misuse`". Costs a caller the error: the name means a drive or a
    stream to the file system behind the gateway.
    """

    def is_refused(self, key: str) -> bool:
        return key[0] in ":\\"


@bug("store/keys_may_be_long", proofs.key_round(("é" * 100 + "/") * 5 + "a" * 19))
class KeyOfMaximalLengthIsRefused(ServiceStore):
    """A key of exactly 1,024 bytes is refused: `>=` where `>` is meant.

    Breaks "Keys are non-empty strings of at most 1,024 bytes".
    """

    async def put(self, key: str, body: Body) -> None:
        if len(check_key(key).encode()) >= 1024:
            raise Misuse(f"{key[:40]!r} is too long")
        await super().put(key, body)
