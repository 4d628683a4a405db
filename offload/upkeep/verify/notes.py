"""The judgement of shared notes, for `upkeep.verify.stream`.

A note is read at each level: it is small, and those who use it stop if it is damaged.
"""

from __future__ import annotations

from contextlib import suppress

from offload.commit.log import RootLog
from offload.contracts.store import ObjectStore
from offload.formats.keys import NoteName
from offload.ground.errors import NotFound
from offload.model.manifest import Manifest, StreamState
from offload.native.lost_roots import loss_shown_by_base
from offload.native.shared_note import read_note
from offload.upkeep.verify.report import VerifyReport, explain


async def judge_note(
    store: ObjectStore,
    log: RootLog,
    key: str,
    name: NoteName,
    *,
    newest: Manifest | None,
    report: VerifyReport,
) -> None:
    """Judge one object of a shared note.

    Raises `RootsLost` if its author had seen a root above the newest one, and `Corrupt` if it is damaged.
    """
    report.objects += 1
    with suppress(NotFound):  # superseded since it was listed
        found = await read_note(store, log.stream, name)
        report.bytes += len(found.value)
        if newest is None:
            return
        if (loss := loss_shown_by_base(log, key, found.base_version, newest)) is not None:
            raise loss
        if newest.state is StreamState.DELETED or newest.incarnation != name.incarnation:
            explain(report, key, reason="a shared note of a deleted life of the stream; a sweep deletes it")
