"""The totals of a stream that `sync`, `ls` and other commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from offload.model.compression import BlockCodec
from offload.model.manifest import CommittedStream


def totals(stream: str, manifest: CommittedStream | None) -> dict[str, object]:
    """Return the totals of a stream. All are 0 if nothing is committed."""
    names = ("ledgers", "fragments", "records", "messages", "first_offset", "next_offset", "version")
    numbers = {name: getattr(manifest, name) if manifest else 0 for name in names}
    found = {"stream": stream, **numbers, "bytes": manifest.data_size_bytes if manifest else 0}
    return found if manifest is None or manifest.counts_messages else found | {"counts_messages": False}


SUMS: Final = ("ledgers", "fragments", "records", "messages", "bytes", "stored_bytes")


def joined_totals(stream: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `totals` of several parts as those of one stream. The version is that of the newest part."""
    oldest = next((part for part in parts if part["records"]), parts[-1])
    numbers = {name: sum(part[name] for part in parts) for name in SUMS if name in parts[0]}
    first_offset = oldest["first_offset"]
    return {**totals(stream, None), **numbers, "first_offset": first_offset} | {
        name: parts[-1][name] for name in ("next_offset", "version")
    }


def stored_totals(committed: CommittedStream) -> dict[str, object]:
    """Return what the stream takes on the store: its stored size, the ratio, and the codecs."""
    return {
        "stored_bytes": committed.stored_size_bytes,
        "ratio": ratio_of(committed.data_size_bytes, committed.stored_size_bytes),
        "codecs": codecs_of(committed),
    }


def ratio_of(size_bytes: int, stored_bytes: int) -> float | None:
    """Return how many plain bytes a stored byte holds, to two digits; None if nothing is stored."""
    return round(size_bytes / stored_bytes, 2) if stored_bytes else None


def codecs_of(committed: CommittedStream) -> list[str]:
    """Return the names of the codecs of the fragments that the root itself names: the newest ones."""
    # The entry of a group does not say how its fragments are compressed, and groups are not fetched.
    rows = committed.entries[committed.entries["kind"] == 0]
    return [codec_name(codec) for codec in sorted({*rows["codec"].tolist()})]


def codec_name(codec: int) -> str:
    """Return the name of a codec, as `--compress` takes it."""
    return BlockCodec(codec).name.lower()
