"""`offload status`: how far a tier is behind its source, without a running process, and without a change."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from command_line import Ran, offload, sync
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.cli.questions import Incident
from offload.cli.run_check import NO_PRICES, cost_as_json, cost_text
from offload.contracts.source import SourceStream
from offload.ground.errors import Denied, TryAgain
from offload.service.assembly import OpenedService
from offload.service.client import AskedProcess
from offload.service.config import RunConfig
from offload.service.costs import cost_of
from offload.service.preview import StreamPreview

NO_LISTEN = "the configuration has no `listen`"


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


def answers(ran: Ran) -> list[Any]:
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
    assert ran.lines[2].startswith("1 stream; not known how far behind ")
    assert ", because stream 'tiny': " in ran.lines[2]
    assert row["unknown"].startswith("stream 'tiny': ")
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
    assert cost is None
    assert ran.document["cost_unknown"].startswith("this store has no price here")
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
        "no stream is behind",
        f"nothing that source and tier show; not known of a process, because {NO_LISTEN}",
        "nothing that is not on the tier",
    ]
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
    monkeypatch.setattr("offload.service.client.PATIENCE_SECONDS", 60.0 if reply else 0.2)
    with answering(reply) as port:
        ran = of_config(tmp_path, port)

    assert answers(ran)[0] == f"no process answers on http://127.0.0.1:{port}: {why}"
    assert ran.document["process"] is None


@pytest.mark.parametrize("change", [{"error": Denied("no right")}, {"begins_part": True}, {"not_asked": "x"}])
@pytest.mark.parametrize("others", [0, 1])
def test_a_stream_that_cannot_be_compared_is_never_counted_as_safe(
    change: dict[str, Any], others: int
) -> None:
    """Its lag of 0 says nothing, also if it goes on in a new part."""
    known = StreamPreview(stream="safe", glob="*", source_next_offset=9)
    asked = Incident(
        arguments=["source", "a tier"],
        tier="a tier",
        streams=[StreamPreview(stream="orders", glob="*", **change), *[known] * others],
        left_out=0,
        process=AskedProcess(),
        cost=None,
    )

    found = {each.question: each for each in asked.answers()}

    behind = found["How far behind is the tier?"]
    lost = found["What would be lost if the source's disk died now?"]
    for answer in (behind, lost):
        assert (answer.unknown or "").startswith("stream 'orders': ")
        assert (answer.answer is None) is (others == 0)
        assert f"not known{' for 1 stream' if others else ''}, because stream 'orders': " in answer.text
    assert lost.command == "offload verify 'a tier'"


@pytest.mark.parametrize(("lags", "said"), [([40.2, 0.0], "1 stream, says the process; "), ([0.0, None], "")])
def test_the_process_says_how_far_behind_a_tier_is_that_does_not_answer(
    lags: list[float | None], said: str
) -> None:
    """Its lag of 0 shows nothing: it may not have looked since the store fell silent."""
    rows = [{"stream": f"s{n}", "state": "leading", "lag_seconds": lag} for n, lag in enumerate(lags)]
    silent = StreamPreview(stream="s0", glob="*", error=TryAgain("silent"), is_unanswered=True)
    asked = Incident(
        arguments=["run.toml"],
        tier="a tier",
        streams=[silent],
        left_out=0,
        process=AskedProcess(status={"summary": "leads", "problems": [], "streams": rows}),
        cost=None,
    )

    behind = asked.answers()[1]

    said = (
        f"{said}the oldest is 40 s old; not known for 1 stream, because " if said else "not known, because "
    )
    assert behind.text == f"{said}{silent.unknown_because}"


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
    assert "; not known for 1 stream, because stream 'other': " in behind
    assert waiting.startswith("stream 'other': ")
    assert "; not known for 1 stream, because stream 'other': " in loss
    assert loss.endswith("; and 1 stream with `follow = false`")


class TestASilentStore:
    """A port that accepts every connection, and answers none of its requests."""

    @pytest.fixture
    def tier(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """Yield the arguments of a tier there. Patience and the time until the first line are short."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setattr("offload.store.retry.SILENT_SECONDS", 0.1)
        with answering(None) as port:
            options = (
                f"endpoint_url=http://127.0.0.1:{port}",
                "patience_seconds=1",
                "read_timeout_seconds=1",
            )
            yield ["s3://bucket/tier", *(word for option in options for word in ("-o", option))]

    def test_every_answer_is_not_known_and_the_first_line_comes_while_it_waits(self, tier: list[str]) -> None:
        ran = offload("status", source_url(DATA / "tiny"), *tier, "--unused")

        silence = "s3://bucket/tier does not answer: waited for 1 s"
        assert ran.code == 1
        waiting = r"note: waiting for s3://bucket/tier for \d s of at most 1 s: no answer yet"
        assert re.match(waiting, ran.stderr)
        assert ran.lines[1].split("\t") == ["tiny", *["not known"] * 8]
        unknown = f"not known, because stream 'tiny': {silence}"
        assert [line.partition("? ")[2] for line in ran.lines[-10::2]] == [
            f"not known, because {NO_LISTEN}",
            unknown, f"stream 'tiny': {silence}", unknown, f"not known, because {NO_PRICES}",
        ]  # fmt: skip
        said = ran.stdout.decode()
        assert "is behind" not in said
        assert "at least" not in said
        assert f"the unused objects are not known: {silence}" in ran.stderr

    def test_a_check_calls_what_was_not_tried_no_failure(self, tier: list[str]) -> None:
        ran, run = offload("check", *tier), offload("run", "--check", source_url(DATA / "tiny"), *tier)

        assert (ran.code, run.code) == (1, 1)
        assert "reading: NO; writing: not tried; committing: not tried" in ran.lines
        assert "PROBLEM: the store cannot read" in run.lines
        assert "PROBLEM: nobody could try whether the store can write" in run.lines
        assert "cost: not known, because " in run.text

    def test_json_has_null_and_a_reason_for_what_is_not_known(self, tier: list[str]) -> None:
        ran = offload("status", source_url(DATA / "tiny"), *tier, "--unused", "--json")

        (row,) = ran.document["streams"]
        nulls = ("lag_records", "lag_seconds", "stored_bytes", "fragments_per_month", "unused_bytes")
        assert ran.code == 1
        assert [row[name] for name in nulls] == [None] * 5
        assert all("does not answer" in row[name] for name in ("unknown", "unused_unknown"))
        assert (ran.document["cost_per_month"], ran.document["cost_unknown"]) == (None, NO_PRICES)
        assert [each["answer"] for each in ran.document["questions"]][1::2] == [None, None]
        assert all(each["answer"] or each["unknown"] for each in ran.document["questions"])

    def test_it_is_asked_for_few_streams_and_then_for_no_other(
        self, tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each of a thousand streams would wait as long as the first one."""
        monkeypatch.setattr("offload.cli.run_check.SNAPSHOTS_AT_ONCE", 1)
        asked = []

        async def unanswered(opened: OpenedService, stream: SourceStream) -> StreamPreview:
            asked.append(stream.name)
            return StreamPreview(stream=stream.name, glob="*", error=TryAgain("dead"), is_unanswered=True)

        monkeypatch.setattr("offload.cli.run_check.preview_stream", unanswered)
        for name in ("a", "b", "c"):
            write_stream(tmp_path / name, simple_chunks(1))

        ran = offload("status", source_url(tmp_path), *tier, "--json")

        assert (len(asked), [row["error"] for row in ran.document["streams"]]) == (1, ["dead"] * 3)
        [line] = [line for line in ran.stderr.splitlines() if "dead" in line]
        assert line.startswith("offload: stream 'a': dead (and 2 more streams); run: offload run --check ")


def test_the_cost_of_streams_of_which_none_is_known_is_no_number() -> None:
    unseen = StreamPreview(stream="orders", glob="*", error=TryAgain("dead"))
    config = RunConfig.model_validate({"source": "rabbitmq:///x", "tier": "s3://b/t"})

    none, some = cost_of(config, [unseen]), cost_of(config, [unseen, replace(unseen, source_next_offset=9)])

    assert cost_text(none) == "cost: not known, because no stream could be compared with the tier"
    assert cost_as_json(none)["cost_per_month"] is None
    assert cost_text(some).startswith("cost of a month: at least 0.00 ")


def test_a_source_of_which_no_stream_is_followed_is_not_called_safe() -> None:
    asked = Incident(
        arguments=["s", "t"], tier="t", streams=[], left_out=1, process=AskedProcess(), cost=None
    )

    _, behind, _, loss, _ = (each.text for each in asked.answers())

    assert (behind, loss) == ("there is no stream to compare", "1 stream with `follow = false`")


def test_the_stored_and_the_unused_bytes_are_those_of_all_parts(tmp_path: Path) -> None:
    chunks = list(simple_chunks(5))
    write_stream(tmp_path / "orders", chunks[:1])
    sync(tmp_path / "orders", tmp_path / "tier")
    for file in (tmp_path / "orders").iterdir():
        file.unlink()
    write_stream(tmp_path / "orders", chunks[2:4])
    sync(tmp_path / "orders", tmp_path / "tier", "--new-part")
    sizes = {path.parent.parent.name: path.stat().st_size for path in tmp_path.rglob("*.fragment")}
    unused = tmp_path / "tier" / "orders-part-2" / "data" / f"{9:020}.{uuid4()}.fragment"
    unused.write_bytes(b"never committed")

    ran = offload("status", source_url(tmp_path / "orders"), tmp_path / "tier", "--json", "--unused")

    (row,) = ran.document["streams"]
    assert {*sizes} == {"orders", "orders-part-2"}
    assert row["stored_bytes"] == sum(sizes.values())
    assert row["unused_bytes"] == len(b"never committed")


def test_a_gap_on_the_tier_is_shown_with_the_command_that_lists_it(tmp_path: Path) -> None:
    shutil.copytree(DATA / "filtered", tmp_path / "filtered")
    source, tier = source_url(tmp_path / "filtered"), tmp_path / "tier"
    later = sorted((tmp_path / "filtered").glob("*.segment"))[1:]
    for path in later:
        path.rename(tmp_path / path.name)
    assert offload("sync", source, tier).code == 0
    for path in later[1:]:
        (tmp_path / path.name).rename(path)
    min((tmp_path / "filtered").glob("*.segment")).unlink()
    assert offload("sync", source, tier, "--new-part").code == 0

    ran, document = offload("status", source, tier), offload("status", source, tier, "--json").document

    assert f"filtered: 1 gap, 6250 records lost: offload gaps {tier} filtered" in ran.lines
    [stream] = document["streams"]
    assert (stream["gaps"], stream["lost_records"]) == (1, 6250)
