"""`offload sync --new-part`: a stream that its source does not continue goes on in a new part."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from command_line import bodies, contents, formula, offload, sync, verify
from osiris_data import DATA
from osiris_writer import TIMESTAMP_MS, append_chunks, simple_chunks, write_stream

from offload import Blocking, Diverged, StreamPart
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


def go_on(source: Path, tier: Path) -> None:
    sync(source, tier, "--new-part")


def refused(source: Path, tier: Path) -> str:
    before = contents(tier)
    stopped = offload("sync", f"rabbitmq://{source}", tier, "--new-part")
    assert stopped.code == 1
    assert contents(tier) == before
    return stopped.error


class TestASyncThatStopped:
    def test_a_stopped_sync_prints_a_command_that_works(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap

        stopped = offload("sync", f"rabbitmq://{source}", tier, "-o", "down_requests_max=7", "--json")

        assert stopped.code == 1
        assert "there is a gap; see: offload help a-sync-stopped" in stopped.error
        assert (stopped.objects[0]["part"], stopped.objects[0]["diverged"]) == (1, "gap")
        command = shlex.split(stopped.error.partition("in a new part: ")[2])
        assert command == [
            *("offload", "sync", f"rabbitmq://{source}", str(tier), "-o", "down_requests_max=7"),
            *("--stream", "filtered", "--new-part"),
        ]
        ran = offload(*command[1:])
        assert ran.code == 0
        assert ran.lines[0].startswith(f"{PART}: 6250 messages in offsets [12500, 18750), version ")
        assert "filtered: part 2 begins at offset 12500; the part before ends at 6250" in ran.error
        assert bodies(tier, PART) == TOLD[12500:18750]

    def test_the_printed_command_shows_no_secret(self) -> None:
        options = ["endpoint_url=http://here", "secret=hush", "account_key=hush", "sas_token=hush"]

        shown = _shown(options, "zstd:9")

        assert " ".join(shown) == (
            "--compress zstd:9 -o endpoint_url=http://here -o secret=... -o account_key=... -o sas_token=..."
        )

    def test_every_later_sync_continues_the_part_without_an_option(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        go_on(source, tier)
        put_segments(source, slice(2, 4))

        sync(source, tier)
        before = contents(tier)
        sync(source, tier)
        go_on(source, tier)

        assert bodies(tier, PART) == TOLD[12500:]
        assert contents(tier) == before

    def test_a_second_gap_stops_the_part_and_needs_the_option_again(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        go_on(source, tier)
        shutil.rmtree(source)
        write_stream(source, [build_chunk([b"x"] * 9, offset=30000, timestamp_ms=TIMESTAMP_MS, epoch=5)])

        again = offload("sync", f"rabbitmq://{source}", tier)
        assert f"stream '{PART}': the source begins at offset 30000" in again.error
        assert again.error.endswith("--stream filtered --new-part")
        go_on(source, tier)

        assert len(bodies(tier, "filtered-part-3")) == 9
        assert bodies(tier, PART) == TOLD[12500:18750]


class TestThePart:
    def test_a_part_changes_no_data_of_the_part_before(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        before = {key: raw for key, raw in contents(tier).items() if key.startswith("filtered/data/")}

        go_on(source, tier)

        assert {k: v for k, v in contents(tier).items() if k.startswith("filtered/data/")} == before
        assert verify(tier)[0] == 0

    def test_a_part_holds_all_of_a_source_with_another_history(self, gap: tuple[Path, Path]) -> None:
        """It also holds what both have: no data of the source depends on a comparison."""
        source, tier = gap
        put_segments(source, slice(0, 1))
        append_chunks(source, [build_chunk([b"other"] * 3, offset=6250, timestamp_ms=TIMESTAMP_MS, epoch=3)])
        sync(source, tier)
        put_segments(source, slice(0, 2))

        stopped = offload("sync", f"rabbitmq://{source}", tier, "--json")
        go_on(source, tier)

        assert "source and tier part at or before offset 6250" in stopped.error
        assert stopped.objects[0]["diverged"] == "fork"
        assert bodies(tier, PART) == TOLD[:12500]

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

    def test_a_part_is_compressed_and_has_a_key_of_its_own(
        self, gap: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0=")
        keys = ("--keys", "keyenv:", "--encrypt", "tier-2026", "--compress", "zstd")
        source, tier = gap
        shutil.rmtree(tier)
        put_segments(source, slice(0, 1))
        assert offload("sync", f"rabbitmq://{source}", tier, *keys).code == 0
        put_segments(source, slice(2, 3))

        forgotten = offload("sync", f"rabbitmq://{source}", tier, "--new-part", *keys[:2])
        assert not (tier / PART).exists()
        assert offload("sync", f"rabbitmq://{source}", tier, "--new-part", *keys).code == 0

        assert forgotten.code == 1
        assert "its next part has a key of its own: name its master key with --encrypt" in forgotten.error
        assert len(list(tier.glob(f"{PART}/keys/*.key"))) == 1
        [row] = offload("inspect", tier, PART, "--json").document["fragments"]
        assert row["codec"].startswith("zstd")
        assert TOLD[12500] not in b"".join(raw for raw, _ in contents(tier).values())


class TestItIsRefused:
    def test_no_part_is_begun_if_the_source_continues_the_stream(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        put_segments(source, slice(0, 2))

        go_on(source, tier)

        assert not (tier / PART).exists()
        assert bodies(tier, "filtered") == TOLD[:12500]

    def test_no_part_is_begun_by_a_source_that_ends_before_the_tier(self, gap: tuple[Path, Path]) -> None:
        """It may be a replica that lags: its next record would be a fork of our making."""
        source, tier = gap
        shutil.rmtree(source)
        write_stream(source, simple_chunks(3))

        error = refused(source, tier)

        assert "the source ends at offset 9, but the tier holds it up to 6250" in error
        assert "no new part was begun, because the source may be a replica that lags" in error

    def test_no_part_is_begun_by_a_source_with_an_older_leader_epoch(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        put_segments(source, slice(0, 1))
        append_chunks(source, [build_chunk([b"other"] * 3, offset=6250, timestamp_ms=TIMESTAMP_MS, epoch=9)])
        sync(source, tier)
        put_segments(source, slice(0, 2))

        assert "the source's leader epoch 4 is behind 9, which is on the tier" in refused(source, tier)

    def test_the_damage_of_a_source_begins_no_part(self, gap: tuple[Path, Path]) -> None:
        source, tier = gap
        put_segments(source, slice(0, 2))
        segment = source / f"{SEGMENTS[1]}.segment"
        raw = bytearray(segment.read_bytes())
        raw[100] ^= 1
        segment.write_bytes(raw)

        offload("sync", f"rabbitmq://{source}", tier, "--new-part")

        assert not (tier / PART).exists()


def test_programs_continue_streams_too(gap: tuple[Path, Path]) -> None:
    source, tier = gap
    write_stream(source.parent / "orders", simple_chunks(1))

    with Blocking(str(tier)) as opened:
        stopped = opened.sync(f"rabbitmq://{source.parent}")[0]
        reports = opened.sync(f"rabbitmq://{source.parent}", new_part=True)

    assert isinstance(stopped.error, Diverged)
    assert stopped.can_go_on
    assert [(each.part, each.error) for each in reports] == [
        (StreamPart("filtered", 2), None),
        (StreamPart("orders"), None),
    ]


def test_the_check_of_a_follower_says_that_the_stream_goes_on(gap: tuple[Path, Path]) -> None:
    source, tier = gap
    check = ("run", "--check", f"rabbitmq://{source.parent}", tier)

    pausing, going_on = offload(*check), offload(*check, "--on-gap", "new-part")

    assert (pausing.code, going_on.code) == (1, 0)
    assert "pauses at a gap" in "\n".join(pausing.lines)
    assert "continues in a new part after a gap" in "\n".join(going_on.lines)
    assert "stream 'filtered': the source does not continue it, so a new part begins" in "\n".join(
        going_on.lines
    )
