"""The port to a broker's metadata service: five calls on records, each a small value under a key of bytes.

`offload.store.records.RecordStore` makes an `ObjectStore` of such a service. So the roots of a tier can be
kept where a broker keeps its own metadata (docs/metadata-services.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX, Capabilities

__all__ = ["Record", "RecordLimits", "RecordService"]


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a listing."""

    key: bytes
    size_bytes: int
    """The size of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """The limits of one service, which hold for each of its records."""

    value_size_bytes_max: int
    """The largest value under the longest key. A tier needs `CREATE_SIZE_BYTES_LEAST`, for a full root."""

    key_size_bytes_max: int = KEY_SIZE_BYTES_MAX
    """The longest key. A tier needs 300 bytes."""

    delete_batch_max: int = 1
    """The most keys of one `delete`."""

    durable: bool = True
    """A change whose call has returned survives a power cut."""

    one_process: bool = False
    """Only the process that wrote a record sees it. Such a service is for tests."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of a store on such a service, for the declaration of its backend."""
        return Capabilities(
            atomic_create=True,
            strong_listing=True,
            multipart=False,
            put_size_bytes_max=self.value_size_bytes_max,
            create_size_bytes_max=self.value_size_bytes_max,
            delete_batch_max=self.delete_batch_max,
            durable=self.durable,
            one_process=self.one_process,
            key_size_bytes_max=min(self.key_size_bytes_max, KEY_SIZE_BYTES_MAX),
        )


class RecordService(ABC):
    """The records of one name in a metadata service. Nobody else writes records of this name.

    **Changes are whole and durable.** A record has its old value or its new one. When a change has returned,
    neither a power cut nor a failover of the service undoes it.
    **Create is atomic.** Of any number of creates of one absent key, exactly one returns True.
    **Reads are strong.** `get` and `list` show every change that returned before they began.
    **Pages show one moment.** The rows of one `list` are the records that existed at one moment of the call,
    in the order of the bytes of their keys.

    Every method may raise `TryAgain` (nothing was changed), `Denied` or `NoSpace`. If a change was sent and
    its reply did not come, the method raises `OutcomeUnknown`, never `TryAgain`: it may be applied now, or
    later. Each call ends in bounded time. The methods do not retry, because only the caller knows what a
    repeated create means.

    A service belongs to one event loop; methods may be called at the same time. Keys and values are within
    `limits`, because the caller has checked them.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of these records. The same URL leads any process here. Carries no credentials."""

    @property
    @abstractmethod
    def limits(self) -> RecordLimits:
        """The limits of the service."""

    @abstractmethod
    async def create(self, key: bytes, value: bytes) -> bool:
        """Store a record if the key is absent, in one atomic step. Return whether it was stored."""

    @abstractmethod
    async def put(self, key: bytes, value: bytes) -> None:
        """Store a record, and replace an existing one."""

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a record, or None if there is none."""

    @abstractmethod
    async def list(self, first: bytes, end: bytes, *, limit: int) -> Sequence[Record]:
        """Return the first `limit` records with `first <= key < end`, in order. `first` is less than `end`.

        Fewer rows than `limit` mean that there are no more.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[bytes]) -> None:
        """Delete these records, at most `limits.delete_batch_max`. Absent ones count as deleted."""

    async def aclose(self) -> None:
        """Release connections. Idempotent. The caller must await unfinished calls first."""
