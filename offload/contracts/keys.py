"""The contract of a key service: it wraps the keys of streams by master keys that never leave it.

A master key is named by a label of `a-z`, `0-9` and `-`. A label comes from the bucket when a stream is read.
So it never says where the service is: the address and the credentials come from the configuration of the
process. Otherwise whoever writes to the bucket would be sent our token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from offload.ground.errors import Misuse
from offload.model.labels import check_label

__all__ = ["KeyService", "check_label"]


class KeyService(ABC):
    """A place of master keys.

    **Wrapping is bound.** A wrapped key opens only with the label and the context with which it was wrapped.
    **Absence is an error.** A label that the service does not have raises `NoSuchKey`, never another key's
    use.
    **No error shows a key.** Its text names the label. The caller drops its cause, because an SDK may
    show a request in it.

    `create` and `destroy` are for streams with a master key of their own. A service that cannot make or
    destroy keys leaves them out.

    Every method may raise `TryAgain` (the service is down), and `Denied` (no permission).
    """

    __slots__ = ()

    @abstractmethod
    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """Return `key`, 32 bytes, wrapped by the master key of this label. At most 4,096 bytes."""

    @abstractmethod
    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Undo `wrap`. Raises `Denied` if this key and context did not wrap it."""

    async def create(self, label: str) -> None:
        """Make a master key with this label. It is left as it is if it exists: an earlier reply was lost."""
        raise Misuse("this key service makes no master keys; name one that it has, without own:")

    async def destroy(self, label: str) -> float:
        """Destroy a master key for good. Return the seconds until nobody can use or restore it.

        Nobody can use it from now on. Zero if the service keeps nothing, and also if it has no such key.
        """
        raise Misuse("this key service destroys no master keys; do it with the tools of the service")

    async def aclose(self) -> None:
        """Release connections. Idempotent."""
