"""The optional port to a store that signs reads, so that a program without credentials can fetch objects.

A signed read is a URL. Whoever holds it may read that one object until it expires, and nothing else. So it is
a secret: it may be in a plan for a task, and never in a message, a log or an error.

A backend's store implements `SignsReads` beside `ObjectStore` if its client can sign without a request.
`offload.store.signing.signed_reads` finds it behind decorators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["SignedReads", "SignsReads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReads:
    """URLs of objects, and how to read them. Its `repr` shows no URL."""

    urls: Sequence[str] = field(repr=False)
    """One for each key that was asked for, in order. A GET of it, also of a range, needs no other header."""

    seconds: int
    """How long they are valid. Less than was asked for if the credentials end before."""

    expires_ms: int
    """When they expire, in milliseconds since 1970 by the clock of the machine that signed them."""

    stall_seconds: float
    """How long no byte may move before a reader gives up, as the options of the store say."""


class SignsReads(ABC):
    """A store that can sign reads. No request is sent for it, except to renew the store's own credentials."""

    __slots__ = ()

    @abstractmethod
    async def signed_reads(self, keys: Sequence[str], *, seconds: int) -> SignedReads:
        """Return a signed read of each object. It is not looked up: reading an absent one fails later.

        Raises `Misuse` if the credentials cannot sign without a request, or if the options say something that
        a plain GET cannot: a proxy, other authorities, a key of the caller's. The text says which, and holds
        no secret. Raises `Denied` or `TryAgain` if credentials cannot be found or renewed.
        """
