"""Fourth set, offloaders: fields of a manifest that a database loses."""

from __future__ import annotations

from dataclasses import replace

from newcomers.fourth_sound import Rows
from newcomers.ledgers import copied, ledger, raises, trimmed
from newcomers.registry import Open, bug
from offload.ground.errors import Fenced
from offload.model.manifest import Manifest
from offload.write.job import Job
from offload.write.writer import StreamWriter


async def _one_ledger_in_two_commits(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=7), ledger(3, ledger_id=7))
    assert (await tier.load_manifest("s")).ledgers == 1
    assert writer.manifest.last_ledger_id == 7


@bug(_one_ledger_in_two_commits)
class LastLedgerIsForgotten(Rows):
    """The table of manifests has no column for the last ledger.

    Breaks "Return the newest committed manifest". Costs the count of ledgers: one that is copied in several
    steps counts each time.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, last_ledger_id=0)


async def _half_a_ledger_counts(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", *(ledger(at, ledger_id=7) for at in (0, 3, 6)))
    await trimmed(tier, "s", 3)
    assert (await tier.load_manifest("s")).ledgers == 1


@bug(_half_a_ledger_counts)
class LedgersAreAdded(Rows):
    """The number of ledgers is not stored but added over the entries, each ledger where it begins.

    Breaks "Return the newest committed manifest". Costs the ledger whose beginning was trimmed: it counts no
    more, and the next commit fails at the check of its totals.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, ledgers=int(manifest.entries["ledgers"].sum()))


async def _attempts_keep_their_epoch(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    job = await Job.begin(tier, "s")
    await job.prepare([3])
    await StreamWriter.claim(tier, "s")
    [running] = (await tier.load_manifest("s")).running
    assert running.epoch == 1


@bug(_attempts_keep_their_epoch)
class AttemptsHaveNoEpoch(Rows):
    """The table of running attempts has no epoch; that of the stream is shown instead.

    Breaks "Return the newest committed manifest". Costs a rebuild its order: what an attempt uploads says a
    later epoch than the one under which it was announced.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        if manifest is None:
            return None
        running = tuple(replace(each, epoch=manifest.epoch) for each in manifest.running)
        return replace(manifest, running=running)


async def _source_epochs_are_long(open_: Open) -> None:
    tier = open_()
    await StreamWriter.claim(tier, "s", source_epoch=2**40 + 5)
    assert (await tier.load_manifest("s")).source_epoch == 2**40 + 5
    await raises(Fenced, StreamWriter.claim(tier, "s", source_epoch=2**40 + 4))


@bug(_source_epochs_are_long)
class SourceEpochIsAnInt(Rows):
    """The leader epoch of the source is a column of 31 bits, as in Kafka, and larger ones are cut.

    Breaks "Return the newest committed manifest", and with it the fence of a deposed leader. Costs the
    history of a source whose epochs are times: an older leader takes the stream.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, source_epoch=manifest.source_epoch % 2**31)
