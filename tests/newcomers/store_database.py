"""Mistakes with a database in a file."""

from __future__ import annotations

from newcomers import proofs
from newcomers.registry import bug
from newcomers.sound import Sqlite
from offload.contracts.store import Body, Span, Suffix, check_key
from offload.store.multipart import whole


@bug(proofs.keeps(2, 5))
class TextLooksLikeText(Sqlite):
    """Bytes that are valid UTF-8 are stored as text, for which SQLite counts characters and stops at a zero.

    Breaks "Store an object whole": `length` and `substr` of text are not those of bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await whole(body)
        try:
            stored: bytes | str = data.decode()
        except UnicodeDecodeError:
            stored = data
        row = (check_key(key).encode(), stored)
        await self.write(lambda db: db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", row))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data: bytes | str = await super().get(key, span)
        return data.encode() if isinstance(data, str) else data
