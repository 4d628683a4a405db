"""The job `rebuild`: the same report and manifest as a rebuild without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import offload
from offload_spark.jobs.rebuild import rebuild
from osiris_writer import simple_chunks, write_stream

from offload import Blocking, Plugins
from offload.commit.log import RootLog
from offload.ground.errors import Conflict
from offload.model.manifest import Manifest, StreamState
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.opening.by_url import open_tier
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild as rebuild_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"
CHUNKS = 120
"""The stream has this many chunks, each in a fragment of its own."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with one stream: three ledgers in many fragments."""
    folder = tmp_path_factory.mktemp("rebuild")
    write_stream(folder / "source" / STREAM, simple_chunks(CHUNKS), segment_chunks=50)
    how = TierOptions(fragment_size_bytes=1)
    with Blocking.around(
        lambda: open_tier(str(folder / "tier"), options=how), plugins=Plugins.find()
    ) as tier:
        tier.run(tier.offloader.open(create=True))
        (report,) = tier.sync(f"rabbitmq://{folder / 'source'}")
        assert report.error is None
    return folder / "tier"


@pytest.fixture
def lost(sound: Path, tmp_path: Path) -> Path:
    """A copy of the tier that lost the stream's roots."""
    tier = tmp_path / "lost"
    shutil.copytree(sound, tier)
    for root in (tier / STREAM / "metadata").glob("root.*"):
        root.unlink()
    return tier


def fragments(tier: Path) -> list[Path]:
    return sorted((tier / STREAM / "data").iterdir())


def alone(tier: Path, **how: Any) -> RebuildReport:
    """Rebuild a copy of the tier without Spark, and return the report."""
    copy = shutil.copytree(tier, tier.with_name("alone"))
    with Blocking(str(copy)) as opened:
        assert isinstance(opened.offloader, ObjectStoreOffloader)
        return opened.run(rebuild_alone(opened.offloader, STREAM, **how))


def check_alike(one: RebuildReport, other: RebuildReport) -> None:
    assert one.as_json() == other.as_json()
    if one.manifest is not None and other.manifest is not None:
        assert content_of(one.manifest) == content_of(other.manifest)


def content_of(manifest: Manifest) -> dict[str, object]:
    """Return all of a manifest but the ids that each commit draws."""
    drawn = ("writer", "committer", "commit_id", "parent_commit_id", "entries")
    plain = {name: getattr(manifest, name) for name in manifest.__slots__ if name not in drawn}
    return plain | {"entries": manifest.entries.tobytes()}


def test_the_manifest_is_the_one_of_a_rebuild_without_spark(
    spark: SparkSession, sound: Path, lost: Path
) -> None:
    told: list[tuple[int, int]] = []
    expected = alone(lost)

    report = rebuild(spark, str(lost), STREAM, slice_rows=10, progress=lambda *seen: told.append(seen))

    check_alike(report, expected)
    assert report.manifest is not None
    with Blocking(str(sound)) as before, Blocking(str(lost)) as after:
        assert after.load_manifest(STREAM).entries.tobytes() == report.manifest.entries.tobytes()
        assert before.load_manifest(STREAM).entries.tobytes() == report.manifest.entries.tobytes()
        assert [*after.read(STREAM)] == [*before.read(STREAM)]
        assert not after.verify().damages
    assert told == [(80, CHUNKS), (CHUNKS, CHUNKS)], "waves of eight slices; nothing was read twice"


def test_damages_and_holes_are_those_of_a_rebuild_without_spark(spark: SparkSession, lost: Path) -> None:
    """Nothing is committed unless the operator says where the stream begins."""
    flipped, cut, *_ = fragments(lost)[40:]
    for path, raw in ((flipped, bytearray(flipped.read_bytes())), (cut, bytearray(cut.read_bytes()[:-7]))):
        raw[-100] ^= 1
        path.chmod(0o644)
        path.write_bytes(raw)
    fragments(lost)[70].unlink()
    with_holes = alone(lost, dry_run=True)
    shutil.rmtree(lost.with_name("alone"))

    report = rebuild(spark, str(lost), STREAM, slice_rows=10)
    given_up = rebuild(spark, str(lost), STREAM, begin=71 * 3)

    check_alike(report, with_holes)
    assert report.manifest is None
    assert sorted(damage.where for damage in report.damages) == [
        str(path.relative_to(lost)) for path in (flipped, cut)
    ]
    assert report.choice.holes == [(40 * 3, 42 * 3), (70 * 3, 71 * 3)]
    assert given_up.manifest is not None
    assert (given_up.manifest.first_offset, given_up.manifest.next_offset) == (71 * 3, CHUNKS * 3)


class Crash(Exception):
    """The end of a rebuild after its fence was committed."""


def test_a_rebuild_that_ended_after_its_fence_starts_again(
    spark: SparkSession, lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, commits = RootLog.commit, []

    async def commit(self: RootLog, *arguments: Any, **keywords: Any) -> Manifest:
        if commits:
            raise Crash
        commits.append(await real(self, *arguments, **keywords))
        return commits[-1]

    with monkeypatch.context() as patched:
        patched.setattr(RootLog, "commit", commit)
        with pytest.raises(Crash):
            rebuild(spark, str(lost), STREAM)
    (fence,) = commits

    report = rebuild(spark, str(lost), STREAM)

    assert fence.state is StreamState.REBUILDING
    assert report.manifest is not None
    assert report.manifest.version > fence.version
    with pytest.raises(Conflict, match="nothing is lost"):
        rebuild(spark, str(lost), STREAM)


def test_the_command_needs_yes_and_prints_as_the_one_without_spark(spark: SparkSession, lost: Path) -> None:
    copy = shutil.copytree(lost, lost.with_name("copy"))

    unsaid = offload("spark", "rebuild", lost, STREAM)
    expected = offload("rebuild", copy, STREAM, "--yes", "--json")
    ran = offload("spark", "rebuild", lost, STREAM, "--yes", "--json", "--master", "local[1]")

    assert unsaid.code == 2
    assert "Then run this with --yes" in unsaid.error
    assert (ran.code, expected.code) == (0, 0), ran.stderr
    assert ran.document == expected.document
