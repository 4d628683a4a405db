"""A sync that is killed, interrupted or has a rival: the tier stays sound, and the next sync completes it.

A seed determines every moment of a kill. The output of the test shows it. `OFFLOAD_CAMPAIGN=1` tries many
more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from command_line import SEED, contents, finish, keys, offload, start, sync, verify
from osiris_writer import write_stream

from offload import Plugins, StreamReader, open_tier
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import StreamKeys
from offload.formats.root import decode_root
from offload.model.entry import entries_of_rows
from offload.model.manifest import NOBODY, Manifest

SEGMENT_SIZE_BYTES = 4_000_000
CHUNKS = 240
RECORDS = 200

EXPLAINED = re.compile("its attempt runs: an upload is under way|trimmed, replaced by a copy")

HALF_READ = re.compile(
    r"Exception ignored in: <_io\.FileIO name='[^'\n]+\.pyc?' .*\n"
    r"Traceback .*\n(?:  .*\n)+"
    r"ResourceWarning: unclosed file <_io\.BufferedReader name='[^'\n]+\.pyc?'>\n"
)
"""What Python says of a module that Ctrl-C kept it from reading, because warnings are errors here."""
PYTHON_STARTS = re.compile(r"Fatal Python error: init_(.*\n)+KeyboardInterrupt\n")
"""What Python says if Ctrl-C comes before it has started."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source with one stream `orders` of about 48 MB in about twelve segments. Each becomes a fragment."""

    path: Path
    digest: str
    """The digest of all its chunks, one after the other."""

    seconds: float
    """The duration of a whole sync of it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("source")
    write_stream(folder / "orders", _chunks(), segment_size_bytes=SEGMENT_SIZE_BYTES)
    digest = hashlib.sha256()
    for segment in sorted((folder / "orders").glob("*.segment")):
        digest.update(segment.read_bytes()[8:])
    began = time.monotonic()
    assert finish(sync_process(folder, folder / "tier")).code == 0
    return Source(folder / "orders", digest.hexdigest(), time.monotonic() - began)


def _chunks() -> Iterator[bytes]:
    payload = random.Random(0).randbytes(1000)
    for number in range(CHUNKS):
        bodies = [b"%d %s" % (number * RECORDS + i, payload) for i in range(RECORDS)]
        yield build_chunk(bodies, offset=number * RECORDS, timestamp_ms=number, epoch=1)


def sync_process(source: Path, tier: Path):
    return start("sync", f"rabbitmq://{source}", tier)


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> random.Random:
    """Return the random numbers that choose a test's moments."""
    print(f"OFFLOAD_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")


def committed_digest(tier: Path) -> str:
    """Return the digest of all chunks that a reader of the tier gets. Check that offsets ascend without a
    gap.
    """

    async def run() -> str:
        digest = hashlib.sha256()
        async with open_tier(str(tier), plugins=Plugins.find()) as offloader:
            reader = await StreamReader.open(offloader, "orders")
            offset = 0
            windows = reader.windows(0)
            async for window in windows:
                digest.update(window.data)
                for row in window.rows:
                    assert row["offset"] == offset  # no chunk is lost or duplicated
                    offset += int(row["records"])
            await windows.aclose()
        assert offset == CHUNKS * RECORDS
        return digest.hexdigest()

    return asyncio.run(run())


def assert_good(tier: Path) -> None:
    """Assert that nothing is damaged, and that every object is either referenced or explained."""
    if not (tier / "tier.anchor").exists():
        return  # the sync stopped before it created the tier
    code, document = verify(tier)
    assert code == 0, document
    for row in document["unreferenced"]:
        if row["object"].endswith("/stream.anchor"):  # it stopped after the tier and before the first root
            assert row["reason"] == "nothing was ever committed to this stream", row
            continue
        assert row["attempt"] is not None, row
        assert EXPLAINED.match(row["reason"]), row
    assert document["objects"] == len(keys(tier))


def assert_complete(tier: Path, source: Source) -> None:
    """Assert that one more sync completes the tier, and that a second one finds nothing to do."""
    [report] = sync(source.path, tier).objects
    assert report["messages"] == report["records"] == CHUNKS * RECORDS
    assert_good(tier)
    assert committed_digest(tier) == source.digest
    [again] = sync(source.path, tier).objects
    assert again == report | {"uploaded_bytes": 0}


def history(tier: Path) -> list[Manifest]:
    """Return every root of `orders`, in order of versions."""
    prefix = StreamKeys("orders").roots
    found = sorted(key for key in keys(tier) if key.startswith(prefix))
    return [decode_root((tier / key).read_bytes(), where=key) for key in found]


def assert_linear(roots: list[Manifest]) -> None:
    """Assert that each root follows the one before it: in version, name of its parent, epoch and offsets."""
    assert [root.version for root in roots] == list(range(1, len(roots) + 1))
    parents = [NOBODY, *(root.commit_id for root in roots)]
    assert [root.parent_commit_id for root in roots] == parents[:-1]
    assert len(set(parents)) == len(parents)
    for before, root in pairwise(roots):
        assert root.epoch in (before.epoch, before.epoch + 1)
        assert (root.writer == before.writer) == (root.epoch == before.epoch)
        assert root.next_offset >= before.next_offset
        assert (root.entries[: len(before.entries)] == before.entries).all()


def caught_at_work(source: Source, folder: Path, signal_number: int) -> tuple[Path, subprocess.Popen[bytes]]:
    """Return a sync that got this signal with three fragments uploaded and not all committed, and its tier.

    A test that is itself delayed can miss that moment. It then tries again.
    """
    for number in range(20):
        tier = folder / f"tier{number}"
        process = sync_process(source.path, tier)
        while len(list(tier.glob("orders/data/*.fragment"))) < 3:
            time.sleep(0.001)
        process.send_signal(signal_number)
        # A signal takes effect only after its sender goes on, and a process that still works moves files.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if process.poll() in (None, -signal.SIGKILL) and history(tier)[-1].running:
            return tier, process
        process.kill()
        finish(process)
    raise AssertionError("no sync was caught at work")


@pytest.mark.parametrize("number", range(50 if CAMPAIGN else 2))
def test_a_sync_killed_at_any_moment_completes_when_run_again(
    tmp_path: Path, source: Source, moments: random.Random, number: int
) -> None:
    """Kill the sync once, or twice in a row. Afterwards the tier has every message exactly once."""
    tier = tmp_path / "tier"
    for _ in range(1 + number % 2):
        seconds = moments.uniform(0, source.seconds)
        process = sync_process(source.path, tier)
        time.sleep(seconds)
        process.kill()
        ran = finish(process)
        print(f"killed after {seconds:.3f} of {source.seconds:.3f} s")
        assert ran.code in (0, -signal.SIGKILL)
        assert_good(tier)

    assert_complete(tier, source)
    assert_linear(history(tier))


@pytest.mark.parametrize("number", range(50 if CAMPAIGN else 2))
def test_ctrl_c_at_any_moment_leaves_a_sound_tier(
    tmp_path: Path, source: Source, moments: random.Random, number: int
) -> None:
    tier = tmp_path / "tier"
    seconds = source.seconds * (number + moments.random()) / (50 if CAMPAIGN else 2)
    process = sync_process(source.path, tier)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    ran = finish(process)
    print(f"interrupted after {seconds:.3f} of {source.seconds:.3f} s: {ran.code}")

    if ran.code == -signal.SIGINT or PYTHON_STARTS.fullmatch(ran.stderr):
        assert not tier.exists()
    elif ran.code != 0:
        assert ran.code == 130
        said = HALF_READ.sub("", ran.stderr)
        assert said == "offload: stopped; what is committed is safe; run the same command again to continue\n"
    assert_good(tier)
    assert_complete(tier, source)


@pytest.mark.parametrize("number", range(20 if CAMPAIGN else 1))
def test_two_syncs_at_once_write_one_history(
    tmp_path: Path, source: Source, moments: random.Random, number: int
) -> None:
    tier = tmp_path / "tier"
    one = sync_process(source.path, tier)
    time.sleep(moments.uniform(0, source.seconds / 2) if number else 0)
    other = sync_process(source.path, tier)

    ends = [finish(one), finish(other)]

    assert 0 in [ran.code for ran in ends]  # no writer fences the one that claimed last
    for ran in ends:
        if ran.code != 0:
            assert ran.code == 1
            taken = r"offload: stream 'orders': another writer took over, so this one stops"
            assert re.match(taken, ran.error)
    assert_linear(history(tier))
    assert_good(tier)
    assert committed_digest(tier) == source.digest
    assert_complete(tier, source)


def test_a_stalled_writer_is_fenced_by_its_rival_and_changes_nothing(
    tmp_path: Path, source: Source, moments: random.Random
) -> None:
    """It stops in the middle of its uploads, as on a sleeping laptop, and wakes after its rival has ended."""
    tier, process = caught_at_work(source, tmp_path, signal.SIGSTOP)
    rival = offload("sync", f"rabbitmq://{source.path}", tier)
    after = set(contents(tier))
    process.send_signal(signal.SIGCONT)
    stalled = finish(process)

    assert rival.code == 0, rival.stderr
    assert stalled.code == 1
    assert "another writer took over, so this one stops for good" in stalled.error
    assert after <= set(contents(tier)) | {key for key in after if key.startswith(".staging/")}
    assert_linear(history(tier))
    assert_good(tier)
    assert committed_digest(tier) == source.digest


def test_a_sync_adopts_the_uploads_of_a_killed_writer(
    tmp_path: Path, source: Source, moments: random.Random
) -> None:
    """It adopts those fragments that continue the committed data without a gap."""
    begins = sorted(int(path.stem) for path in source.path.glob("*.segment"))
    left: dict[int, str] = {}
    while begins[0] not in left:
        tier, process = caught_at_work(source, tmp_path / str(len(list(tmp_path.iterdir()))), signal.SIGKILL)
        finish(process)
        left = {int(Path(key).name[:20]): key for key in keys(tier) if key.endswith(".fragment")}
    chain = set(takewhile(left.__contains__, begins))

    sync(source.path, tier)

    entries = entries_of_rows(history(tier)[-1].entries)
    named = {StreamKeys("orders").fragment(entry.first_offset, entry.attempt) for entry in entries}
    assert {left[begin] for begin in chain} <= named
    sent_again = {Path(key).name[:20] for key in keys(tier) - set(left.values()) if key.endswith(".fragment")}
    assert not sent_again & {f"{begin:020}" for begin in chain}
    assert committed_digest(tier) == source.digest
