"""Tests of damaged files of a real broker: what is wrong is counted, and the other queues are complete."""

from __future__ import annotations

import asyncio
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
import pytest
from offload_rabbitmq.queues import folder as folder_module
from offload_rabbitmq.queues import index_v2, store_files
from offload_rabbitmq.queues.folder import ClassicQueue
from offload_rabbitmq.queues.messages import read_message
from offload_rabbitmq.queues.source import QueueSource
from offload_rabbitmq.queues.store_files import REDELIVERED
from queue_sets import ROOT_VHOST, folder_of, queues_in, unpacked

from offload.ground.errors import Corrupt, Misuse, NotOffloaded, TryAgain

Terms = dict[str, list[bytes]]
ALL = 10**6
KEPT = ("tiny-v1", "tiny-v2", "limit-v1", "limit-v2")
STORE = "msg_store_persistent/0.rdq"
FILES = {
    "segment": ("tiny-v1", "0.idx"),
    "slots": ("tiny-v2", "0.qi"),
    "bodies": ("tiny-v2", "0.qs"),
    "names": ("tiny-v1", ".queue_name"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one vhost with a few queues, after a clean stop."""
    node = unpacked("stopped", tmp_path_factory.mktemp("sound"))
    kept = {folder_of(node, queue).name for queue in KEPT}
    vhost = node / "msg_stores" / "vhosts" / ROOT_VHOST
    for each in (vhost / "queues").iterdir():
        if each.name not in kept:
            shutil.rmtree(each)
    return vhost


@pytest.fixture(scope="module")
def whole(sound: Path) -> Terms:
    """Return the stored terms of its queues."""
    found = terms_of(queues_in(sound))
    assert {stream.removeprefix("%2F/") for stream in found} == {*KEPT}
    return found


@pytest.fixture
def vhost(sound: Path, tmp_path: Path) -> Path:
    """Return a copy to damage."""
    return Path(shutil.copytree(sound, tmp_path / ROOT_VHOST))


def path_of(vhost: Path, kind: str) -> Path:
    if kind == "store":
        return vhost / STORE
    queue, name = FILES[kind]
    (folder,) = (
        each
        for each in (vhost / "queues").iterdir()
        if f"\nQUEUE: {queue}\n".encode() in (each / ".queue_name").read_bytes()
    )
    return folder / name


def terms_of(queues: dict[str, ClassicQueue]) -> Terms:
    return {stream: queue.terms(0, len(queue.rows)) for stream, queue in queues.items()}


def check_others(queues: dict[str, ClassicQueue], whole: Terms, kind: str) -> None:
    """The queues that do not use a damaged file are complete."""
    damaged = FILES[kind][0] if kind in FILES else ""
    for stream, messages in whole.items():
        if stream != f"%2F/{damaged}":
            assert queues[stream].terms(0, len(messages) + 1) == messages, stream


@pytest.mark.parametrize(("kind", "last"), [("segment", 80), ("slots", 33), ("bodies", 60)])
def test_a_file_that_is_cut_anywhere_in_its_last_records_has_those_before(
    vhost: Path, whole: Terms, kind: str, last: int
) -> None:
    path = path_of(vhost, kind)
    raw, stream = path.read_bytes(), f"%2F/{FILES[kind][0]}"

    for lacking in range(1, last):
        path.write_bytes(raw[:-lacking])
        queues = queues_in(vhost)

        check_others(queues, whole, kind)
        found = queues[stream].terms(0, ALL)
        assert found == whole[stream][: len(found)]
        assert len(whole[stream]) - len(found) <= 2
        # Marks at the end of a segment have two bytes, and a slot has 32: such a cut leaves whole records.
        is_whole = kind == "segment" or (kind == "slots" and lacking == 32)
        assert queues[stream].damages.total() > 0 or is_whole, lacking


def test_a_store_that_is_cut_anywhere_in_its_last_entry_lacks_that_entry_alone(
    vhost: Path, whole: Terms
) -> None:
    path = vhost / STORE
    raw = path.read_bytes()
    last = max(int(each["position"].max()) for each in _in_store(vhost)) - 24
    size = int.from_bytes(raw[last : last + 8], "big") + 9

    for end in [*range(last + 1, last + 40), last + size // 2, last + size - 1]:
        path.write_bytes(raw[:end])
        queues = queues_in(vhost)

        lost = {stream: len(whole[stream]) - len(queues[stream].rows) for stream in whole}
        assert sum(lost.values()) == 1, end
        for stream, queue in queues.items():
            assert queue.damages.total() == lost[stream]
            assert {*queue.terms(0, ALL)} <= {*whole[stream]}


def _in_store(vhost: Path) -> list[np.ndarray]:  # type: ignore[type-arg]
    found = []
    for queue in queues_in(vhost).values():
        stored = [number for number, each in enumerate(queue.files.files) if each.path.suffix == ".rdq"]
        rows = queue.rows[np.isin(queue.rows["file"], stored)]
        found += [rows] if len(rows) else []
    return found


@pytest.mark.parametrize("kind", [*FILES, "store"])
def test_flipped_bits_never_end_a_rescue(vhost: Path, whole: Terms, kind: str) -> None:
    path = path_of(vhost, kind)
    raw, seed = path.read_bytes(), SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)

    for _ in range(25):
        broken = bytearray(raw)
        bit = rng.randrange(8 * min(len(raw), rng.choice((40, 200, 4000, len(raw)))))
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        queues = queues_in(vhost)

        if kind != "store":
            check_others(queues, whole, kind)
        for stream, queue in queues.items():
            for term in queue.terms(0, ALL):
                with suppress(Corrupt):
                    read_message(term, where=stream)
        if kind == "bodies":
            found = queues["%2F/tiny-v2"].terms(0, ALL)
            assert {*found} <= {*whole["%2F/tiny-v2"]}, bit
            assert len(found) >= 300 or bit < 8 * 64, bit


def test_the_crc_of_a_body_is_checked(vhost: Path, whole: Terms) -> None:
    path = path_of(vhost, "bodies")
    raw = bytearray(path.read_bytes())
    raw[64 + 8 + 150] ^= 1
    path.write_bytes(raw)

    queue = queues_in(vhost)["%2F/tiny-v2"]

    assert queue.terms(0, ALL) == whole["%2F/tiny-v2"][1:]
    assert [(why, count) for (_, why), count in queue.damages.items()] == [("a body whose CRC is wrong", 1)]


@pytest.mark.parametrize("size", [0, 15, 2**31, 2**63, 2**64 - 1])
def test_an_entry_of_an_impossible_size_hides_no_other(vhost: Path, whole: Terms, size: int) -> None:
    path = vhost / STORE
    raw = bytearray(path.read_bytes())
    first = min(int(each["position"].min()) for each in _in_store(vhost)) - 24
    raw[first : first + 8] = struct.pack(">Q", size)
    path.write_bytes(raw)

    queues = queues_in(vhost)

    assert sum(len(whole[stream]) - len(queue.rows) for stream, queue in queues.items()) == 1
    assert folder_module.read_vhost(vhost).damages.total() == 1
    for stream, queue in queues.items():
        assert {*queue.terms(0, ALL)} <= {*whole[stream]}


def test_the_first_of_two_entries_of_one_id_counts(vhost: Path, whole: Terms) -> None:
    row = _in_store(vhost)[0][0]
    with (vhost / "msg_store_persistent" / "1.rdq").open("wb") as file:
        file.write(struct.pack(">Q", 16 + 3) + row["id"].ljust(16, b"\0") + b"abc\xff")

    queues = queues_in(vhost)

    assert terms_of(queues) == whole
    assert [*folder_module.read_vhost(vhost).damages.values()] == [1]


def test_zeros_in_a_store_are_no_damage(vhost: Path, whole: Terms) -> None:
    """A compaction leaves them, in front of entries and behind them."""
    store = vhost / "msg_store_persistent"
    raw = (store / "0.rdq").read_bytes()
    (store / "0.rdq").write_bytes(bytes(2**20) + raw + bytes(500_001))
    (store / "1.rdt").write_bytes(bytes(7))

    assert terms_of(queues_in(vhost)) == whole
    assert not folder_module.read_vhost(vhost).damages


@pytest.mark.parametrize(("kind", "lost"), [("bodies", {"tiny-v2": 301}), ("store", {"limit-v1": 6})])
def test_messages_whose_file_is_gone_are_counted(
    vhost: Path, whole: Terms, kind: str, lost: dict[str, int]
) -> None:
    path_of(vhost, kind).unlink()

    queues = queues_in(vhost)

    for name, count in lost.items():
        queue = queues[f"%2F/{name}"]
        assert queue.damages.total() == len(whole[queue.stream]) - len(queue.rows)
        assert queue.damages.total() >= count
    if kind != "store":
        check_others(queues, whole, kind)


def test_a_queue_whose_name_is_damaged_is_named_after_its_folder(vhost: Path, whole: Terms) -> None:
    path = path_of(vhost, "names")
    path.write_bytes(b"VHOST: /\nQUEUE: ../../../escape\n")

    queues = queues_in(vhost)

    assert queues[f"%2F/{path.parent.name}"].terms(0, ALL) == whole["%2F/tiny-v1"]
    assert queues[f"%2F/{path.parent.name}"].damages.total() == 1


def test_a_name_that_would_leave_a_folder_is_only_a_name(vhost: Path) -> None:
    name = b"../../escape"
    folder = vhost / "queues" / folder_module._digest(b"queue/" + name)
    path_of(vhost, "names").parent.rename(folder)
    (folder / ".queue_name").write_bytes(b"VHOST: /\nQUEUE: " + name + b"\n")

    assert len(queues_in(vhost)["%2F/..%2F..%2Fescape"].rows) == 301


def test_a_torn_recovery_file_means_that_the_stop_was_not_clean(vhost: Path, whole: Terms) -> None:
    path = vhost / "recovery.dets"
    path.write_bytes(path.read_bytes()[:100])

    queues = queues_in(vhost)

    assert terms_of(queues) == whole
    assert {flag for queue in queues.values() for flag in queue.rows["flags"].tolist()} == {REDELIVERED}


def test_a_damaged_configuration_is_counted(vhost: Path, whole: Terms) -> None:
    (vhost / ".config").write_bytes(b"{segment_entry_count, 99999}.")

    assert terms_of(queues_in(vhost)) == whole
    assert folder_module.read_vhost(vhost).damages.total() == 1


@pytest.mark.parametrize("name", ["0.idx", "1.idx"])
def test_files_that_change_meanwhile_ask_for_a_copy(
    vhost: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, scan_store = path_of(vhost, "segment").parent, folder_module.scan_store

    def scan(*arguments: object) -> object:
        with (folder / name).open("ab") as file:
            file.write(b"\x40\x00")
        return scan_store(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(folder_module, "scan_store", scan)

    with pytest.raises(TryAgain, match="stop the node, or copy the folder"):
        folder_module.read_vhost(vhost)


def test_files_that_change_later_ask_for_a_copy(vhost: Path) -> None:
    queue = queues_in(vhost)["%2F/tiny-v1"]
    with path_of(vhost, "segment").open("ab") as file:
        file.write(b"\x40\x00")

    with pytest.raises(TryAgain, match="stop the node, or copy the folder"):
        queue.terms(0, 1)


def test_an_entry_without_its_last_byte_is_none(vhost: Path, whole: Terms) -> None:
    row = _in_store(vhost)[0][0]
    path = vhost / STORE
    raw = bytearray(path.read_bytes())
    raw[int(row["position"]) + int(row["size"])] = 0xFE
    path.write_bytes(raw)

    queues = queues_in(vhost)

    assert sum(len(whole[stream]) - len(queue.rows) for stream, queue in queues.items()) == 1
    assert folder_module.read_vhost(vhost).damages.total() == 1


def test_a_message_beyond_the_limit_is_none_although_the_file_has_it(
    vhost: Path, whole: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store_files, index_v2):
        monkeypatch.setattr(module, "TERM_SIZE_BYTES_MAX", 2**18)
    store = vhost / "msg_store_persistent"
    message_id = _in_store(vhost)[0][0]["id"]
    (store / "0.rdq").rename(store / "1.rdq")
    (store / "0.rdq").write_bytes(struct.pack(">Q", 2**19) + message_id + bytes(2**19 - 16) + b"\xff")
    path = path_of(vhost, "bodies")
    raw = bytearray(path.read_bytes()) + bytes(2**19)
    raw[64:68] = struct.pack(">I", 2**19)
    path.write_bytes(raw)
    slots = bytearray((path.parent / "0.qi").read_bytes())
    slots[64 + 12 : 64 + 16] = struct.pack(">I", 2**19)
    (path.parent / "0.qi").write_bytes(slots)

    queues = queues_in(vhost)

    assert terms_of(queues) == {**whole, "%2F/tiny-v2": whole["%2F/tiny-v2"][1:]}
    assert queues["%2F/tiny-v2"].damages.total() == 1


def test_a_vhost_that_is_there_twice_is_refused(vhost: Path) -> None:
    shutil.copytree(vhost, vhost.parent / "copy")

    with pytest.raises(Misuse, match="both have the queue %2F/limit-v1"):
        asyncio.run(QueueSource(vhost.parent).queues())


def test_a_folder_without_queues_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(NotOffloaded, match="msg_stores"):
        folder_module.find_vhosts(tmp_path)
