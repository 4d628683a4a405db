"""`offload read`: it returns exactly the stored messages, from any position and in any format."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN, few
from command_line import PROGRAM, bodies, finish, formula, offload, read, start, sync
from osiris_data import DATA, MANIFEST, STREAMS, body_of, index_of, segments
from osiris_writer import TIMESTAMP_MS, simple_chunks, write_stream

from offload import AtOffset, AtTime, Plugins, StreamReader, open_tier
from offload.formats.chunk_writer import build_chunk

LOOKUPS = {stream: MANIFEST["streams"][stream]["lookups_by_osiris_1_10_3"] for stream in STREAMS}
INDEX = {stream: [row for segment in segments(stream) for row in index_of(segment)] for stream in STREAMS}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests do not change it."""
    folder = tmp_path_factory.mktemp("read") / "tier"
    sync(DATA, folder)
    return folder


def lines(tier: Path, stream: str, *options: object) -> list[dict[str, Any]]:
    return read(tier, stream, *options).objects


def offsets(tier: Path, stream: str, *options: object) -> list[int]:
    return [line["offset"] for line in lines(tier, stream, *options)]


def message_offsets(stream: str) -> list[int]:
    """Return the offsets that hold messages: all but those of tracking records (chunks of one record)."""
    tracking = {row[0] for row in INDEX[stream] if row[4] != 0}
    return [offset for offset in range(MANIFEST["streams"][stream]["next_offset"]) if offset not in tracking]


def iso(timestamp_ms: int, zone: timezone = UTC) -> str:
    moment = datetime.fromtimestamp(timestamp_ms // 1000, zone) + timedelta(milliseconds=timestamp_ms % 1000)
    return moment.isoformat(timespec="milliseconds")


class TestOffsets:
    @pytest.mark.parametrize("stream", STREAMS)
    def test_every_message_has_its_offset_at_the_broker(self, tier: Path, stream: str) -> None:
        assert offsets(tier, stream) == message_offsets(stream)

    def test_reading_from_first_is_the_default(self, tier: Path) -> None:
        assert read(tier, "tiny").stdout == read(tier, "tiny", "--from", "first").stdout

    @pytest.mark.parametrize("offset", range(11))
    def test_a_read_begins_at_the_given_offset(self, tier: Path, offset: int) -> None:
        assert offsets(tier, "tiny", "--from", offset) == list(range(offset, 10))

    def test_a_read_can_begin_within_a_sub_batch(self, tier: Path) -> None:
        """The chunk at offset 1 holds sub-batches of 100 messages. A read from 57 begins at 57, not at the
        sub-batch.
        """
        assert offsets(tier, "batches", "--from", 57, "--limit", 3) == [57, 58, 59]

    def test_a_read_within_tracking_records_begins_at_the_next_message(self, tier: Path) -> None:
        messages = set(message_offsets("batches"))
        gaps = [row[0] for row in INDEX["batches"] if row[0] not in messages]
        assert len(gaps) == 31

        for gap in gaps:
            following = [offset for offset in range(gap, 12271) if offset in messages][:1]
            ran = offload("read", tier, "batches", "--from", gap, "--limit", 1)
            assert [line["offset"] for line in ran.objects] == following
            assert (ran.code, ran.stderr) == (0, "")

    def test_a_read_from_below_the_first_offset_begins_there_with_a_note(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", simple_chunks(3, first_offset=100))
        sync(tmp_path / "orders", tmp_path / "tier")

        ran = read(tmp_path / "tier", "orders", "--from", 5)

        assert [line["offset"] for line in ran.objects] == list(range(100, 109))
        assert ran.error == "note: offset 5 is below the first; reading starts at offset 100"

    def test_a_read_from_the_end_prints_nothing_and_succeeds(self, tier: Path) -> None:
        ran = offload("read", tier, "tiny", "--from", 10)

        assert (ran.code, ran.stdout, ran.stderr) == (0, b"", "")

    @pytest.mark.parametrize("offset", [11, 1010, 2**64 - 1])
    def test_a_read_from_beyond_the_end_is_an_error(self, tier: Path, offset: int) -> None:
        ran = offload("read", tier, "tiny", "--from", offset)

        assert (ran.code, ran.stdout) == (1, b"")
        assert ran.error == f"offload: stream 'tiny' has offsets [0, 10); {offset} is beyond"

    @pytest.mark.parametrize("stream", STREAMS)
    def test_last_begins_at_the_last_chunk_that_holds_messages(self, tier: Path, stream: str) -> None:
        last = LOOKUPS[stream]["special"]["last"]

        assert offsets(tier, stream, "--from", "last") == [
            offset for offset in message_offsets(stream) if offset >= last
        ]

    @pytest.mark.parametrize("stream", STREAMS)
    def test_next_prints_nothing_and_succeeds(self, tier: Path, stream: str) -> None:
        ran = offload("read", tier, stream, "--from", "next")

        assert (ran.code, ran.stdout, ran.stderr) == (0, b"", "")


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    """Set the time zone of the process nine hours ahead of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


class TestTimes:
    @pytest.mark.parametrize("stream", STREAMS)
    def test_the_time_of_a_chunk_finds_the_first_chunk_with_that_time(self, tier: Path, stream: str) -> None:
        messages = message_offsets(stream)
        for timestamp_ms in sorted({row[1] for row in INDEX[stream]})[:: 1 if CAMPAIGN else 12]:
            begin = next(row[0] for row in INDEX[stream] if row[1] >= timestamp_ms)
            following = [offset for offset in messages if offset >= begin][:1]

            assert offsets(tier, stream, "--from", f"@{timestamp_ms}", "--limit", 1) == following

    def test_a_millisecond_later_finds_the_next_chunk(self, tier: Path) -> None:
        assert offsets(tier, "filtered", "--from", f"@{TIMESTAMP_MS}", "--limit", 1) == [0]
        assert offsets(tier, "filtered", "--from", f"@{TIMESTAMP_MS + 1}", "--limit", 1) == [250]

    def test_a_time_is_utc_unless_it_says_otherwise(self, tier: Path, in_tokyo: None) -> None:
        at = TIMESTAMP_MS + 30_000
        plain = iso(at).removesuffix("+00:00")
        elsewhere = iso(at, timezone(timedelta(hours=-5, minutes=-30)))

        for text in (plain, plain + "Z", plain + "+00:00", elsewhere, plain.replace("T", " "), f"@{at}"):
            assert offsets(tier, "filtered", "--from", text, "--limit", 1) == [7500], text

    def test_a_date_alone_means_its_first_moment(self, tier: Path) -> None:
        assert offsets(tier, "filtered", "--from", "2023-11-14", "--limit", 1) == [0]
        assert offsets(tier, "filtered", "--from", "2023-11-15", "--limit", 1) == []

    def test_a_time_finer_than_a_millisecond_rounds_up(self, tier: Path) -> None:
        assert offsets(tier, "filtered", "--from", "2023-11-14T22:13:20.000000Z", "--limit", 1) == [0]
        assert offsets(tier, "filtered", "--from", "2023-11-14T22:13:20.000001Z", "--limit", 1) == [250]

    @pytest.mark.parametrize("text", ["0001-01-01", "@0", "@-5", "1970-01-01T00:00:00+14:00"])
    def test_a_time_before_all_chunks_finds_the_first(self, tier: Path, text: str) -> None:
        ran = read(tier, "tiny", "--from", text, "--limit", 1)

        assert [line["offset"] for line in ran.objects] == [0]
        assert ran.stderr == ""

    @pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999Z", "@999999999999999999", "2099-01-01"])
    def test_a_time_after_all_chunks_prints_nothing_and_says_why(self, tier: Path, text: str) -> None:
        ran = offload("read", tier, "tiny", "--from", text)

        assert (ran.code, ran.stdout) == (0, b"")
        assert ran.error.startswith("note: nothing to read from ")
        assert ran.error.endswith("stream 'tiny' has none later than 2026-11-21T05:29:59.115Z")

    def test_a_time_shared_by_two_segments_finds_the_earlier_chunk(self, tmp_path: Path) -> None:
        times = [1000, 2000, 3000, 3000, 3000, 4000]
        write_stream(tmp_path / "orders", simple_chunks(6, timestamps_ms=times), segment_chunks=3)
        sync(tmp_path / "orders", tmp_path / "tier")

        assert offsets(tmp_path / "tier", "orders", "--from", "@3000", "--limit", 1) == [6]
        assert offsets(tmp_path / "tier", "orders", "--from", "@2001", "--limit", 1) == [6]


class TestLookupsOfOsiris:
    """The tier serves the chunk at which a reader of osiris itself attaches, by offset and by time."""

    @pytest.mark.parametrize("stream", STREAMS)
    def test_the_tier_finds_the_chunks_that_osiris_finds(self, tier: Path, stream: str) -> None:
        end = MANIFEST["streams"][stream]["next_offset"]
        specs = [
            (AtOffset(int(text)), chunk)
            for text, chunk in LOOKUPS[stream]["offset"].items()
            if int(text) <= end  # osiris clamps an offset beyond the end; here it is an error, tested above
        ]
        specs += [(AtTime(int(text)), chunk) for text, chunk in LOOKUPS[stream]["timestamp_ms"].items()]
        assert len(specs) > 50

        assert asyncio.run(self._chunks(tier, stream, [spec for spec, _ in specs])) == [c for _, c in specs]

    async def _chunks(self, tier: Path, stream: str, specs: list[Any]) -> list[int]:
        """Return the first chunk that is fetched for each spec, or `next_offset` if none is fetched."""
        found = []
        async with open_tier(str(tier), plugins=Plugins.find()) as offloader:
            reader = await StreamReader.open(offloader, stream)
            for spec in specs:
                windows = reader.windows(await reader.offset_of(spec))
                window = await anext(windows, None)
                await windows.aclose()
                found.append(reader.manifest.next_offset if window is None else int(window.rows["offset"][0]))
        return found


class TestLimit:
    @pytest.mark.parametrize("limit", [0, 1, 2, 249, 250, 251, 12240, 99999])
    def test_limit_counts_only_messages(self, tier: Path, limit: int) -> None:
        found = offsets(tier, "batches", "--limit", limit)

        assert found == message_offsets("batches")[:limit]

    def test_limit_counts_from_the_given_position(self, tier: Path) -> None:
        assert offsets(tier, "filtered", "--from", 249, "--limit", 3) == [249, 250, 251]

    def test_limit_0_of_an_unknown_stream_is_still_an_error(self, tier: Path) -> None:
        assert offload("read", tier, "orders", "--limit", 0).code == 1


class TestFormats:
    def test_jsonl_has_these_keys_in_this_order(self, tier: Path) -> None:
        plain = lines(tier, "filtered", "--limit", 1)[0]
        decoded = lines(tier, "filtered", "--limit", 1, "--decode", "amqp")[0]

        assert list(plain) == ["offset", "timestamp", "value", "encoding"]  # a raw AMQP record is not text
        sections = ["properties", "application_properties", "annotations"]
        assert list(decoded) == ["offset", "timestamp", "value", *sections]

    @pytest.mark.parametrize("stream", STREAMS)
    def test_jsonl_says_when_in_utc_with_milliseconds(self, tier: Path, stream: str) -> None:
        times = {row[0]: row[1] for row in INDEX[stream]}

        for line in lines(tier, stream):
            if line["offset"] in times:
                assert line["timestamp"] == iso(times[line["offset"]]).replace("+00:00", "Z")

    @pytest.mark.parametrize("stream", STREAMS)
    def test_jsonl_and_amqp_give_every_body_as_text(self, tier: Path, stream: str) -> None:
        found = [line["value"].encode() for line in lines(tier, stream, "--decode", "amqp")]

        assert found == formula(MANIFEST["streams"][stream]["messages"])

    def test_jsonl_of_raw_records_is_base64_of_their_bytes(self, tier: Path) -> None:
        records = lengths_and_bytes(read(tier, "batches", "--format", "raw").stdout)

        found = lines(tier, "batches")

        assert {line["encoding"] for line in found} == {"base64"}
        assert [base64.b64decode(line["value"], validate=True) for line in found] == records
        assert all(record.endswith(body_of(i)) for i, record in enumerate(records))

    @pytest.mark.parametrize("stream", STREAMS)
    def test_raw_prints_a_length_and_the_bytes_with_or_without_decoding(
        self, tier: Path, stream: str
    ) -> None:
        records = lengths_and_bytes(read(tier, stream, "--format", "raw").stdout)

        assert len(records) == MANIFEST["streams"][stream]["messages"]
        assert all(record.endswith(body_of(i)) for i, record in enumerate(records))

    def test_body_prints_the_bytes_of_a_raw_record_and_a_newline(self, tier: Path) -> None:
        records = lengths_and_bytes(read(tier, "tiny", "--format", "raw").stdout)

        assert read(tier, "tiny", "--format", "body").stdout == b"".join(record + b"\n" for record in records)

    def test_tiny_has_properties_application_properties_and_annotations(self, tier: Path) -> None:
        for i, line in enumerate(lines(tier, "tiny", "--decode", "amqp")):
            assert line["properties"]["message_id"] == f"m{i}"
            assert line["properties"]["content_type"] == "application/json"
            assert line["properties"]["creation_time"] == iso(1_700_000_000_000 + i * 1000).replace(
                "+00:00", "Z"
            )
            assert line["application_properties"] == {"n": i, "s": f"v{i}"}
            assert line["annotations"]["x-routing-key"] == "tiny"


def lengths_and_bytes(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        found.append(raw[at + 4 : at + 4 + size])
        assert len(found[-1]) == size
        at += 4 + size
    return found


def amqp_value(encoded: bytes) -> bytes:
    """Return a message of one amqp-value section."""
    return b"\x00Sw" + encoded


RECORDS: dict[str, tuple[bytes, bytes, Any]] = {  # the record, its output as `body`, its `value` in jsonl
    "text": (b"plain text", b"plain text", "plain text"),
    "empty": (b"", b"", ""),
    "two lines": (b'a\nb\x00"\\', b'a\nb\x00"\\', 'a\nb\x00"\\'),
    "beyond ascii": ("grüße 😀\u2028".encode(), "grüße 😀\u2028".encode(), "grüße 😀\u2028"),
    "no text": (b"\xff\xfe\x00", b"\xff\xfe\x00", b"\xff\xfe\x00"),
    "data": (b"\x00Su\xa0\x03abc", b"abc", "abc"),
    "data that is no text": (b"\x00Su\xa0\x02\xff\x00", b"\xff\x00", b"\xff\x00"),
    "two data sections": (b"\x00Su\xa0\x02ab\x00Su\xa0\x01c", b"abc", "abc"),
    "long data": (b"\x00Su\xb0\x00\x00\x01\x00" + b"x" * 256, b"x" * 256, "x" * 256),
    "value string": (amqp_value(b"\xa1\x04gr\xc3\xbc"), "grü".encode(), "grü"),
    "value binary": (amqp_value(b"\xa0\x02\xff\x00"), b"\xff\x00", b"\xff\x00"),
    "value map": (amqp_value(b"\xc1\x06\x02\xa1\x01kT\x07"), b'{"k":7}', {"k": 7}),
    "value list": (amqp_value(b"\xc0\x04\x02T\x01A"), b"[1,true]", [1, True]),
    "value null": (amqp_value(b"\x40"), b"null", None),
    "cut short": (b"\x00Su\xa0\x09abc", b"\x00Su\xa0\x09abc", b"\x00Su\xa0\x09abc"),
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with one chunk of every kind of record."""
    folder = tmp_path_factory.mktemp("mixed")
    records = [record for record, _, _ in RECORDS.values()]
    write_stream(folder / "mixed", [build_chunk(records, offset=0, timestamp_ms=1, epoch=1)])
    sync(folder / "mixed", folder / "tier")
    return folder / "tier"


class TestEveryKindOfRecord:
    def test_raw_prints_the_published_bytes(self, mixed: Path) -> None:
        found = lengths_and_bytes(read(mixed, "mixed", "--format", "raw", "--decode", "amqp").stdout)

        assert found == [record for record, _, _ in RECORDS.values()]

    def test_body_prints_data_strings_binaries_json_or_raw_records(self, mixed: Path) -> None:
        found = read(mixed, "mixed", "--format", "body", "--decode", "amqp").stdout

        assert found == b"".join(body + b"\n" for _, body, _ in RECORDS.values())

    def test_jsonl_gives_text_json_or_base64(self, mixed: Path) -> None:
        for line, (name, (_, _, value)) in zip(
            lines(mixed, "mixed", "--decode", "amqp"), RECORDS.items(), strict=True
        ):
            if isinstance(value, bytes):
                assert line["encoding"] == "base64", name
                assert base64.b64decode(line["value"], validate=True) == value, name
            else:
                assert line["value"] == value, name
                assert "encoding" not in line, name

    def test_jsonl_without_decoding_gives_the_record(self, mixed: Path) -> None:
        for line, (record, _, _) in zip(lines(mixed, "mixed"), RECORDS.values(), strict=True):
            value = line["value"]
            found = base64.b64decode(value) if line.get("encoding") == "base64" else value.encode()
            assert found == record

    def test_no_content_breaks_the_line_of_a_message(self, mixed: Path) -> None:
        for options in ((), ("--decode", "amqp")):
            raw = read(mixed, "mixed", *options).stdout
            assert raw.count(b"\n") == len(RECORDS)
            assert all(json.loads(line) for line in raw.split(b"\n")[:-1])

    def test_each_kind_of_record_alone_reads_as_among_others(self, tmp_path: Path) -> None:
        """A chunk of one kind takes other paths through the decoder than a mixed one."""
        kinds = list(RECORDS.values())
        chunks = [
            build_chunk([record] * 2, offset=2 * i, timestamp_ms=1, epoch=1)
            for i, (record, _, _) in enumerate(kinds)
        ]
        write_stream(tmp_path / "alone", chunks)
        sync(tmp_path / "alone", tmp_path / "tier")

        found = read(tmp_path / "tier", "alone", "--format", "body", "--decode", "amqp").stdout

        assert found == b"".join((body + b"\n") * 2 for _, body, _ in kinds)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with one stream of about 30 MB, which is far more than a pipe buffers."""
    folder = tmp_path_factory.mktemp("large")
    records = [b"\x00Su\xb0\x00\x00\x04\x00" + b"%01024d" % i for i in range(200)]
    chunks = (build_chunk(records, offset=200 * i, timestamp_ms=i, epoch=1) for i in range(150))
    write_stream(folder / "large", chunks)
    sync(folder / "large", folder / "tier")
    return folder / "tier"


class TestClosedPipes:
    @few("formats of a read whose pipe is closed; make test has two of three", 2)
    @pytest.mark.parametrize("options", [[], ["--format", "body", "--decode", "amqp"], ["--format", "raw"]])
    def test_the_reader_of_a_pipe_may_close_it(self, large: Path, options: list[str]) -> None:
        process = start("read", large, "large", *options)
        assert process.stdout is not None
        assert len(process.stdout.read(1000)) == 1000
        process.stdout.close()
        process.stdout = None

        ran = finish(process)

        assert (ran.code, ran.stderr) == (0, "")

    def test_head_ends_a_read_without_an_error(self, large: Path) -> None:
        script = '"$@" | head -1; echo ${PIPESTATUS[0]}'
        ran = subprocess.run(
            ["bash", "-c", script, "bash", *PROGRAM, "read", large, "large", "--limit", "20000"],
            capture_output=True,
            check=True,
        )

        line, code, rest = ran.stdout.split(b"\n")
        assert json.loads(line)["offset"] == 0
        assert (code, rest, ran.stderr) == (b"0", b"", b"")

    @few("commands that write into a closed pipe; make test has two of four", 2)
    @pytest.mark.parametrize("command", [["ls"], ["inspect", "large"], ["verify"], ["--help"]])
    def test_a_pipe_closed_before_the_first_byte_is_no_error(self, large: Path, command: list[str]) -> None:
        reading, writing = os.pipe()
        os.close(reading)

        process = start(command[0], large, *command[1:], stdout=writing)
        os.close(writing)
        ran = finish(process)

        assert (ran.code, ran.stderr) == (0, "")

    def test_a_full_disk_behind_stdout_is_an_error_of_one_line(self, large: Path) -> None:
        with Path("/dev/full").open("wb") as full:
            ran = finish(start("read", large, "large", stdout=full))

        assert ran.code == 1
        assert "No space left" in ran.error


class TestWholeAndInOrder:
    def test_a_large_stream_comes_back_byte_for_byte(self, large: Path) -> None:
        assert bodies(large, "large") == [b"%01024d" % i for i in range(200)] * 150


@pytest.mark.parametrize("at_once", [1, 16])
def test_any_number_of_concurrent_requests_returns_the_same_messages(tier: Path, at_once: int) -> None:
    assert offsets(tier, "filtered", "--at-once", at_once) == message_offsets("filtered")


def test_the_number_of_concurrent_requests_is_at_least_one(tier: Path) -> None:
    assert offload("read", tier, "tiny", "--at-once", 0).code == 2


def test_ctrl_c_says_what_was_printed_and_how_to_continue(large: Path) -> None:
    """The pipe is full when the signal arrives, so the command waits in the middle of its work."""
    process = start("read", large, "large", bufsize=0)
    assert process.stdout is not None
    first = process.stdout.read(1000)

    process.send_signal(signal.SIGINT)
    ran = finish(process)

    assert ran.code == 130
    lines = (first + ran.stdout).splitlines()
    last = json.loads(lines[-1])["offset"]
    assert [json.loads(lines[0])["offset"], last] == [0, len(lines) - 1]
    assert ran.error == (
        f"offload: stopped; {len(lines)} messages printed, up to offset {last}; resume with --from {last + 1}"
    )


class TestTheEnd:
    @pytest.mark.parametrize(
        ("spec", "end"), [("7", 7), ("0", 0), ("10", 10), ("99", 10), ("next", 10), ("first", 0), ("-1h", 10)]
    )
    def test_reading_ends_before_the_position(self, tier: Path, spec: str, end: int) -> None:
        assert offsets(tier, "tiny", "--to", spec) == [n for n in message_offsets("tiny") if n < end]

    def test_a_time_ends_before_the_first_chunk_of_it(self, tier: Path) -> None:
        chunks = [(row[0], row[1]) for row in INDEX["tiny"]]
        for offset, timestamp_ms in chunks:
            first = min(start for start, each_ms in chunks if each_ms >= timestamp_ms)
            found = offsets(tier, "tiny", "--to", f"@{timestamp_ms}")
            assert found == [n for n in message_offsets("tiny") if n < first], offset

    @pytest.mark.parametrize("to", ["4", f"@{TIMESTAMP_MS + 5}"])
    def test_a_damaged_chunk_at_the_end_is_not_fetched(self, tmp_path: Path, to: str) -> None:
        chunks = [
            build_chunk([bytes(2**19)], offset=n, timestamp_ms=TIMESTAMP_MS + n + (n > 3), epoch=1)
            for n in range(5)
        ]
        write_stream(tmp_path / "orders", chunks)
        sync(tmp_path / "orders", tmp_path / "tier")
        [fragment] = (tmp_path / "tier").rglob("*.fragment")
        raw = bytearray(fragment.read_bytes())
        raw[raw.index(chunks[4]) + len(chunks[4]) - 1] ^= 1
        fragment.write_bytes(raw)

        assert offsets(tmp_path / "tier", "orders", "--to", to) == [0, 1, 2, 3]

    def test_a_limit_and_an_end_hold_both(self, tier: Path) -> None:
        assert offsets(tier, "tiny", "--from", 2, "--to", 8, "--limit", 3) == message_offsets("tiny")[2:5]
        assert offsets(tier, "tiny", "--from", 6, "--to", 8, "--limit", 3) == [6, 7]

    def test_a_relative_time_counts_from_now(self, tier: Path, tmp_path: Path) -> None:
        now_ms = time.time_ns() // 1_000_000
        ages_ms = (7_200_000, 60_000)
        chunks = [
            build_chunk([b"old", b"new"][n : n + 1], offset=n, timestamp_ms=now_ms - age, epoch=1)
            for n, age in enumerate(ages_ms)
        ]
        write_stream(tmp_path / "orders", chunks)
        sync(tmp_path / "orders", tmp_path / "tier")
        assert offsets(tmp_path / "tier", "orders", "--from", "-1h") == [1]
        assert offsets(tmp_path / "tier", "orders", "--to", "-1h") == [0]
        assert offsets(tmp_path / "tier", "orders", "--from", "-3h") == [0, 1]

    def test_a_reader_that_follows_prints_what_is_synced_later(self, tmp_path: Path) -> None:
        chunks = [*simple_chunks(6, records=5)]
        write_stream(tmp_path / "orders", chunks[:3])
        sync(tmp_path / "orders", tmp_path / "tier")

        process = start("read", tmp_path / "tier", "orders", "--follow", "--from", 10, "--to", 28)
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())["offset"] for _ in range(5)]
        assert process.poll() is None  # it waits
        shutil.rmtree(tmp_path / "orders")
        write_stream(tmp_path / "orders", chunks)
        sync(tmp_path / "orders", tmp_path / "tier")
        ran = finish(process)

        assert ran.code == 0, ran.error
        assert [*seen, *(line["offset"] for line in ran.objects)] == [*range(10, 28)]

    def test_ctrl_c_ends_a_reader_that_waits(self, tier: Path) -> None:
        process = start("read", tier, "tiny", "--follow", "--from", 9)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["offset"] == 9
        process.send_signal(signal.SIGINT)

        ran = finish(process)

        assert ran.code == 130
        assert "1 message printed, up to offset 9; resume with --from 10" in ran.error
