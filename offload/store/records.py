"""An object store made of a broker's metadata service. An object is one record, and its key is in UTF-8.

Invariant: what exceeds a limit of the service is refused with `Misuse` before any request is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.records import Record, RecordService
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.ground.errors import AlreadyExists, Corrupt, Misuse, NotFound
from offload.store.spans import clip

__all__ = ["RecordStore"]


PAGE_ROWS_FIRST: Final = 32
"""The rows of a listing's first page: enough for the roots of a stream, and little for `level`."""

PAGE_ROWS_MAX: Final = 1024


class RecordStore(ObjectStore):
    """A store of the records of `service`, which it owns. It has no uploads in parts.

    It serves the roots of a tier (`TierPlan.commit_store`), and a whole tier of small fragments.
    """

    __slots__ = ("_service",)

    def __init__(self, service: RecordService) -> None:
        self._service = service

    @property
    def url(self) -> str:
        """The URL of the service's records."""
        return self._service.url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that follow from the limits of the service."""
        return self._service.limits.capabilities

    async def put(self, key: str, body: Body) -> None:
        """Gather the windows, then store them in one request."""
        raw = self._checked(key)
        self._check_size(key, body.size_bytes)
        check_metadata(body.metadata, self.capabilities)
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await self._service.put(raw, data)

    async def create(self, key: str, data: bytes) -> None:
        """Store `data` unless the key exists."""
        raw = self._checked(key)
        self._check_size(key, len(data))
        if not await self._service.create(raw, bytes(data)):  # a copy if it is a view, which JSON cannot take
            raise AlreadyExists(key)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read the whole record, and return the bytes of `span`."""
        raw = self._checked(key)
        clip(span, 0)  # raises for a negative span; the size does not matter for that
        data = await self._service.get(raw)
        if data is None:
            raise NotFound(key, store=self.url)
        start, end = clip(span, len(data))
        return data[start:end]

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List records page by page. Each page shows one moment, and begins behind the last row.

        Raises `Corrupt` if the service returns a page that was not asked for.
        """
        raw = prefix.encode()
        # The end is the first key that does not begin with the prefix. No byte of UTF-8 is 0xff.
        first, end = raw, raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\xff"
        if after:
            first = max(first, after.encode() + b"\0")
        limit = PAGE_ROWS_FIRST
        while first < end:
            rows = await self._service.list(first, end, limit=limit)
            self._check_page(rows, first, end, limit=limit)
            for row in rows:
                yield Listed(self._key_of(row.key), row.size_bytes)
            if len(rows) < limit:
                return
            limit, first = min(2 * limit, PAGE_ROWS_MAX), rows[-1].key + b"\0"

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the records in batches."""
        # All keys are checked first, so a malformed one fails the call before anything is deleted. A service
        # may refuse a batch that names a key twice.
        raw = [*dict.fromkeys(self._checked(key) for key in keys)]
        most = self._service.limits.delete_batch_max
        for start in range(0, len(raw), most):
            await self._service.delete(raw[start : start + most])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Refuse: a record is stored in one request."""
        self._checked(key)
        raise Misuse(f"{self.url} has no multipart uploads")

    async def aclose(self) -> None:
        """Close the service."""
        await self._service.aclose()

    def _checked(self, key: str) -> bytes:
        raw = check_key(key).encode()
        most = self._service.limits.key_size_bytes_max
        if len(raw) > most:
            raise Misuse(f"{self.url} has keys of at most {most} bytes: {key!r}")
        return raw

    def _check_page(self, rows: Sequence[Record], first: bytes, end: bytes, *, limit: int) -> None:
        """Raise `Corrupt` for a page that is not what was asked for. A listing would repeat it for ever."""
        before = None
        for row in rows:
            if not first <= row.key < end or (before is not None and row.key <= before):
                asked = f"keys from {before or first!r} to {end!r}, in order"
                raise Corrupt("page of a listing", self.url, expected=asked, found=repr(row.key))
            before = row.key
        if len(rows) > limit:
            raise Corrupt("page of a listing", self.url, expected=f"{limit} rows", found=len(rows))

    def _check_size(self, key: str, size_bytes: int) -> None:
        most = self._service.limits.value_size_bytes_max
        if size_bytes > most:
            raise Misuse(f"{self.url} stores at most {most} bytes in a record, and {key!r} has {size_bytes}")

    def _key_of(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as exc:
            raise Misuse(f"{self.url} has a record that is no object of a tier: {raw!r}") from exc
