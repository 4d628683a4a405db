"""A broker's own record of each offloaded ledger, such as the OffloadContext of Pulsar's ledger metadata.

The manifest on the tier is the truth, and a record is a copy of a part of it. The owner of a stream calls
`export` after each append, and `repair` when it opens the stream. So a crash between an append and its export
leaves an old record until the next owner opens the stream. No object of the tier is ever deleted because of a
record: what is unknown is only the copy.

The records need a name of their own, which the roots of no tier have: `etcd://HOST:PORT/broker-ledgers`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace

from offload import LedgerOffloader, Manifest, NotOffloaded, RecordService
from offload.formats.keys import escape
from offload.model.entry import entries_of_rows

PAGE_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """What is committed of one ledger."""

    attempts: tuple[str, ...]
    """The attempts that copied it, in order of offsets: usually one. A compaction makes others."""

    first_offset: int
    next_offset: int
    complete: bool
    """The tier has all of the ledger up to its end, so the broker may delete its own copy."""

    version: int
    """The version of the manifest in which this was found first."""


async def export(
    service: RecordService,
    tier: LedgerOffloader,
    manifest: Manifest,
    *,
    ends: Mapping[int, int],
    since: int = 0,
) -> set[bytes]:
    """Put the record of each ledger from the one that begins at offset `since` on. Return the keys.

    `ends` has the end of each ledger that is sealed, as the broker knows it. Only the owner of the stream
    exports. A record of a newer manifest stays as it is.
    """
    keys = set()
    async with aclosing(_ledgers(tier, manifest, since)) as ledgers:
        async for ledger_id, found in ledgers:
            record = replace(found, complete=ends.get(ledger_id) == found.next_offset)
            key = _prefix(manifest.stream) + b"%020d" % ledger_id
            keys.add(key)
            known = read_record(await service.get(key))
            is_news = known is None or replace(known, version=record.version) != record
            if is_news and (known is None or known.version <= record.version):
                await service.put(key, json.dumps(asdict(record)).encode())
    return keys


async def repair(
    service: RecordService, tier: LedgerOffloader, stream: str, *, ends: Mapping[int, int]
) -> None:
    """Make the records of a stream equal to its manifest, after a crash, a trim or its deletion."""
    try:
        manifest = await tier.load_manifest(stream)
    except NotOffloaded:
        keys = set()
    else:
        keys = await export(service, tier, manifest, ends=ends)
    first = _prefix(stream)
    end = first[:-1] + b"0"  # behind every key that begins with the prefix, which ends in `/`
    while first < end:
        rows = await service.list(first, end, limit=PAGE_ROWS)
        for row in rows:
            if row.key not in keys:
                await service.delete([row.key])
        first = rows[-1].key + b"\0" if len(rows) == PAGE_ROWS else end


def read_record(raw: bytes | None) -> LedgerRecord | None:
    """Return a record from its value, or None if there is none."""
    if raw is None:
        return None
    fields = json.loads(raw)
    return LedgerRecord(**{**fields, "attempts": tuple(fields["attempts"])})


async def _ledgers(
    tier: LedgerOffloader, manifest: Manifest, since: int
) -> AsyncGenerator[tuple[int, LedgerRecord], None]:
    """Yield each ledger with its live fragments, in order."""
    ledger_id, record = 0, None
    async with aclosing(tier.tree(manifest).walk(since)) as runs:
        async for run in runs:
            for entry in entries_of_rows(run):
                attempt = str(entry.attempt)
                if record is None or entry.ledger_id != ledger_id:
                    if record is not None:
                        yield ledger_id, record
                    ledger_id = entry.ledger_id
                    record = LedgerRecord(
                        attempts=(attempt,),
                        first_offset=entry.first_offset,
                        next_offset=entry.next_offset,
                        complete=False,
                        version=manifest.version,
                    )
                attempts = tuple(dict.fromkeys((*record.attempts, attempt)))
                record = replace(record, attempts=attempts, next_offset=entry.next_offset)
    if record is not None:
        yield ledger_id, record


def _prefix(stream: str) -> bytes:
    return f"ledgers/{escape(stream)}/".encode()
