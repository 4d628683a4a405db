"""Mistakes in reading: ranges, caches, and objects that are replaced meanwhile."""

from __future__ import annotations

from newcomers import proofs
from newcomers.registry import bug
from newcomers.service import ServiceStore
from offload.contracts.store import Span, Suffix, check_key
from offload.ground.errors import NotFound
from offload.store.spans import clip


@bug(proofs.reads(10, Suffix(11)))
class SuffixLongerThanTheObjectIsEmpty(ServiceStore):
    """The service refuses a suffix longer than the object, and the client treats that as beyond the end.

    Breaks "The last `length` bytes of an object, or all of it": a small fragment's tail cannot be found.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return b"" if isinstance(span, Suffix) and len(data) < span.length else data


@bug(proofs.whole_while_replaced(400, 100, span=Suffix(64)))
class SuffixIsTwoRequests(ServiceStore):
    """A suffix is read as a span, after a request for the size. In between the size of the object can change.

    Breaks "A reader finds an object entire or not at all, also while it is replaced".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if not isinstance(span, Suffix):
            return await super().get(key, span)
        head = await self.ask(self.service.head, check_key(key))
        if head is None:
            raise NotFound(key)
        start, end = clip(span, head[0])
        return await super().get(key, Span(start, end - start))
