"""Bad input: each problem is reported in one line with the right exit code, and no data is lost.

Some tests mount a full or a read-only file system in a user namespace, since root ignores permission bits.
These tests fail on a machine without such namespaces.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import campaign, few
from command_line import (
    PROGRAM,
    SOURCE,
    Ran,
    bodies,
    contents,
    finish,
    formula,
    keys,
    offload,
    start,
    sync,
    verify,
)
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.checksums import crc32c
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment import DESCRIPTION, FragmentTail
from offload.formats.fragment_trailer import FRAGMENT_FORMAT_VERSION, HEADER, TRAILER
from offload.formats.keys import escape
from offload.formats.root import ROOT_FORMAT_VERSION, ROOT_HEADER
from offload.formats.sections import SECTION
from offload.ground.errors import OffloadError
from offload.model.compression import BlockCodec


def refused(code: int, *arguments: object) -> str:
    """Return the only line on stderr of a command that fails and prints nothing on stdout."""
    ran = offload(*arguments)
    assert (ran.code, ran.stdout) == (code, b""), ran
    assert "Traceback" not in ran.stderr
    return ran.error


def rabbit(path: Path) -> str:
    return f"rabbitmq://{path}"


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A tier with the stream `tiny`. A test may damage it."""
    sync(DATA / "tiny", tmp_path / "good")
    return tmp_path / "good"


class TestSources:
    def test_a_sync_refuses_a_source_that_does_not_exist(self, tmp_path: Path) -> None:
        line = refused(1, "sync", rabbit(tmp_path / "nowhere"), tmp_path / "tier")

        assert line == f"offload: rabbitmq://{tmp_path}/nowhere does not exist"
        assert not (tmp_path / "tier").exists()

    def test_a_sync_refuses_a_source_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("hello")

        line = refused(1, "sync", rabbit(tmp_path / "file"), tmp_path / "tier")

        assert line.endswith("is not a folder")

    def test_a_sync_refuses_a_folder_without_streams(self, tmp_path: Path) -> None:
        (tmp_path / "folder" / "below").mkdir(parents=True)

        line = refused(1, "sync", rabbit(tmp_path / "folder"), tmp_path / "tier")

        assert line.endswith("holds no stream")
        assert not (tmp_path / "tier").exists()

    @pytest.mark.parametrize("keep_bytes", [0, 5, 8, 8 + 29, 8 + 29 * 9 + 28])
    def test_the_newest_index_cut_short_is_a_torn_tail(self, tmp_path: Path, keep_bytes: int) -> None:
        """As after a crash: a chunk counts if the index has its whole record."""
        shutil.copytree(DATA / "tiny", tmp_path / "tiny")
        os.truncate(tmp_path / "tiny" / f"{0:020}.index", keep_bytes)

        [report] = sync(tmp_path / "tiny", tmp_path / "tier").objects

        assert report["messages"] == max(keep_bytes - 8, 0) // 29

    @pytest.mark.parametrize("keep_bytes", [0, 5, 8, 8 + 29, 8 + 29 * 5 + 28, 8 + 29 * 21])
    def test_a_sealed_index_cut_short_ends_the_stream_before_it(
        self, tmp_path: Path, keep_bytes: int
    ) -> None:
        source = tmp_path / "filtered"
        shutil.copytree(DATA / "filtered", source)
        os.truncate(source / f"{6250:020}.index", keep_bytes)

        ran = offload("sync", rabbit(source), tmp_path / "tier", "--json")

        assert (ran.code, ran.objects[0]["next_offset"]) == (1, 6250)
        assert "stream 'filtered'" in ran.error
        assert f"{6250:020}.index" in ran.error
        assert bodies(tmp_path / "tier", "filtered") == formula(6250)

    @pytest.mark.parametrize("kind", ["segment", "index"])
    @pytest.mark.parametrize(("number", "kept"), [(0, 0), (6250, 6250), (18750, 18750)])
    def test_a_bad_magic_ends_the_stream_before_it(
        self, tmp_path: Path, kind: str, number: int, kept: int
    ) -> None:
        source = tmp_path / "filtered"
        shutil.copytree(DATA / "filtered", source)
        file = source / f"{number:020}.{kind}"
        file.write_bytes(b"JUNK" + file.read_bytes()[4:])

        ran = offload("sync", rabbit(source), tmp_path / "tier", "--json")

        assert (ran.code, ran.objects[0]["next_offset"]) == (1, kept)
        assert "magic" in ran.error
        assert file.name in ran.error
        assert (tmp_path / "tier").exists() == bool(kept)

    @pytest.mark.parametrize("kind", ["segment", "index"])
    def test_a_newer_version_of_the_brokers_format_says_so(self, tmp_path: Path, kind: str) -> None:
        shutil.copytree(DATA / "tiny", tmp_path / "tiny")
        file = tmp_path / "tiny" / f"{0:020}.{kind}"
        file.write_bytes(file.read_bytes()[:7] + b"\x02" + file.read_bytes()[8:])

        ran = offload("sync", rabbit(tmp_path / "tiny"), tmp_path / "tier")

        assert ran.code == 1
        assert f"{file.name} has version 2; this program reads version 1" in ran.error

    def test_a_damaged_last_chunk_is_dropped_as_osiris_would(self, tmp_path: Path) -> None:
        shutil.copytree(DATA / "tiny", tmp_path / "tiny")
        segment = tmp_path / "tiny" / f"{0:020}.segment"
        segment.write_bytes(segment.read_bytes()[:-100] + bytes(100))

        [report] = sync(tmp_path / "tiny", tmp_path / "tier").objects

        assert report["next_offset"] == 9

    def test_an_older_history_behind_the_tiers_says_which_epoch_it_has(self, tmp_path: Path) -> None:
        """The source is the replica of a deposed leader. Retention removed exactly what the tier has."""
        chunks = [build_chunk([b"x"], offset=i, timestamp_ms=1, epoch=7) for i in range(2)]
        write_stream(tmp_path / "orders", chunks)
        sync(tmp_path / "orders", tmp_path / "tier")
        shutil.rmtree(tmp_path / "orders")
        write_stream(tmp_path / "orders", [build_chunk([b"x"], offset=2, timestamp_ms=1, epoch=6)])
        before = contents(tmp_path / "tier")

        ran = offload("sync", rabbit(tmp_path / "orders"), tmp_path / "tier")

        assert ran.code == 1
        assert "leader epoch 6 is behind 7" in ran.error
        assert contents(tmp_path / "tier") == before


CLAIMS = {"data": (32, b"\xff\xff\xff\xf0"), "trailer": (36, b"\xff\xff\xff\xf0"), "both": (32, b"\x7f" * 8)}


class TestHeadersThatClaimGigabytes:
    """A length in a file is compared with the size of the file before any memory is allocated."""

    @pytest.fixture(autouse=True)
    def little_memory(self) -> Iterator[None]:
        """Limit the memory of a process to 1 GiB more than it uses now."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
        yield
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    @pytest.mark.parametrize("place", ["newest", "sealed"])
    @pytest.mark.parametrize("claim", CLAIMS)
    def test_a_chunk_that_claims_4_gib_takes_no_memory(self, tmp_path: Path, claim: str, place: str) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        write_stream(source, simple_chunks(20), segment_chunks=10)
        segment = source / f"{0 if place == 'sealed' else 30:020}.segment"
        raw = segment.read_bytes()
        at = raw.index(b"P\0", raw.index(b"message")) if place == "sealed" else raw.rindex(b"P\0\0\3")
        field, value = CLAIMS[claim]
        segment.write_bytes(raw[: at + field] + value + raw[at + field + len(value) :])

        ran = offload("sync", rabbit(source), tier, "--json")

        [report] = ran.objects
        if place == "newest":  # a torn tail
            assert (ran.code, report["next_offset"]) == (0, 57)
        else:
            assert (ran.code, report["next_offset"]) == (1, 3)
            assert "offset 3" in ran.error
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(report["next_offset"])]

    def test_an_index_that_claims_a_chunk_of_4_gib_takes_no_memory(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        write_stream(source, simple_chunks(20), segment_chunks=10)
        index = source / f"{0:020}.index"
        raw = bytearray(index.read_bytes())
        at = 8 + 29 * 5 + 24
        raw[at : at + 4] = b"\xff\xff\xff\xf0"
        index.write_bytes(raw)

        ran = offload("sync", rabbit(source), tier)

        assert ran.code == 1
        assert index.name in ran.error or f"{0:020}.segment" in ran.error

    def test_objects_of_a_tier_that_claim_gigabytes_take_no_memory(self, tier: Path) -> None:
        """The counts and lengths are in the root and in a fragment's tail. Every checksum is correct."""
        root = max((tier / "tiny/metadata").iterdir())
        [fragment] = (tier / "tiny/data").iterdir()
        size_bytes = fragment.stat().st_size
        sound = FragmentTail.decode(fragment.read_bytes(), where="memory", size_bytes=size_bytes)
        trailer = size_bytes - TRAILER.size_bytes
        directory = trailer - len(sound.sections) * SECTION.size_bytes
        description = sound.sections["description"].position
        for path, layout, field, start_of in (
            (root, ROOT_HEADER, "entry_count", 0),
            (root, ROOT_HEADER, "running_count", 0),
            (root, ROOT_HEADER, "stream_size_bytes", 0),
            (fragment, TRAILER, "chunk_count", trailer),
            (fragment, TRAILER, "section_count", trailer),
            (fragment, TRAILER, "data_size_bytes", trailer),
            (fragment, TRAILER, "size_bytes", trailer),
            *((fragment, SECTION, name, directory) for name in ("size_bytes", "plain_size_bytes")),
            *((fragment, DESCRIPTION, each.name, description) for each in DESCRIPTION.fields),
        ):
            before = path.read_bytes()
            raw = bytearray(before)
            at = start_of + layout.offset_of(field)
            raw[at : at + 4] = b"\xff\xff\xff\xf0"
            if path == fragment:
                seal(raw, sound)
            else:
                raw[-4:] = crc32c(bytes(raw[:-4])).to_bytes(4, "big")
            path.write_bytes(raw)

            for command in (("read", tier, "tiny"), ("verify", tier)):
                ran = offload(*command)
                assert ran.code == 1, (field, command)
                assert path.name in ran.stderr + ran.text, (field, command)
                assert "Traceback" not in ran.stderr
            path.write_bytes(before)


def seal(raw: bytearray, sound: FragmentTail) -> None:
    """Correct the checksums of a fragment's tail. `sound` is the tail before it was changed."""
    trailer = len(raw) - TRAILER.size_bytes
    directory = trailer - len(sound.sections) * SECTION.size_bytes
    for number, section in enumerate(sound.sections.values()):
        at = directory + number * SECTION.size_bytes + SECTION.offset_of("checksum")
        raw[at : at + 4] = crc32c(bytes(raw[section.position : section.stop])).to_bytes(4, "big")
    at = trailer + TRAILER.offset_of("tail_checksum")
    raw[at : at + 4] = crc32c(bytes(raw[sound.trailer.tail_start : trailer])).to_bytes(4, "big")
    raw[-4:] = crc32c(bytes(raw[trailer:-4])).to_bytes(4, "big")


MALFORMED = (
    "", "yesterday", "-1", "1.5", "0x10", "@", "@x", "@1.5", "@" + "9" * 19, "first ", "LAST", "\n",
    "2023-13-01", "2023-11-14T25:00", "2023-11-14T22:13:20+99:00", "18446744073709551616", "9" * 25, "\u0663",
)  # fmt: skip


class TestArguments:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("sync", "kafka:///var/lib/kafka", "TIER"),
            ("sync", "var/lib/rabbitmq", "TIER"),
            ("sync", "rabbitmq://", "TIER"),
            ("sync", SOURCE, "s4://bucket/prefix"),
            ("sync", SOURCE, "file://"),
            ("ls", "s4://bucket"),
            ("inspect", "s4://bucket", "tiny"),
            ("verify", "s4://bucket"),
            ("read", "s4://bucket", "tiny"),
            ("read", "TIER", "tiny", "--decode", "protobuf"),
        ],
    )
    def test_a_command_refuses_a_scheme_or_an_encoding_that_no_plugin_has(
        self, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        named = [str(tmp_path / "tier") if argument == "TIER" else argument for argument in arguments]

        line = refused(2, *named)

        assert line.startswith("offload: ")
        assert not (tmp_path / "tier").exists()

    def test_the_error_about_an_unknown_scheme_lists_the_known_ones(self, tmp_path: Path) -> None:
        assert "rabbitmq" in refused(2, "sync", "kafka:///x", tmp_path / "tier")
        assert "file" in refused(2, "ls", "s4://bucket")

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (("ls", "s3:/bucket/x"), "as in s3://bucket/x;"),
            (("sync", SOURCE, "S3:/bucket/x"), "./S3:…"),
            (("check", "file:/srv/tier"), "as in file:///srv/tier;"),
            (("sync", SOURCE, "s3//bucket/x"), "s3://bucket/x"),
            (("run", "rabbitmq//srv/stream", "TIER"), "rabbitmq://srv/stream"),
            (("verify", "gs:bucket"), "gs://"),
            (("sync", "rocketmq:/srv/store", "TIER"), "makes three slashes, as in rocketmq:///srv/store;"),
            (("sync", "rabbitmq-queues:/srv/node", "TIER"), "as in rabbitmq-queues:///srv/node;"),
            (("ls", "localhost:15599"), "use SCHEME://localhost:15599, with a scheme that `offload plugins`"),
            (("sync", "rabbitmq:/var/lib/rabbitmq", "TIER"), "as in rabbitmq:///var/lib/rabbitmq;"),
            (("ls", "C:\\tier"), "Windows"),
            (("ls", "c:/tier"), "Windows"),
            (("ls", "\\\\host\\tier"), "Windows"),
            (("sync", "rabbitmq://host:5552/", "TIER"), "its folder"),
            (("sync", "RabbitMQ://guest:secret@host", "TIER"), "its folder"),
            (("sync", "rabbitmq://[::1]:5672", "TIER"), "its folder"),
        ],
    )
    def test_a_malformed_url_creates_no_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], hint: str
    ) -> None:
        monkeypatch.chdir(tmp_path)

        line = refused(2, *["tier" if argument == "TIER" else argument for argument in arguments])

        assert hint in line
        assert "secret" not in line
        assert [*tmp_path.iterdir()] == []

    def test_a_path_can_name_a_folder_with_a_colon(self, tmp_path: Path) -> None:
        done = offload("sync", f"RABBITMQ://{Path(SOURCE.partition('://')[2])}", tmp_path / "a:b")

        assert done.code == 0
        assert (tmp_path / "a:b/tier.anchor").exists()

    @few("malformed positions; make test has a third of them", 3)
    @pytest.mark.parametrize(
        "spec",
        MALFORMED,
    )
    def test_a_malformed_position_is_an_error(self, tier: Path, spec: str) -> None:
        line = refused(2, "read", tier, "tiny", f"--from={spec}")

        assert "is not a position" in line or "is not an offset" in line

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--frobnicate",),
            ("frobnicate",),
            ("read",),
            ("read", "TIER", "tiny", "--limit", "-1"),
            ("read", "TIER", "tiny", "--limit", "many"),
            ("read", "TIER", "tiny", "--format", "xml"),
            ("read", "TIER", "tiny", "more"),
            ("ls",),
            ("ls", "TIER", "--frobnicate"),
            ("sync", SOURCE),
            ("sync", SOURCE, "TIER", "--stream"),
        ],
    )
    def test_unknown_commands_options_and_values_are_one_error(
        self, tier: Path, arguments: tuple[str, ...]
    ) -> None:
        ran = offload(*[tier if argument == "TIER" else argument for argument in arguments])

        assert (ran.code, ran.stdout) == (2, b"")
        assert "Traceback" not in ran.stderr
        assert ran.stderr.count("Error: ") == 1

    def test_a_malformed_position_is_reported_before_the_tier_is_opened(self, tmp_path: Path) -> None:
        assert "is not a position" in refused(2, "read", tmp_path / "absent", "tiny", "--from", "soon")


class TestThingsThatAreNotThere:
    @pytest.mark.parametrize("command", ["read", "inspect", "verify"])
    def test_an_unknown_stream_is_an_error_that_names_it(self, tier: Path, command: str) -> None:
        assert "has no stream 'orders'" in refused(1, command, tier, "orders")

    @pytest.mark.parametrize("name", ["x" * 5000, "..", "tiny/", "TINY", "tiny\n", "tin%79"])
    def test_a_name_similar_to_an_existing_one_finds_no_stream(self, tier: Path, name: str) -> None:
        for command in ("read", "inspect", "verify"):
            refused(1, command, tier, name)

    def test_an_empty_stream_name_is_an_error(self, tier: Path) -> None:
        for command in ("read", "inspect", "verify"):
            assert "stream name" in refused(1, command, tier, "")

    def test_an_offset_beyond_the_end_is_an_error(self, tier: Path) -> None:
        assert "11 is beyond" in refused(1, "read", tier, "tiny", "--from", 11)

    @pytest.mark.parametrize("command", [("ls",), ("read", "tiny"), ("inspect", "tiny"), ("verify",)])
    @pytest.mark.parametrize("place", ["absent", "empty", "file", "other"])
    def test_the_error_about_a_place_that_is_no_tier_names_it(
        self, tmp_path: Path, place: str, command: tuple[str, ...]
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("hello")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").write_text("hello")

        line = refused(1, command[0], tmp_path / place, *command[1:])

        assert f"{tmp_path / place}" in line

    def test_a_sync_refuses_a_file_as_its_tier(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("hello")

        ran = offload("sync", SOURCE + "/tiny", tmp_path / "file")

        assert ran.code == 1
        assert str(tmp_path / "file") in ran.error
        assert (tmp_path / "file").read_text() == "hello"

    def test_a_check_of_a_file_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("hello")

        ran = offload("check", tmp_path / "file")

        assert (ran.code, ran.stdout) == (1, b"")
        url = f"file://{tmp_path / 'file'}"
        assert ran.error == f"offload: {url} is a file, and a tier is a folder: name another place"


def sum_anchor(lines: bytes) -> bytes:
    return lines + b"crc32c %08x\n" % crc32c(lines)


class TestFutureVersions:
    """Objects that a later program wrote, with correct checksums. They are not damaged: the user must
    upgrade.
    """

    def check(self, tier: Path, path: Path, raw: bytes, *, sync_too: bool = True) -> None:
        path.write_bytes(raw)
        before = contents(tier)

        line = refused(1, "read", tier, "tiny")

        assert path.name in line
        assert "version" in line
        assert "upgrade" in line
        assert verify(tier)[0] == 3, "unchecked, and not damaged"
        if sync_too:
            assert "upgrade" in offload("sync", f"{SOURCE}/tiny", tier).error
        assert contents(tier) == before

    def test_a_root_of_a_later_version_asks_for_an_upgrade(self, tier: Path) -> None:
        path = max((tier / "tiny/metadata").iterdir())
        raw = bytearray(path.read_bytes())
        raw[ROOT_HEADER.offset_of("format_version") + 1] = ROOT_FORMAT_VERSION + 1
        self.check(tier, path, bytes(raw[:-4]) + crc32c(bytes(raw[:-4])).to_bytes(4, "big"))

    def test_a_trailer_of_a_later_version_asks_for_an_upgrade(self, tier: Path) -> None:
        [path] = (tier / "tiny/data").iterdir()
        raw = bytearray(path.read_bytes())
        trailer = len(raw) - TRAILER.size_bytes
        raw[trailer + TRAILER.offset_of("version") + 1] = FRAGMENT_FORMAT_VERSION + 1
        raw[-4:] = crc32c(bytes(raw[trailer:-4])).to_bytes(4, "big")
        self.check(tier, path, bytes(raw))

    def test_an_unknown_codec_of_a_fragment_asks_for_an_upgrade(self, tier: Path) -> None:
        [path] = (tier / "tiny/data").iterdir()
        raw = bytearray(path.read_bytes())
        trailer = len(raw) - TRAILER.size_bytes
        raw[trailer + TRAILER.offset_of("codec")] = max(BlockCodec) + 1
        raw[-4:] = crc32c(bytes(raw[trailer:-4])).to_bytes(4, "big")
        path.write_bytes(raw)

        assert "codec 3 is not known; upgrade" in refused(1, "read", tier, "tiny")

    @pytest.mark.parametrize("version", [FRAGMENT_FORMAT_VERSION - 1, FRAGMENT_FORMAT_VERSION + 1])
    def test_another_version_in_a_fragments_header_alone_is_damage(self, tier: Path, version: int) -> None:
        """The trailer has a correct checksum and says which version the fragment has."""
        [path] = (tier / "tiny/data").iterdir()
        raw = bytearray(path.read_bytes())
        raw[HEADER.offset_of("version") + 1] = version
        path.write_bytes(raw)

        code, document = verify(tier)

        assert code == 1
        assert document["damages"][0]["what"] == "header version"

    @pytest.mark.parametrize("name", ["tier.anchor", "tiny/stream.anchor"])
    def test_an_anchor_of_a_later_version_asks_for_an_upgrade(self, tier: Path, name: str) -> None:
        lines = (tier / name).read_bytes().split(b"\n")
        changed = lines[0].replace(b" 1", b" 9") + b"\n" + lines[1] + b"\n"
        self.check(tier, tier / name, sum_anchor(changed))


REFUSALS = campaign("more file systems that refuse; make test has a full disk and a read-only place")


class TestFileSystemsThatRefuse:
    def within(self, mount: str, folder: Path, *arguments: object) -> Ran:
        """Run `mount` and then a command line, in a namespace of their own. `$1` is `folder`."""
        script = f'{mount} && shift && exec "$@"'
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", script, "sh", folder, *PROGRAM, *map(str, arguments)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        ran = Ran(done.returncode, done.stdout, done.stderr.decode())
        assert "unshare" not in ran.stderr, f"this test needs user and mount namespaces: {ran.stderr}"
        assert "mount:" not in ran.stderr, f"this test needs user and mount namespaces: {ran.stderr}"
        return ran

    READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'

    def test_a_sync_to_a_new_tier_on_a_read_only_file_system_fails(self, tmp_path: Path) -> None:
        (tmp_path / "place").mkdir()

        ran = self.within(
            self.READ_ONLY, tmp_path / "place", "sync", SOURCE + "/tiny", tmp_path / "place" / "tier"
        )

        assert ran.code == 1
        assert "read-only" in ran.error
        assert not list((tmp_path / "place").iterdir())

    @REFUSALS
    def test_a_read_only_tier_can_be_read_and_verified_but_takes_no_sync(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        write_stream(source, simple_chunks(2))
        sync(source, tier)
        before = contents(tier)
        nothing_new = self.within(self.READ_ONLY, tier, "sync", rabbit(source), tier)
        append_chunks(source, simple_chunks(1, first_offset=6))

        ran = self.within(self.READ_ONLY, tier, "sync", rabbit(source), tier)
        reading = self.within(self.READ_ONLY, tier, "read", tier, "orders", "--format", "body")
        verifying = self.within(self.READ_ONLY, tier, "verify", tier)

        assert (nothing_new.code, nothing_new.stderr) == (0, "")
        assert ran.code == 1
        assert "read-only" in ran.error
        assert (reading.code, reading.lines) == (0, [f"message {i}" for i in range(6)])
        assert verifying.code == 0
        assert contents(tier) == before

    def test_a_full_disk_leaves_what_is_committed_good(self, tmp_path: Path) -> None:
        """8 MiB have room for the first ledgers of the stream. `verify` and `read` find those sound."""
        source, place = tmp_path / "orders", tmp_path / "place"
        place.mkdir()
        records = [bytes([65 + i % 26]) * 1000 for i in range(200)]
        chunks = (build_chunk(records, offset=200 * i, timestamp_ms=i, epoch=1) for i in range(80))
        write_stream(source, chunks, segment_size_bytes=2_000_000)
        full = (
            'mount -t tmpfs -o size=8m none "$1" && "$2" -c "$3" sync "$4" "$1/tier"; echo "code $?"; '
            '"$2" -c "$3" verify "$1/tier" --json && "$2" -c "$3" ls "$1/tier" --json; '
            'ls -A "$1/tier/.staging"'
        )
        python, code = PROGRAM[0], PROGRAM[-1]

        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", full, "sh", place, python, code, rabbit(source)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert "code 1\n" in done.stdout, f"this test needs user and mount namespaces: {done.stderr}"
        assert done.stderr.count("\n") == 1, done.stderr
        assert "full" in done.stderr
        assert '"damages": []' in done.stdout
        assert done.stdout.rstrip().endswith("}"), "nothing is left of what was under way"

    def test_a_sync_to_a_full_disk_fails_with_one_error(self, tmp_path: Path) -> None:
        (tmp_path / "place").mkdir()
        mount = 'mount -t tmpfs -o size=8k none "$1" && head -c 8192 /dev/zero >"$1/filler"'

        ran = self.within(mount, tmp_path / "place", "sync", SOURCE + "/tiny", tmp_path / "place" / "tier")

        assert ran.code == 1
        assert "full" in ran.error

    @REFUSALS
    def test_a_sync_continues_once_the_disk_has_room_again(self, tmp_path: Path) -> None:
        """The disk fills in the middle of a growing stream. With more room the tier takes the rest."""
        source, place = tmp_path / "orders", tmp_path / "place"
        place.mkdir()
        records = [b"x" * 1000] * 200
        chunks = [build_chunk(records, offset=200 * i, timestamp_ms=i, epoch=1) for i in range(40)]
        write_stream(source, chunks, segment_size_bytes=2_000_000)
        script = (
            'mount -t tmpfs -o size=3m none "$1" && "$2" -c "$3" sync "$4" "$1/tier"; '
            'mount -o remount,size=64m "$1" && "$2" -c "$3" sync "$4" "$1/tier" --json && '
            '"$2" -c "$3" verify "$1/tier" && "$2" -c "$3" read "$1/tier" orders --format body | sort -u'
        )

        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", script, "sh", place, PROGRAM[0], PROGRAM[-1], rabbit(source)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert "full" in done.stderr, f"this test needs user and mount namespaces: {done.stderr}"
        assert '"messages": 8000' in done.stdout
        assert "all of them sound" in done.stdout
        assert done.stdout.endswith("sound\n" + "x" * 1000 + "\n")


HOSTILE = (
    "..%2fup",
    "%2e%2e",
    "%2F%2Fetc%2Fpasswd",
    "a b",
    "line\nbreak",
    "tab\tand\x1b[31mred",
    "x" * 255,
    "grüße-😀-" + "長" * 50,
    "Orders",
    "orders",
    "ORDERS",
    "tier.anchor",
    ".hidden",
    "-rf",
    "e\u0301",
    "é",
    "\u202eright-to-left",
    "'quoted' \"twice\"",
    "%s" + "0" * 64,
    "CON",
)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of streams with hostile names, and a tier that has them. Tests change neither."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, name in enumerate(HOSTILE):
        write_stream(folder / "streams" / name, simple_chunks(1, first_offset=number, records=2))
    sync(folder / "streams", folder / "tier")
    return folder


class TestHostileNames:
    def test_ls_shows_the_exact_names(self, streams: Path) -> None:
        found = {
            row["stream"]: row["first_offset"] for row in offload("ls", streams / "tier", "--json").objects
        }

        assert found == {name: number for number, name in enumerate(HOSTILE)}

    @pytest.mark.parametrize("number", range(len(HOSTILE)))
    def test_each_stream_reads_back_by_its_name(self, streams: Path, number: int) -> None:
        ran = offload("read", streams / "tier", "--format", "body", "--", HOSTILE[number])

        assert ran.code == 0, ran.stderr
        assert ran.lines == [f"message {number}", f"message {number + 1}"]

    def test_no_key_leaves_its_prefix_and_no_two_streams_share_one(self, streams: Path) -> None:
        parts = {key.split("/")[0] for key in keys(streams / "tier")} - {"tier.anchor"}

        assert parts == {escape(name) for name in HOSTILE}
        assert sorted(path.name for path in streams.iterdir()) == ["streams", "tier"]
        assert all(part.isascii() and "." not in part and len(part) <= 201 for part in parts)

    def test_no_name_breaks_a_line_of_output(self, streams: Path) -> None:
        assert len(offload("ls", streams / "tier").lines) == 1 + len(HOSTILE)
        assert len(offload("ls", streams / "tier", "--json").lines) == len(HOSTILE)
        assert len(offload("sync", rabbit(streams / "streams"), streams / "tier").lines) == len(HOSTILE)
        for name in HOSTILE:
            head = offload("inspect", streams / "tier", "--", name).lines[0]
            assert "2 messages in offsets" in head
            assert all(character.isprintable() for character in head)

    def test_no_name_breaks_an_error_line(self, streams: Path) -> None:
        for name in HOSTILE:
            line = refused(1, "read", streams / "tier", "--from", "999", "--", name)
            assert all(character.isprintable() for character in line)
            assert "999 is beyond" in line

    def test_a_tier_of_hostile_names_is_sound(self, streams: Path) -> None:
        code, document = verify(streams / "tier")

        assert (code, document["streams"], document["unreferenced"]) == (0, len(HOSTILE), [])

    def test_a_sync_skips_a_name_that_is_not_utf_8_with_a_note(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "streams" / "good", simple_chunks(1))
        bad = os.fsencode(tmp_path / "streams") + b"/bad\xff"
        os.rename(shutil.copytree(tmp_path / "streams" / "good", tmp_path / "copy"), bad)

        ran = offload("sync", rabbit(tmp_path / "streams"), tmp_path / "tier", "--json")

        assert (ran.code, [row["stream"] for row in ran.objects]) == (0, ["good"])
        assert ran.error.endswith("is not UTF-8")

    def test_an_error_can_name_a_source_path_that_is_not_utf_8(self, tmp_path: Path) -> None:
        ran = finish(start("sync", os.fsdecode(b"rabbitmq:///nowhere\xff"), tmp_path / "tier"))

        assert ran.code == 1
        assert "nowhere\\xff does not exist" in ran.error

    def test_an_error_can_name_a_tier_path_that_is_not_utf_8(self, tmp_path: Path) -> None:
        ran = finish(start("ls", os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))

        assert ran.code == 1
        assert "is no tier" in ran.error


class TestDebug:
    def test_debug_shows_the_traceback(self, tmp_path: Path) -> None:
        ran = finish(start("--debug", "ls", tmp_path))

        assert ran.code == 1
        assert "Traceback (most recent call last)" in ran.stderr
        assert "offload.ground.errors.NotOffloaded" in ran.stderr

    def test_debug_shows_each_request_and_each_decision(self, tmp_path: Path) -> None:
        ran = finish(start("--debug", "sync", f"rabbitmq://{DATA / 'tiny'}", tmp_path / "tier", "--json"))

        assert len(ran.objects) == 1
        for line in (
            r"offload\.store\.logged: get tier\.anchor .*: [0-9.]+ s, NotFound",
            r"offload\.store\.logged: put tiny/data/\S+\.fragment, \d+ bytes: [0-9.]+ s",
            r"offload\.opening\.session: ManifestCommitted\(stream='tiny', change='append', version=3, .*",
            r"offload\.copy\.copier: stream 'tiny': the source has offsets \[0, 10\), to copy from 0",
        ):
            assert re.search(rf"^[-0-9]+ [:,0-9]+ DEBUG {line}$", ran.stderr, re.MULTILINE), line

    def test_no_traceback_is_shown_without_debug(self, tmp_path: Path) -> None:
        assert "Traceback" not in finish(start("ls", tmp_path)).error

    def test_debug_raises_the_error_in_a_process_that_embeds_the_command_line(self, tmp_path: Path) -> None:
        with pytest.raises(OffloadError):
            offload("--debug", "ls", tmp_path)
