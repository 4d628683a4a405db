"""What is committed of a stream, in the numbers that `sync`, `ls` and others print."""

from __future__ import annotations

from offload.model.manifest import CommittedStream


def totals(stream: str, manifest: CommittedStream | None) -> dict[str, object]:
    """Return the totals of a stream; zeros if nothing is committed."""
    names = ("ledgers", "fragments", "records", "messages", "first_offset", "next_offset", "version")
    numbers = {name: getattr(manifest, name) if manifest else 0 for name in names}
    return {"stream": stream, **numbers, "bytes": manifest.data_size_bytes if manifest else 0}
