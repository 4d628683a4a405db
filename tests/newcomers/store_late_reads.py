"""Mistakes in reading, listing and keys, of the second set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from newcomers.proofs import names as keys
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, Listed, Span, Suffix, Upload
from offload.store.spans import clip


async def shows_last_nothing_is_all(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"123"))
    assert await store.get("a", Suffix(0)) == b""


@bug(shows_last_nothing_is_all)
class LastNothingIsAll(SharedMemory):
    """`Suffix(0)` becomes `data[-0:]`, which is everything.

    Breaks "The last `length` bytes of an object".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Suffix) and span.length == 0:
            span = None
        return await super().get(key, span)


async def shows_remembered_size(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("a", Body.of(b"1"))
    await two.get("a", Span(0, 9))
    await one.put("a", Body.of(b"12"))
    assert await two.get("a", Span(0, 9)) == b"12"


@bug(shows_remembered_size)
class RememberedSize(SharedMemory):
    """A client remembers the size of each object to clip spans. After another client replaces the object, the
    old end still clips them.

    Breaks "clipped at the object's end". s3fs-fuse issue 1852.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._sizes = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        size = self._sizes.setdefault(key, len(data))
        if span is None:
            return data
        start, end = clip(span, min(size, len(data)))
        return data[start:end]

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self._sizes.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self._sizes.pop(key, None)


async def shows_empty_page_ends(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("a")
    for n in range(100):
        await upload.put_part(n + 1, b"1")
    await store.put("b", Body.of(b""))
    assert await keys(store) == ["b"]


@bug(shows_empty_page_ends)
class EmptyPageEnds(SharedMemory):
    """Parts of uploads are stored beside the objects as `<key>/.part.N`. Each page leaves them out, and an
    empty page ends the listing.

    Breaks "Every object". An upload of 100 parts hides what follows.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        self.kept[upload._id] = upload
        return upload

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [(row.key, row) async for row in super().list(prefix, after=after)]
        for upload in self._unfinished.values():
            hidden = [(f"{upload.key}/.part.{n:05}", None) for n in upload._parts]
            rows += [row for row in hidden if row[0].startswith(prefix) and row[0] > after]
        rows.sort(key=lambda row: row[0])
        for start in range(0, len(rows), 50):
            page = [row for _, row in rows[start : start + 50] if row is not None]
            if not page:
                return
            for row in page:
                yield row
