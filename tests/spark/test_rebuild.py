"""A rebuild whose tails are read by Spark's tasks: the same report and manifest as without them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import PROGRAM, offload
from offload_spark.jobs.rebuild import rebuild
from osiris_writer import simple_chunks, write_stream

from offload import Blocking, Plugins
from offload.commit.log import RootLog
from offload.errors import Conflict
from offload.model.manifest import Manifest, StreamState
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.opening import open_tier
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild as rebuild_alone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"
CHUNKS = 120
"""Each of them a fragment."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of one stream in many fragments, of three ledgers."""
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
    """A copy of it without its roots."""
    tier = tmp_path / "lost"
    shutil.copytree(sound, tier)
    for root in (tier / STREAM / "metadata").glob("root.*"):
        root.unlink()
    return tier


def fragments(tier: Path) -> list[Path]:
    return sorted((tier / STREAM / "data").iterdir())


def alone(tier: Path, **how: Any) -> RebuildReport:
    """What a rebuild without Spark says, of a copy."""
    copy = shutil.copytree(tier, tier.with_name("alone"))
    with Blocking(str(copy)) as opened:
        assert isinstance(opened.offloader, ObjectStoreOffloader)
        return opened.run(rebuild_alone(opened.offloader, STREAM, **how))


def check_alike(one: RebuildReport, other: RebuildReport) -> None:
    assert one.as_json() == other.as_json()
    if one.manifest is not None and other.manifest is not None:
        assert content_of(one.manifest) == content_of(other.manifest)


def content_of(manifest: Manifest) -> dict[str, object]:
    """All but what is drawn anew by each commit."""
    drawn = ("writer", "committer", "commit_id", "parent_commit_id", "entries")
    plain = {name: getattr(manifest, name) for name in manifest.__slots__ if name not in drawn}
    return plain | {"entries": manifest.entries.tobytes()}


def test_the_manifest_is_the_one_that_a_rebuild_alone_makes(
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


def test_damages_and_holes_are_those_of_a_rebuild_alone(spark: SparkSession, lost: Path) -> None:
    """Nothing is committed but by the operator's word, which counts here as there."""
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
    """Behind the fence."""


def test_what_was_interrupted_behind_its_fence_is_begun_again(
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


def test_the_command_wants_a_word_and_prints_as_the_one_without_spark(lost: Path) -> None:
    copy = shutil.copytree(lost, lost.with_name("copy"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ("spark", "rebuild", lost, STREAM, "--yes", "--json", "--master", "local[1]")

    unsaid = offload("spark", "rebuild", lost, STREAM)
    expected = offload("rebuild", copy, STREAM, "--yes", "--json")
    ran = subprocess.run(
        [*PROGRAM[:1], *PROGRAM[3:], *map(str, words)],  # Spark warns, and that is no error
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert unsaid.code == 2
    assert "Say --yes where that is so" in unsaid.error
    assert (ran.returncode, expected.code) == (0, 0), ran.stderr
    assert json.loads(ran.stdout) == expected.document
