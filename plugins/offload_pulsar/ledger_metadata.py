"""The two protobuf messages of Pulsar's objects and metadata, by Google's library.

`descriptors.binpb` is what `protoc --descriptor_set_out` makes of the two `.proto` files beside it. It is
loaded into a pool of its own, so that a program may also use Pulsar's or BookKeeper's own classes.

`LedgerMetadata` and `LedgerInfo` keep the bytes that they were read from, so unknown fields survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final
from uuid import UUID

from offload.ground.errors import Corrupt, Misuse
from offload.ground.extras import missing_text
from offload.ground.outside import json_outside

__all__ = [
    "LedgerInfo",
    "LedgerMetadata",
    "OffloadContext",
    "encode_managed_ledger_info",
    "managed_ledger_info",
    "message_class",
    "parsed_message",
]


MESSAGE_SIZE_BYTES_MAX: Final = 2**20
"""The most of a message that is parsed. BookKeeper and Pulsar keep both in ZooKeeper, which takes no more."""

METADATA_SIZE_BYTES_MAX: Final = 64 * MESSAGE_SIZE_BYTES_MAX
"""The most of a `ManagedLedgerInfo`: a topic of long history has many ledgers, of some 150 bytes each."""

_MASK: Final = 2**64 - 1


@cache
def message_class(name: str) -> Any:
    """Return the class of a message, such as `bookkeeper.LedgerMetadata`. `Misuse` without the library."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as exc:
        raise Misuse(missing_text("Pulsar's format", "protobuf", "ledger-offload[pulsar]")) from exc
    pool = descriptor_pool.DescriptorPool()
    packed = files(__package__).joinpath("schemas", "descriptors.binpb").read_bytes()
    for each in descriptor_pb2.FileDescriptorSet.FromString(packed).file:
        pool.AddSerializedFile(each.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"offload_pulsar.{name}"))


@cache
def _decode_error() -> type[Exception]:
    """Return the error of the library for bytes that are no message."""
    from google.protobuf.message import DecodeError

    error: type[Exception] = DecodeError
    return error


def parsed_message(name: str, raw: bytes, where: str, position: int, size_bytes_max: int) -> Any:
    """Return a message of our schemas.

    Raises `Corrupt` if it is too large, no such message, or lacks a required field.
    """
    if len(raw) > size_bytes_max:
        most = f"at most {size_bytes_max}"
        raise Corrupt(f"size of {name}", where, expected=most, found=len(raw), position=position)
    message = message_class(name)()
    try:
        message.ParseFromString(raw)
    except (_decode_error(), UnicodeDecodeError) as exc:
        raise Corrupt(
            f"message {name}", where, expected="its fields", found="other bytes", position=position
        ) from exc
    if not message.IsInitialized():
        missing: list[str] = message.FindInitializationErrors()
        lacks = f"none of {', '.join(missing[:4])}"
        raise Corrupt(
            f"message {name}", where, expected="all required fields", found=lacks, position=position
        )
    return message


def _of_range(name: str, value: int, least: int, where: str, position: int) -> int:
    if value < least:
        raise Corrupt(name, where, expected=f"at least {least}", found=value, position=position)
    return value


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """BookKeeper's metadata of a closed ledger, as a V1 index holds it. It does not name the ledger."""

    raw: bytes
    """The message. Two are equal if their bytes are."""

    length: int
    """The sum of the sizes of all entries."""

    last_entry: int
    ctime_ms: int | None
    """The time when the ledger was created. None if BookKeeper did not know it."""

    custom: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(
        cls,
        *,
        length: int,
        last_entry: int,
        bookies: tuple[str, ...] = ("unknown:3181",),
        write_quorum: int = 1,
        ensemble: int = 1,
        ack_quorum: int = 1,
        digest: str = "CRC32C",
        ctime_ms: int | None = None,
        custom: Mapping[str, bytes] | None = None,
    ) -> LedgerMetadata:
        """Make the metadata of a closed ledger. Pulsar needs the numbers of bookies, but asks no bookie."""
        kind = message_class("bookkeeper.LedgerMetadata")
        ctime = -1 if ctime_ms is None else ctime_ms
        message = kind(
            quorumSize=write_quorum,
            ensembleSize=ensemble,
            length=length,
            lastEntryId=last_entry,
            state=kind.CLOSED,
            digestType=kind.DigestType.Value(digest),
            ackQuorumSize=ack_quorum,
            ctime=ctime,
        )
        message.segment.add(ensembleMember=bookies, firstEntryId=0)
        for key, value in (custom or {}).items():
            message.customMetadata.add(key=key, value=value)
        return cls.decode(message.SerializeToString(deterministic=True), where="new metadata")

    @classmethod
    def decode(cls, raw: bytes, *, where: str, position: int = 0) -> LedgerMetadata:
        """Read the message. Raises `Corrupt` for one that is no message, too large, or of an open ledger."""
        message = parsed_message("bookkeeper.LedgerMetadata", raw, where, position, MESSAGE_SIZE_BYTES_MAX)
        if message.state != message.CLOSED:
            raise Corrupt(
                "state of the ledger", where, expected="CLOSED", found=message.state, position=position
            )
        last = message.lastEntryId if message.HasField("lastEntryId") else -1
        return cls(
            raw=bytes(raw),
            length=_of_range("length of the ledger", message.length, 0, where, position),
            last_entry=_of_range("last entry of the ledger", last, 0, where, position),
            ctime_ms=message.ctime if message.HasField("ctime") and message.ctime >= 0 else None,
            custom=tuple((each.key, each.value) for each in message.customMetadata),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext:
    """Where Pulsar's metadata says that a ledger was offloaded to."""

    uid: UUID
    is_complete: bool
    is_deleted_from_bookkeeper: bool = False
    timestamp_ms: int = 0
    driver: str = ""
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """Pulsar's record of one ledger of a topic partition. A V2 index has one for each of its ledgers."""

    raw: bytes
    """The message. Two are equal if their bytes are."""

    ledger_id: int
    entries: int
    length: int
    closed_ms: int | None
    """The time when the ledger was closed. None if it is open."""

    offloaded: OffloadContext | None = None

    @classmethod
    def of(
        cls,
        *,
        ledger_id: int,
        entries: int,
        length: int,
        closed_ms: int,
        offloaded: OffloadContext | None = None,
    ) -> LedgerInfo:
        """Make the record of a closed ledger."""
        message = message_class("managed_ledger.LedgerInfo")(
            ledgerId=ledger_id, entries=entries, size=length, timestamp=closed_ms
        )
        if offloaded is not None:
            context = message.offloadContext
            context.uidMsb, context.uidLsb = (
                _signed(offloaded.uid.int >> 64),
                _signed(offloaded.uid.int & _MASK),
            )
            context.complete = offloaded.is_complete
            if offloaded.is_deleted_from_bookkeeper:
                context.bookkeeperDeleted = True
            if offloaded.timestamp_ms:
                context.timestamp = offloaded.timestamp_ms
            context.driverMetadata.name = offloaded.driver
            for key, value in offloaded.properties:
                context.driverMetadata.properties.add(key=key, value=value)
        return cls.decode(message.SerializeToString(deterministic=True), where="a new record")

    @classmethod
    def decode(cls, raw: bytes, *, where: str, position: int = 0) -> LedgerInfo:
        """Read the message. Raises `Corrupt` for one that is no message, or too large."""
        message = parsed_message("managed_ledger.LedgerInfo", raw, where, position, MESSAGE_SIZE_BYTES_MAX)
        return cls._of_message(message, bytes(raw), where, position)

    @classmethod
    def _of_message(cls, message: Any, raw: bytes, where: str, position: int) -> LedgerInfo:
        return cls(
            raw=raw,
            ledger_id=_of_range("ledger id", message.ledgerId, 0, where, position),
            entries=_of_range("entries of the ledger", message.entries, 0, where, position),
            length=_of_range("size of the ledger", message.size, 0, where, position),
            closed_ms=message.timestamp or None,
            offloaded=_offloaded(message),
        )


def managed_ledger_info(raw: bytes, *, where: str) -> tuple[LedgerInfo, ...]:
    """Return the records of all ledgers in a `ManagedLedgerInfo`, in its order. Raises `Corrupt`.

    `raw` is the message, or the JSON that the library of protobuf makes of it. No message begins like JSON.
    """
    kind = "managed_ledger.ManagedLedgerInfo"
    if raw.lstrip()[:1] == b"{":
        raw = _from_json(kind, raw, where)
    message = parsed_message(kind, raw, where, 0, METADATA_SIZE_BYTES_MAX)
    return tuple(
        LedgerInfo._of_message(each, each.SerializeToString(deterministic=True), where, 0)
        for each in message.ledgerInfo
    )


def encode_managed_ledger_info(records: Iterable[LedgerInfo]) -> bytes:
    """Return a `ManagedLedgerInfo` of these records, which it has unchanged."""
    message = message_class("managed_ledger.ManagedLedgerInfo")()
    for each in records:
        message.ledgerInfo.add().ParseFromString(each.raw)
    return bytes(message.SerializeToString(deterministic=True))


def _from_json(name: str, raw: bytes, where: str) -> bytes:
    """Return the message that is written as JSON. A field that we do not know is refused.

    A misspelt context would make every object nobody's, and what is nobody's is deleted.
    """
    from google.protobuf import json_format

    if len(raw) > METADATA_SIZE_BYTES_MAX:
        most = f"at most {METADATA_SIZE_BYTES_MAX}"
        raise Corrupt(f"size of {name}", where, expected=most, found=len(raw))
    message = message_class(name)()
    try:
        fields = json_outside(raw, size_bytes_max=METADATA_SIZE_BYTES_MAX)
        json_format.ParseDict(fields, message)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as exc:
        raise Corrupt(f"JSON of {name}", where, expected="its fields", found=str(exc)) from exc
    if "ledgerInfo" not in fields:
        found = ", ".join([*fields][:5])
        raise Corrupt(f"JSON of {name}", where, expected="a field ledgerInfo", found=found)
    return bytes(message.SerializePartialToString(deterministic=True))


def _offloaded(message: Any) -> OffloadContext | None:
    if not message.HasField("offloadContext"):
        return None
    context = message.offloadContext
    if not (context.HasField("uidMsb") and context.HasField("uidLsb")):
        return None
    return OffloadContext(
        uid=UUID(int=(context.uidMsb & _MASK) << 64 | context.uidLsb & _MASK),
        is_complete=context.complete,
        is_deleted_from_bookkeeper=context.bookkeeperDeleted,
        timestamp_ms=context.timestamp,
        driver=context.driverMetadata.name,
        properties=tuple((each.key, each.value) for each in context.driverMetadata.properties),
    )


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
