"""`offload sync --continue-as`: a stopped stream continues under a new name, beside its archive."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from command_line import bodies, contents, formula, offload, sync, verify
from osiris_data import DATA
from osiris_writer import TIMESTAMP_MS, append_chunks, simple_chunks, write_stream

from offload import Blocking, Diverged
from offload.cli.sync import _shown
from offload.formats.chunk_writer import build_chunk

SEGMENTS = sorted(path.stem for path in (DATA / "filtered").glob("*.segment"))
TOLD = formula(20000)
PART = "filtered-part-2"


def put_segments(folder: Path, kept: slice) -> None:
    """Give `folder` these segments of the real stream `filtered`, as a broker's retention leaves them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for stem in SEGMENTS[kept]:
        for suffix in (".segment", ".index"):
            shutil.copy(DATA / "filtered" / (stem + suffix), folder)


@pytest.fixture
def gap(tmp_path: Path) -> tuple[Path, Path]:
    """A real source that begins at 12500, and a tier whose stream ends at 6250."""
    source, tier = tmp_path / "streams" / "filtered", tmp_path / "a tier"
    put_segments(source, slice(0, 1))
    sync(source, tier)
    put_segments(source, slice(2, 3))
    return source, tier


def go_on(source: Path, tier: Path, part: str = PART) -> None:
    sync(source, tier, "--stream", source.name, "--continue-as", part)


def refused(source: Path, tier: Path, part: str = PART) -> str:
    before = contents(tier)
    stopped = offload("sync", f"rabbitmq://{source}", tier, "--stream", "filtered", "--continue-as", part)
    assert stopped.code != 0
    assert contents(tier) == before
    return stopped.error


class TestASyncThatStopped:
    def test_a_stopped_sync_prints_a_command_that_works(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap

        stopped = offload("sync", f"rabbitmq://{source}", tier, "-o", "down_requests_max=7", "--json")

        assert stopped.code == 1
        assert 'there is a gap; see "A sync stopped: what now" (docs/a-sync-stopped.md)' in stopped.error
        assert stopped.objects[0]["continue_as"] == PART
        command = shlex.split(stopped.error.partition("under a new name: ")[2])
        assert command == [
            *("offload", "sync", f"rabbitmq://{source}", str(tier), "-o", "down_requests_max=7"),
            *("--stream", "filtered", "--continue-as", PART),
        ]
        assert offload(*command[1:]).code == 0
        assert bodies(tier, PART) == TOLD[12500:18750]

    def test_the_printed_command_shows_no_secret(self) -> None:
        options = ["endpoint_url=http://here", "secret=hush", "account_key=hush", "sas_token=hush"]

        shown = _shown(options, "zstd:9")

        assert shown == [
            "--compress",
            "zstd:9",
            "-o",
            "endpoint_url=http://here",
            "-o",
            "secret=...",
            "-o",
            "account_key=...",
            "-o",
            "sas_token=...",
        ]

    def test_every_later_sync_stops_with_the_same_command(self, gap: tuple[Path, Path]) -> None:
        """Nothing on the tier records the link."""
        source, tier = gap
        go_on(source, tier)

        again = offload("sync", f"rabbitmq://{source}", tier)

        assert again.code == 1
        assert again.error.endswith(f"--stream filtered --continue-as {PART}")

    def test_a_second_gap_makes_the_command_name_the_next_part(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        go_on(source, tier)
        shutil.rmtree(source)
        write_stream(source, simple_chunks(3, first_offset=30000))

        again = offload("sync", f"rabbitmq://{source}", tier, "--stream", "filtered", "--continue-as", PART)

        assert f"stream '{PART}': the source begins at offset 30000" in again.error
        assert again.error.endswith("--stream filtered --continue-as filtered-part-3")


class TestThePart:
    def test_a_part_leaves_the_archive_unchanged(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        before = {k: v for k, v in contents(tier).items() if k.startswith("filtered/")}

        go_on(source, tier)

        assert {k: v for k, v in contents(tier).items() if k.startswith("filtered/")} == before
        assert bodies(tier, "filtered") == TOLD[:6250]
        assert verify(tier)[0] == 0

    def test_the_same_command_continues_a_part(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        go_on(source, tier)
        put_segments(source, slice(2, 4))

        go_on(source, tier)
        before = contents(tier)
        go_on(source, tier)

        assert bodies(tier, PART) == TOLD[12500:]
        assert contents(tier) == before

    def test_a_part_holds_all_of_a_source_with_another_history(self, gap: tuple[Path, Path]) -> None:
        """It also holds what both have: no data of the source depends on a comparison."""
        source, tier = gap
        put_segments(source, slice(0, 1))
        append_chunks(source, [build_chunk([b"other"] * 3, offset=6250, timestamp_ms=TIMESTAMP_MS, epoch=9)])
        sync(source, tier)
        put_segments(source, slice(0, 2))

        stopped = offload("sync", f"rabbitmq://{source}", tier)
        go_on(source, tier)

        assert "source and tier part at or before offset 6250" in stopped.error
        assert bodies(tier, PART) == TOLD[:12500]

    def test_a_part_holds_all_of_a_source_that_ends_before_the_tier(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        shutil.rmtree(source)
        write_stream(source, simple_chunks(3))

        stopped = offload("sync", f"rabbitmq://{source}", tier)
        go_on(source, tier)

        assert "the source ends at offset 9, but the tier holds it up to 6250" in stopped.error
        assert len(bodies(tier, PART)) == 9

    def test_a_part_can_continue_an_archive_with_a_damaged_end(self, gap: tuple[Path, Path]) -> None:
        """A stream takes no more data if its last chunk cannot be read."""
        source, tier = gap
        put_segments(source, slice(0, 2))
        [fragment] = tier.glob("filtered/data/*.fragment")
        raw = bytearray(fragment.read_bytes())
        raw[-5] ^= 1
        fragment.write_bytes(raw)
        assert offload("sync", f"rabbitmq://{source}", tier).code == 1

        go_on(source, tier)

        assert bodies(tier, PART) == TOLD[:12500]


class TestItIsRefused:
    def test_a_part_is_refused_if_the_source_continues_the_stream(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        put_segments(source, slice(0, 2))

        assert "the source continues stream 'filtered': sync it without a new name" in refused(source, tier)

    def test_a_part_is_refused_if_the_tier_does_not_have_the_stream(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        shutil.rmtree(tier / "filtered")

        assert "the tier has no stream 'filtered' yet" in refused(source, tier)

    def test_a_part_is_refused_if_it_holds_other_data(self, gap: tuple[Path, Path], tmp_path: Path) -> None:
        """The error proposes the next name."""
        source, tier = gap
        write_stream(tmp_path / PART, simple_chunks(6000))
        sync(tmp_path / PART, tier)

        error = refused(source, tier)

        assert f"stream '{PART}': source and tier part" in error
        assert error.endswith("--continue-as filtered-part-3")

    def test_a_part_is_refused_if_it_would_leave_out_data_of_the_source(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        write_empty(tier, PART, first_offset=12600)

        assert f"stream '{PART}' holds nothing and goes on at offset 12600" in refused(source, tier)

    def test_a_part_is_refused_if_the_source_has_a_stream_of_its_name(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        write_stream(source.parent / "other", simple_chunks(1))

        assert "the source has a stream of that name" in refused(source.parent, tier, "other")

    @pytest.mark.parametrize("streams", [(), ("--stream", "a", "--stream", "b")], ids=["none", "two"])
    def test_a_part_is_refused_unless_one_stream_is_named(
        self, gap: tuple[Path, Path], streams: tuple[str, ...]
    ) -> None:
        source, tier = gap

        ran = offload("sync", f"rabbitmq://{source}", tier, *streams, "--continue-as", PART)

        assert (ran.code, ran.error) == (
            2,
            "offload: --continue-as needs one --stream: the one that continues under the new name",
        )


def write_empty(tier: Path, stream: str, *, first_offset: int) -> None:
    from offload import StreamWriter

    with Blocking(str(tier)) as opened:
        opened.run(StreamWriter.claim(opened.offloader, stream, first_offset=first_offset))


def test_programs_continue_streams_too(gap: tuple[Path, Path]) -> None:
    """The source's other streams keep their names."""
    source, tier = gap
    write_stream(source.parent / "orders", simple_chunks(1))

    with Blocking(str(tier)) as opened:
        stopped = opened.sync(f"rabbitmq://{source.parent}")[0]
        reports = opened.sync(f"rabbitmq://{source.parent}", continue_as={"filtered": "later"})

    assert isinstance(stopped.error, Diverged)
    assert stopped.continue_as == PART
    assert [(each.source_stream, each.stream, each.error) for each in reports] == [
        ("filtered", "later", None),
        ("orders", "orders", None),
    ]
    assert bodies(tier, "later") == TOLD[12500:18750]
