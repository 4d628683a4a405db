"""`offload status`: how far a tier is behind its source, without a running process, and without a change."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, offload, sync
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.cli.questions import Incident
from offload.errors import Denied
from offload.service.asking import AskedProcess
from offload.service.preview import StreamPreview


def source_url(folder: Path) -> str:
    return f"rabbitmq://{folder}"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def answering(reply: bytes | None) -> Iterator[int]:
    """Answer every connection to a port with these bytes, in a thread. None: accept, and say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as last:
        held = [last]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                if reply is not None:
                    connection.recv(4096)
                    connection.sendall(reply)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in held:
                each.close()


def http(document: object) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + json.dumps(document).encode()


def of_config(tmp_path: Path, port: int, more: str = "", *, options: Sequence[str] = ("--json",)) -> Ran:
    """Run `offload status` with a configuration that listens on a port. The source has one new chunk."""
    chunks = list(simple_chunks(2))
    write_stream(tmp_path / "source" / "orders", chunks[:1])
    sync(tmp_path / "source" / "orders", tmp_path / "tier")
    append_chunks(tmp_path / "source" / "orders", chunks[1:])
    (tmp_path / "run.toml").write_text(
        f'source = "rabbitmq://{tmp_path}/source"\ntier = "{tmp_path}/tier"\n'
        f'listen = "0.0.0.0:{port}"\n{more}'
    )
    return offload("status", tmp_path / "run.toml", *options)


def answers(ran: Ran) -> list[str]:
    return [each["answer"] for each in ran.document["questions"]]


def test_status_shows_what_the_tier_lacks_and_changes_nothing(tmp_path: Path) -> None:
    tier, chunks = tmp_path / "tier", list(simple_chunks(3))
    write_stream(tmp_path / "orders", chunks[:1])
    sync(tmp_path / "orders", tier)
    (first,) = tier.rglob("*.fragment")
    append_chunks(tmp_path / "orders", chunks[1:2])
    sync(tmp_path / "orders", tier)
    assert offload("trim", tier, "orders", "--before", 3).code == 0
    append_chunks(tmp_path / "orders", chunks[2:])
    before = files(tier)

    ran = offload("status", source_url(tmp_path / "orders"), tier, "--json", "--unused")

    (row,) = ran.document["streams"]
    assert ran.code == 0, ran.stderr
    assert (row["stream"], row["source_next_offset"], row["committed_offset"]) == ("orders", 9, 6)
    assert (row["lag_records"], row["lag_bytes"]) == (3, len(chunks[2]))
    assert row["unused_bytes"] == first.stat().st_size
    assert files(tier) == before


def test_a_source_that_does_not_continue_the_tier_is_an_error(tmp_path: Path) -> None:
    write_stream(tmp_path / "orders", simple_chunks(2))
    sync(tmp_path / "orders", tmp_path / "tier")
    write_stream(tmp_path / "other" / "orders", simple_chunks(3, records=2))

    ran = offload("status", source_url(tmp_path / "other" / "orders"), tmp_path / "tier")

    assert ran.code == 1
    assert "offload: stream 'orders': " in ran.stderr


@pytest.mark.parametrize("anchor", ["damaged", "absent"])
def test_a_number_that_cannot_be_read_is_not_known_and_never_0(tmp_path: Path, anchor: str) -> None:
    sync(DATA / "tiny", tmp_path / "tier")
    if anchor == "damaged":
        (tmp_path / "tier" / "tier.anchor").write_bytes(b"damaged")
    else:  # the tier then looks like a place that has none yet
        (tmp_path / "tier" / "tier.anchor").unlink()

    ran = offload("status", source_url(DATA / "tiny"), tmp_path / "tier")
    (row,) = offload("status", source_url(DATA / "tiny"), tmp_path / "tier", "--json").document["streams"]
    checked = offload("run", "--check", source_url(DATA / "tiny"), tmp_path / "tier")

    assert ran.code == 1
    assert ran.lines[1].split("\t") == ["tiny", *["not known"] * 7]
    assert ran.lines[2].startswith("1 stream, 0 behind ")
    assert ran.lines[2].endswith("; not known for 1 stream")
    assert (row["source_next_offset"], row["lag_records"], row["stored_bytes"]) == (None, None, None)
    assert '"*": 1 stream, ' in checked.text
    assert "tiny\t" + "not known\t" * 6 in checked.text


def test_the_error_of_a_stream_names_the_stream_once() -> None:
    named = StreamPreview(stream="orders", glob="*", error=Denied("stream 'orders': no right"))
    bare = StreamPreview(stream="orders", glob="*", error=Denied("no right"))

    assert named.problem == bare.problem == "stream 'orders': no right"


def test_a_tier_that_does_not_exist_lacks_everything_and_is_not_made(tmp_path: Path) -> None:
    ran = offload("status", source_url(DATA / "tiny"), tmp_path / "tier", "--unused")

    assert ran.code == 0, ran.stderr
    assert ran.lines[1].split("\t")[:4] == ["tiny", "10", "-", "10"]
    assert not (tmp_path / "tier").exists()


def test_the_five_questions_are_answered_by_the_process_the_source_and_the_tier(tmp_path: Path) -> None:
    """A process that listens on all addresses is asked on this machine."""
    status = {"summary": "leads 1 of 1 streams, stands by for 0", "problems": ["the source: x\ny", "b"]}
    with answering(http(status)) as port:
        ran = of_config(tmp_path, port)

    running, behind, waiting, loss, cost = answers(ran)
    assert ran.code == 0, ran.stderr
    assert running == "yes: it leads 1 of 1 streams, stands by for 0"
    assert behind.startswith("1 of 1 stream, by 3 records, ")
    assert waiting == "the source: x\ny (and 1 more)"
    assert (loss.startswith("3 records, "), loss.endswith(" B that no other replica has")) == (True, True)
    assert cost == "not known for this store"
    assert ran.document["process"] == status


@pytest.mark.parametrize(
    ("streams", "cell"), [([{"stream": "orders", "state": "standby"}], "standby"), ([], "-")]
)
def test_the_table_says_for_which_streams_the_process_leads(
    tmp_path: Path, streams: list[dict[str, str]], cell: str
) -> None:
    with answering(http({"summary": "", "problems": [], "streams": streams})) as port:
        ran = of_config(tmp_path, port, options=())

    assert ran.lines[0].endswith("\tstored\tprocess")
    assert ran.lines[1].startswith("orders\t")
    assert ran.lines[1].endswith(f"\t{cell}")


def test_the_text_has_each_question_with_its_command_in_two_lines(tmp_path: Path) -> None:
    """Each command of ours can be run as it is printed."""
    sync(DATA / "tiny", tmp_path / "tier")

    ran = offload("status", source_url(DATA / "tiny"), tmp_path / "tier")

    lines = ran.lines[-10:]
    assert [line.partition("? ")[0] for line in lines[::2]] == [
        "Is it running", "How far behind is the tier", "What is it waiting for",
        "What would be lost if the source's disk died now", "What does it cost",
    ]  # fmt: skip
    assert [line.partition("? ")[2] for line in lines[2:8:2]] == [
        "no stream is behind", "nothing", "nothing that is not on the tier",
    ]  # fmt: skip
    commands = [shlex.split(line) for line in lines[1::2]]
    assert [command[0] for command in commands] == ["systemctl", *["offload"] * 4]
    for _, *arguments in commands[1:]:
        assert offload(*arguments).code == 0, arguments


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another program answers there"),
        (http(["else"]), "another program answers there"),
        (http({"summary": None}), "another program answers there"),
        (http({"summary": "", "problems": [], "streams": [1]}), "another program answers there"),
        (None, "no answer within 0.2 s"),
    ],
)
def test_a_process_that_does_not_say_its_status_is_not_taken_for_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes | None, why: str
) -> None:
    monkeypatch.setattr("offload.service.asking.PATIENCE_SECONDS", 60.0 if reply else 0.2)
    with answering(reply) as port:
        ran = of_config(tmp_path, port)

    assert answers(ran)[0] == f"no process answers on http://127.0.0.1:{port}: {why}"
    assert ran.document["process"] is None


@pytest.mark.parametrize("change", [{"error": Denied("no right")}, {"begins_part": True}])
def test_a_stream_that_cannot_be_compared_is_never_counted_as_safe(change: dict[str, Any]) -> None:
    """Its lag of 0 says nothing, also if it goes on in a new part."""
    asked = Incident(
        arguments=["source", "a tier"],
        tier="a tier",
        streams=[StreamPreview(stream="orders", glob="*", **change)],
        left_out=0,
        process=AskedProcess(),
        cost=None,
    )

    found = {each.question: each for each in asked.answers()}

    unknown = "; not known for 1 stream that cannot be compared"
    assert found["How far behind is the tier?"].answer == "no stream is behind" + unknown
    lost = found["What would be lost if the source's disk died now?"]
    assert (lost.answer, lost.command) == (
        "nothing that is not on the tier" + unknown,
        "offload verify 'a tier'",
    )


def test_what_is_not_known_is_never_shown_as_nothing(tmp_path: Path) -> None:
    """Of a stream that cannot be read nobody knows the lag. A stream that is left out is on one disk only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    write_stream(tmp_path / "source" / "left", simple_chunks(1))
    write_stream(tmp_path / "source" / "other", simple_chunks(2))
    sync(tmp_path / "source" / "other", tmp_path / "tier")
    write_stream(tmp_path / "again" / "other", simple_chunks(3, records=2))
    (tmp_path / "source" / "other").rename(tmp_path / "away")
    (tmp_path / "again" / "other").rename(tmp_path / "source" / "other")

    ran = of_config(tmp_path, port, "[streams.left]\nfollow = false\n")

    running, behind, waiting, loss, _ = answers(ran)
    assert ran.code == 1
    assert running == f"no process answers on http://127.0.0.1:{port}: Connection refused"
    assert behind.endswith("; not known for 1 stream that cannot be compared")
    assert waiting.startswith("stream 'other': ")
    assert "; not known for 1 stream that cannot be compared; and 1 stream with `follow = false`" in loss
