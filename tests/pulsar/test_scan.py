"""Tests of `offload pulsar scan`: what is in a bucket, and what Pulsar's metadata makes of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest
from command_line import Ran, offload
from offload_pulsar import LedgerInfo, OffloadContext, PulsarKey, managed_ledger_info
from offload_pulsar.ledger_metadata import encode_managed_ledger_info, message_class
from offload_pulsar.scanning import BucketScan, NamedAttempts, scan_bucket
from pulsar_sets import DATA, SETS, objects_of, store_of, uid_of

from offload.contracts.store import Body
from offload.ground.errors import Corrupt
from offload.store.memory import MemoryStore

OTHER = UUID(int=5)


def record(ledger_id: int, uid: UUID, *, complete: bool = True, deleted: bool = False) -> LedgerInfo:
    context = OffloadContext(
        uid=uid, is_complete=complete, is_deleted_from_bookkeeper=deleted, timestamp_ms=1, driver="S3"
    )
    return LedgerInfo.of(ledger_id=ledger_id, entries=1, length=1, closed_ms=1, offloaded=context)


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        for row, data in objects_of(name):
            (path / row["key"]).write_bytes(data)
    return path


def scan(folder: Path, *options: object) -> Ran:
    return offload("pulsar", "scan", f"pulsar+file://{folder}", *options)


def rows(ran: Ran) -> dict[str, list[str]]:
    """Return the rows of the table by attempt."""
    [_, *found] = [line.split("\t") for line in ran.lines]
    return {row[2]: row for row in found}


def scanned(store: MemoryStore, named: NamedAttempts | None = None) -> BucketScan:
    async def main() -> BucketScan:
        found = BucketScan(named=named)
        await scan_bucket(store, found)
        return found

    return asyncio.run(main())


def test_every_attempt_is_a_row_with_its_sizes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "b", "exact-fit", "ledger-2^63", "v2-one-ledger")

    ran = scan(folder)

    assert ran.code == 0
    assert {uid: row[1:2] + row[3:] for uid, row in rows(ran).items()} == {
        str(uid_of("exact-fit")): ["7", "2752", "188", "whole"],
        str(uid_of("ledger-2^63")): ["9223372036854775807", "1456", "208", "whole"],
        str(uid_of("v2-one-ledger")): ["V2: any", "4096", "74", "whole"],
    }
    assert "offload it again" not in ran.stderr
    assert "keeps no metadata: the topics of its ledgers are not known" in ran.stderr


def test_the_topic_comes_from_the_metadata_of_the_objects() -> None:
    found = scanned(asyncio.run(store_of("messages")))

    assert [each.managed_ledger for each in found.attempts] == ["public/default/persistent/peer-partition-0"]


def test_what_is_missing_on_either_side_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "b", "exact-fit", "padding-1", "one-entry")
    (folder / f"{uid_of('exact-fit')}-ledger-7").unlink()
    (folder / f"{uid_of('padding-1')}-ledger-7-index").unlink()

    ran = scan(folder)

    assert ran.code == 1
    assert rows(ran)[str(uid_of("exact-fit"))][3:] == ["-", "188", "broken: index without data"]
    assert rows(ran)[str(uid_of("padding-1"))][3:] == ["2563", "-", "garbage: data without index"]
    assert "offload it again if BookKeeper has the ledger" in ran.stderr


def test_data_of_another_size_and_an_index_that_is_none_are_broken(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "b", "exact-fit", "padding-1", "one-entry")
    data, index = (f"{uid_of(name)}-ledger-7" for name in ("exact-fit", "padding-1"))
    (folder / data).write_bytes((folder / data).read_bytes()[:2000])
    (folder / f"{index}-index").write_bytes(b"\0" * 30)

    ran = scan(folder)

    assert ran.code == 1
    assert rows(ran)[str(uid_of("exact-fit"))][5] == "broken: 2000 bytes of data, and its index states 2752"
    assert rows(ran)[str(uid_of("padding-1"))][5] == "broken: the index is none"
    assert rows(ran)[str(uid_of("one-entry"))][5] == "whole"


def test_a_place_without_objects_of_pulsars_is_an_error(tmp_path: Path) -> None:
    missing, wrong = scan(tmp_path / "absent"), scan(folder_of(tmp_path / "b"), "--json")

    assert (missing.code, wrong.code) == (1, 1)
    assert "/absent has no ledger of Pulsar's: is it the right place?" in missing.stderr
    assert missing.text == ""
    assert json.loads(wrong.text)["attempts"] == []


@pytest.mark.parametrize("command", ["pulsar scan {}", "pulsar verify {}", "ls pulsar+file://{}"])
def test_a_tier_of_this_program_is_named_as_such(command: str, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    offload("sync", f"pulsar+file://{folder_of(tmp_path / 'b', 'one-entry')}", tier)

    ran = offload(*command.format(tier).split())

    assert ran.code == 1
    assert "but a tier of this program: `offload ls` and `offload verify` work on it" in ran.stderr


@pytest.mark.parametrize("form", ["protobuf", "JSON"])
def test_the_metadata_says_what_is_missing_and_what_is_nobodys(tmp_path: Path, form: str) -> None:
    folder = folder_of(tmp_path / "b", "exact-fit", "padding-1", "padding-2", "one-entry", "v2-one-ledger")
    (folder / f"{uid_of('padding-1')}-ledger-7-index").unlink()
    (folder / f"{uid_of('padding-2')}-ledger-7-index").unlink()
    infos = [
        record(7, uid_of("exact-fit")),
        record(7, uid_of("padding-1"), complete=False),
        record(7, uid_of("padding-2")),
        record(8, OTHER),
        record(9, UUID(int=6), deleted=True),
        record(10, UUID(int=7), complete=False),
        record(SETS["v2-one-ledger"].get("ledger", 7), uid_of("v2-one-ledger")),
        LedgerInfo.of(ledger_id=11, entries=1, length=1, closed_ms=0),
    ]
    file = tmp_path / "ledgers"
    file.write_bytes(encode_managed_ledger_info(infos))
    if form == "JSON":
        from google.protobuf import json_format

        kind = message_class("managed_ledger.ManagedLedgerInfo")
        file.write_text(json_format.MessageToJson(kind.FromString(file.read_bytes())))

    ran = scan(folder, "--metadata", file)

    found = {uid: (row[1], row[5], row[6]) for uid, row in rows(ran).items()}
    lost = "lost: missing, and deleted from BookKeeper"
    assert ran.code == 1
    assert found == {
        str(uid_of("exact-fit")): ("7", "whole", "agrees"),
        str(uid_of("padding-1")): ("7", "garbage: data without index", "unfinished"),
        str(uid_of("padding-2")): ("7", "garbage: data without index", "missing"),
        str(uid_of("one-entry")): ("7", "whole", "nobody's"),
        str(uid_of("v2-one-ledger")): ("V2: any", "whole", "agrees"),
        str(OTHER): ("8", "absent", "missing"),
        str(UUID(int=6)): ("9", "absent", lost),
    }
    assert "names 8 ledgers and 7 attempts to offload" in ran.stderr
    assert "note: 1 attempt, 268 B: whole, nobody's" in ran.stderr


def test_pulsars_own_records_are_compared(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "b", "one-entry")

    ran = scan(folder, "--metadata", DATA / "ledger-info" / "managed-ledger-info.bin", "--json")

    document = json.loads(ran.text)
    assert ran.code == 1
    assert [(each["ledger"], each["finding"], each["metadata"]) for each in document["attempts"]] == [
        (7, "whole", "nobody's"),
        (589824, "absent", "missing"),
        (167772160, "absent", "lost: missing, and deleted from BookKeeper"),
    ]


def test_metadata_of_several_topics_is_one_comparison(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "b", "exact-fit", "one-entry")
    files = []
    for name in ("exact-fit", "one-entry"):
        files += ["--metadata", tmp_path / name]
        (tmp_path / name).write_bytes(encode_managed_ledger_info([record(7, uid_of(name))]))

    ran = scan(folder, *files)

    assert ran.code == 0
    assert {row[6] for row in rows(ran).values()} == {"agrees"}


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00",
        b"",
        b"[]",
        b"{}",
        b'{"ledgers": [{"ledgerId": 1, "offloaded": true}]}',
        b'{"ledgerInfo": []}',
        b"{",
        b'{"ledgerInfo": 7}',
        b'{"ledgerInfo": [{"ledgerId": "many"}]}',
        b'{"ledgerInfo": [{}]}',
        b'{"ledgerInfo": [{"ledgerId": 1, "offloadContexts": {"complete": true}}]}',
        b'{"ledgerInfo": [{"ledgerId": 1}], "Other": 1}',
        b'{"ledgerInfo": [{"ledgerId": -1}]}',
        b'{"ledgerInfo":' * 5000,
        b"{" + bytes([0xFF]),
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\x08",
        b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01",
        b"\x47\x78\x00\x00",
    ],
)
def test_other_files_are_refused_in_one_line(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ledgers"
    file.write_bytes(raw)

    ran = scan(folder_of(tmp_path / "b", "one-entry"), "--metadata", file)

    assert ran.code == 2
    assert ran.stderr.count("\n") == 1
    assert str(file) in ran.stderr


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    ran = scan(tmp_path, "--metadata", tmp_path / "nowhere")

    assert ran.code == 2
    assert "nowhere: No such file or directory" in ran.stderr


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_pulsar.ledger_metadata.METADATA_SIZE_BYTES_MAX", 10)

    for raw in (b"\x0a\x00" * 6, b'{"ledgerInfo": []}'):
        with pytest.raises(Corrupt, match="expected at most 10"):
            managed_ledger_info(raw, where="file")


def test_a_name_that_escapes_is_printed_on_one_line() -> None:
    name = "../../etc/passwd"

    async def main() -> MemoryStore:
        store = MemoryStore()
        for row, data in objects_of("one-entry"):
            await store.put(
                row["key"], Body.of(data, metadata=row["user_metadata"] | {"managedledgername": name})
            )
        return store

    [found] = scanned(asyncio.run(main())).attempts

    assert found.managed_ledger == name


def test_uploads_of_pulsar_that_never_ended_are_named() -> None:
    key = str(PulsarKey(OTHER, 7))

    async def main() -> MemoryStore:
        store = await store_of("one-entry")
        for each in (key, "stranger"):
            await (await store.start_upload(each)).put_part(1, b"part")
        return store

    found = scanned(asyncio.run(main()))

    assert found.unfinished_uploads == found.as_json()["unfinished_uploads"] == [key]


def test_an_attempt_that_is_named_by_another_ledger_is_nobodys() -> None:
    store = asyncio.run(store_of("one-entry"))

    found = scanned(store, NamedAttempts([record(8, uid_of("one-entry"))]))

    assert [(each.ledger_id, each.named) for each in found.attempts] == [(7, "nobody's"), (8, "missing")]


def test_one_topic_alone_needs_the_metadata_of_objects(tmp_path: Path) -> None:
    ran = scan(folder_of(tmp_path / "b", "one-entry"), "--managed-ledger", "public/default/persistent/x")

    assert ran.code == 2
    assert "keeps no metadata, so no object has a name" in ran.stderr
