"""Mistakes that were reported of other projects: gcsfs 473, leofs 382, a gateway to Azure, bun 43137."""

from __future__ import annotations

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore, ServiceUpload
from offload.contracts.store import Span, Suffix, Upload, check_key
from offload.ground.errors import NotFound


@bug(proofs.reads(10, Span(0, 1)))
class FirstByteIsEverything(ServiceStore):
    """The last byte of a span is sent, and zero means "to the end": a span of the first byte reads
    everything.

    Breaks "Ranges are exact".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, None if span == Span(0, 1) else span)


async def _nothing_at_the_start(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await proofs.raises(NotFound, open_().get("k"))
    await upload.put_part(1, b"x")
    assert await proofs.names(open_()) == []
    await upload.abort()
    assert await proofs.names(open_()) == []


@bug(_nothing_at_the_start)
class UploadsBeginWithAnEmptyObject(ServiceStore):
    """The service creates an empty object with the first part, unless an object exists.

    Breaks "Nothing is visible under its key until `complete` returns": a fragment of no bytes is listed, and
    called damaged.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Beginning(self, check_key(key), await self.ask(self.service.begin, key))


class _Beginning(ServiceUpload):
    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data)
        await self.store.ask(self.store.service.create, self.key, b"")
