"""The judgement of index objects, for `upkeep.verify.stream`.

An index object is never the truth, so no manifest names it. One that is damaged costs time alone: what it
covers is scanned. It is still damage, because nothing but a bad disk, or a stranger, damages an object.
"""

from __future__ import annotations

from contextlib import suppress

from offload.commit.log import RootLog
from offload.contracts.store import Listed, ObjectStore
from offload.formats.keys import IndexName
from offload.ground.errors import NotFound
from offload.index.objects import IndexObject, check_index
from offload.index.rules import judged
from offload.model.manifest import Manifest, StreamState
from offload.native.lost_roots import loss_shown_by_base
from offload.upkeep.verify.report import VerifyLevel, VerifyReport, explain


async def judge_index(
    store: ObjectStore,
    log: RootLog,
    listed: Listed,
    name: IndexName,
    *,
    newest: Manifest | None,
    level: VerifyLevel,
    report: VerifyReport,
) -> None:
    """Judge one index object. Below the level `bytes`, its rows are not read.

    Raises `RootsLost` if the object was made on a root above the newest one, and `Corrupt` if it is damaged.
    """
    if newest is not None:
        loss = loss_shown_by_base(log, listed.key, name.version, newest)
        if loss is not None:
            raise loss
        unused = judged([name], newest, is_live=newest.state is StreamState.LIVE).unused
        if name in unused:
            explain(report, listed.key, reason=f"{unused[name].value}; a sweep deletes it")
    one = IndexObject(store, log.stream, name, listed.size_bytes)
    report.objects += 1
    with suppress(NotFound):  # merged or swept since it was listed
        await check_index(one, reads_rows=level is VerifyLevel.BYTES)
    report.bytes += one.reads.bytes
