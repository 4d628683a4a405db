"""The output of commands: stdout has nothing but JSON under `--json`, and only a terminal gets colour."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from campaign import few
from command_line import PROGRAM, SOURCE, finish, offload, start, sync
from osiris_data import DATA
from osiris_writer import simple_chunks, write_stream
from rich.console import Console
from terminals import TERMINAL, all_of, on_terminal

from offload.cli.kit import bar
from offload.cli.kit import progress as progress_module
from offload.cli.kit.output import counted, one_line, print_json
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.state import run_async
from offload.model.position import Position
from offload.read.reader import Messages, StreamReader

ESCAPE = b"\x1b"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests do not change it."""
    folder = tmp_path_factory.mktemp("output") / "tier"
    sync(DATA, folder)
    return folder


def on_terminal_of_a_process(*arguments: object) -> tuple[int, bytes]:
    """Run a command in a process of its own, with a terminal for stdin, too."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **TERMINAL}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = all_of(ours)
    return process.wait(timeout=60), shown


def has_control_characters(raw: bytes) -> bool:
    return any(byte < 32 and byte not in b"\n\t" for byte in raw) or b"\x7f" in raw


class TestJson:
    def test_json_is_the_only_output_on_stdout(self, tier: Path, tmp_path: Path) -> None:
        for command in (
            ("sync", SOURCE, tmp_path / "tier"),
            ("sync", SOURCE, tmp_path / "tier"),
            ("sync", f"{SOURCE}/torn", tmp_path / "tier"),
            ("ls", tier),
        ):
            ran = offload(*command, "--json")
            assert all(isinstance(row, dict) for row in ran.objects)
            assert ran.objects
        for command in (("inspect", tier, "tiny"), ("verify", tier), ("plugins",)):
            assert isinstance(offload(*command, "--json").document, dict)

    @pytest.mark.parametrize("force", ["FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
    def test_json_has_no_colour_even_if_colour_is_forced(
        self, tier: Path, monkeypatch: pytest.MonkeyPatch, force: str
    ) -> None:
        monkeypatch.setenv(force, "1")
        for command in (("ls", tier), ("inspect", tier, "tiny"), ("verify", tier)):
            assert not has_control_characters(offload(*command, "--json").stdout)

    def test_json_has_no_colour_on_a_terminal(self, tier: Path) -> None:
        code, shown = on_terminal("inspect", tier, "tiny", "--json")

        assert code == 0
        assert json.loads(shown)["stream"] == "tiny"

    def test_errors_leave_stdout_empty(self, tmp_path: Path) -> None:
        for command in (("ls", tmp_path), ("inspect", tmp_path, "x"), ("verify", tmp_path)):
            ran = offload(*command, "--json")
            assert (ran.code, ran.stdout) == (1, b"")
            assert ran.error.startswith("offload: ")

    def test_a_failed_stream_is_reported_in_its_object_and_on_stderr(self, tmp_path: Path) -> None:
        ran = offload("sync", f"{SOURCE}/torn/crc_mismatch_middle_chunk", tmp_path / "tier", "--json")

        [row] = ran.objects
        assert row["error"] in ran.error

    def test_json_writes_names_beyond_ascii_unescaped(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "bücher 😀", simple_chunks(1))

        ran = sync(tmp_path / "bücher 😀", tmp_path / "tier")

        assert '"stream": "bücher 😀"' in ran.text


MARKUP = ("[bold]", "\\[red]", "[link=x]\\")
"""Names of streams that rich would take for instructions."""

NOT_ASCII = "bücher 😀"
ENCODINGS = ["utf-8", "ascii", "latin-1"]


class TestAnyText:
    """No stream name and no encoding of the output ends in a traceback."""

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_json_is_valid_and_utf_8(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        document = {"path": os.fsdecode(b"/srv/\xff\\\xfe"), "pair": "\udc80 \ud83d.", "name": NOT_ASCII}
        raw = BytesIO()
        stdout = TextIOWrapper(raw, encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stdout)

        print("first")
        print_json(document)

        first, printed = raw.getvalue().split(b"\n", 1)
        assert first == b"first"
        assert json.loads(printed.decode("utf-8")) == document
        assert NOT_ASCII.encode() in printed

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_lines_escape_characters_that_the_encoding_lacks(self, tmp_path: Path, encoding: str) -> None:
        write_stream(tmp_path / NOT_ASCII, simple_chunks(1))
        shown = NOT_ASCII.encode(encoding, "backslashreplace")

        for command in (
            ("sync", f"rabbitmq://{tmp_path / NOT_ASCII}", tmp_path / "tier"),
            ("ls", tmp_path / "tier"),
            ("inspect", tmp_path / "tier", NOT_ASCII),
            ("sync", "--help"),
        ):
            ran = offload(*command, encoding=encoding)
            assert (ran.code, ran.stderr) == (0, "")
            assert shown in ran.stdout or "--help" in command

    @few("languages with and without coercion; make test has one of four", 4)
    @pytest.mark.parametrize("language", ["C", "C.UTF-8"])
    @pytest.mark.parametrize("coercion", ["0", "1"])
    def test_an_error_escapes_a_path_that_is_not_utf_8(
        self, tmp_path: Path, language: str, coercion: str
    ) -> None:
        place = os.fsdecode(bytes(tmp_path) + b"/\xff-\xc3\xa9")
        Path(place).mkdir()
        env = {**os.environ, "LC_ALL": language, "PYTHONCOERCECLOCALE": coercion, "PYTHONUTF8": coercion}

        refused = finish(start("ls", place, env=env))
        demo = finish(start("demo", place, env=env))

        assert (refused.code, refused.stdout) == (1, b"")
        assert "\\udcff-" in refused.error
        assert (demo.code, demo.stderr) == (0, "")
        assert "\\udcff-" in demo.text


def test_a_count_agrees_with_its_noun() -> None:
    assert [counted(number, "stream") for number in (0, 1, 2)] == ["0 streams", "1 stream", "2 streams"]
    assert counted(2, "batch", "batches") == "2 batches"


def test_the_demo_closes_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has requests in flight. A caller that takes only the first messages must close the reader."""
    events, read_all, offset_of = [], StreamReader.messages, StreamReader.offset_of

    async def messages(self: StreamReader, start: int) -> AsyncIterator[Messages]:
        try:
            async for batch in read_all(self, start):
                yield batch
        finally:
            await asyncio.sleep(0.1)  # the time that requests may take to be cancelled
            events.append("closed")

    async def noted(self: StreamReader, position: Position) -> int:
        events.append("next place")
        return await offset_of(self, position)

    monkeypatch.setattr(StreamReader, "messages", messages)
    monkeypatch.setattr(StreamReader, "offset_of", noted)

    assert offload("demo").code == 0
    assert events == ["next place", "closed"] * 2


@pytest.fixture
def ctrl_c_of_python() -> Iterator[None]:
    """Start a command with Python's own handler of Ctrl-C. Tests may run with Spark's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_during_the_handover_of_a_result_logs_no_error(
    presses: int, caplog: pytest.LogCaptureFixture, ctrl_c_of_python: None
) -> None:
    """The signal arrives in a callback of the event loop. A second signal ends the callback itself."""
    went_on = []

    async def main() -> None:
        result = asyncio.get_running_loop().create_future()

        def hand_over() -> None:
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            went_on.append(True)
            result.set_result(None)

        asyncio.get_running_loop().call_soon(hand_over)
        await result

    with pytest.raises(KeyboardInterrupt):
        run_async(main)

    assert len(went_on) == (presses == 1)
    assert not caplog.records
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class TestWithoutATerminal:
    @pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
    def test_lines_have_no_colour_in_a_pipe(
        self, tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        monkeypatch.setenv(variable, "xterm-256color")
        for command in (
            ("sync", SOURCE, tmp_path / "tier"),
            ("ls", tier),
            ("inspect", tier, "tiny"),
            ("verify", tier),
            ("plugins",),
            ("--help",),
            ("read", tier, "nothing"),
        ):
            ran = offload(*command)
            assert not has_control_characters(ran.stdout + ran.stderr.encode()), command

    def test_no_progress_is_shown_in_a_pipe(self, tmp_path: Path) -> None:
        process = finish(start("sync", SOURCE + "/tiny", tmp_path / "tier"))

        assert (process.code, process.stderr) == (0, "")
        assert not has_control_characters(process.stdout)

    def test_lines_are_not_cut_or_wrapped_in_a_pipe(self, tmp_path: Path) -> None:
        name = "long-" + "x" * 240
        write_stream(tmp_path / name, simple_chunks(1))
        sync(tmp_path / name, tmp_path / "tier")

        assert offload("ls", tmp_path / "tier").lines[1].startswith(name + "\t")
        assert offload("inspect", tmp_path / "tier", name).lines[0].startswith(name + "  ")


class TestOnATerminal:
    def test_ls_prints_a_table_on_a_terminal(self, tier: Path) -> None:
        code, shown = on_terminal_of_a_process("ls", tier)

        assert code == 0
        assert ESCAPE in shown  # the column heads are bold
        assert b"\t" not in shown
        assert b"batches" in shown

    def test_inspect_prints_a_tree_on_a_terminal(self, tier: Path) -> None:
        code, shown = on_terminal("inspect", tier, "batches")

        assert code == 0
        assert "├── root version 3".encode() in shown
        assert "└── ".encode() in shown

    def test_sync_shows_its_progress_and_erases_it(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", simple_chunks(20000, records=10), segment_chunks=2000)

        code, shown = on_terminal_of_a_process("sync", f"rabbitmq://{tmp_path}/orders", tmp_path / "tier")

        assert code == 0
        assert b"uploading orders" in shown
        assert b"100%" in shown
        assert b"\x1b[2K" in shown  # the sequence that erases the line
        assert b"orders: 200000 messages" in shown

    def test_verify_shows_its_progress(self, tier: Path) -> None:
        code, shown = on_terminal("verify", tier)

        assert code == 0
        for stream in (b"batches", b"filtered", b"tiny"):
            assert b"verifying " + stream in shown
        assert b"100%" in shown
        assert b"all of them sound" in shown

    @pytest.mark.parametrize("command", [("verify",), ("sync", f"{SOURCE}/tiny")], ids=lambda words: words[0])
    def test_json_silences_progress(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        sync(DATA / "tiny", tmp_path / "tier")

        code, shown = on_terminal(*command, tmp_path / "tier", "--json")

        assert code == 0
        assert not has_control_characters(shown.replace(b"\r\n", b"\n"))

    def test_progress_shows_done_total_and_rate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = StringIO()
        console = Console(file=shown, force_terminal=True, width=120)
        monkeypatch.setattr(bar, "stderr", lambda: console)
        monkeypatch.setattr(progress_module, "on_terminal", lambda: True)

        with progress() as show:
            for done in (25, 50):
                show(
                    CommandProgress(
                        what="verifying a", done=done, total=100, size_bytes=done * 2**20, note=", 1 damaged"
                    )
                )
            console.file.flush()

        assert "verifying a, 1 damaged" in shown.getvalue()
        assert " 50%" in shown.getvalue()
        assert "50.0 MiB, " in shown.getvalue()
        assert "/s" in shown.getvalue()

    def test_no_color_turns_colour_off(self, tier: Path) -> None:
        code, shown = on_terminal("ls", tier, env={"NO_COLOR": "1"})

        assert code == 0
        assert b"\t" not in shown  # the command found a terminal
        assert b"\x1b[3" not in shown
        assert b"\x1b[9" not in shown

    def test_a_hostile_name_cannot_drive_the_terminal(self, tmp_path: Path) -> None:
        name = "\x1b]0;x\x07\x1b[2J[bold]"
        write_stream(tmp_path / name, simple_chunks(1))
        sync(tmp_path / name, tmp_path / "tier")

        for command in (("ls", tmp_path / "tier"), ("inspect", tmp_path / "tier", name)):
            code, shown = on_terminal(*command)
            assert code == 0
            assert b"\x1b]0;" not in shown
            assert b"\x1b[2J" not in shown
            assert b"[bold]" in shown

    def test_names_are_not_interpreted_as_markup(self, tmp_path: Path) -> None:
        for name in MARKUP:
            write_stream(tmp_path / "broker" / name, simple_chunks(1))
        sync(tmp_path / "broker", tmp_path / "tier")

        listed = on_terminal("ls", tmp_path / "tier")
        inspected = [on_terminal("inspect", tmp_path / "tier", name) for name in MARKUP]

        for name, (code, shown) in zip(MARKUP, inspected, strict=True):
            assert (code, name.encode() in shown) == (0, True), shown
            assert (listed[0], name.encode() in listed[1]) == (0, True), listed

    @pytest.mark.parametrize("name", [*MARKUP, "a[/x]", "[/]", "\x1b[2J[/]", "{task.secret}"])
    def test_progress_can_show_any_name(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """Sources other than folders can have streams with such names."""
        shown = StringIO()
        console = Console(file=shown, force_terminal=True, width=120)
        monkeypatch.setattr(bar, "stderr", lambda: console)
        monkeypatch.setattr(progress_module, "on_terminal", lambda: True)

        with progress() as show:
            show(CommandProgress(what=f"uploading {name}", done=1, total=2, size_bytes=1000))

        assert f"uploading {one_line(name)}" in shown.getvalue()

    def test_read_prints_the_same_bytes_on_a_terminal_and_in_a_pipe(self, tier: Path) -> None:
        code, shown = on_terminal_of_a_process("read", tier, "tiny", "--decode", "amqp")

        assert code == 0
        assert [json.loads(line)["offset"] for line in shown.split(b"\r\n")[:-1]] == list(range(10))


def test_a_command_with_a_closed_stdout_succeeds(tmp_path: Path) -> None:
    """As in `offload sync … >&-`."""
    source = f"rabbitmq://{DATA / 'tiny'}"
    command = " ".join(f"'{word}'" for word in (*PROGRAM, "sync", source, str(tmp_path / "tier")))

    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert offload("ls", tmp_path / "tier", "--json").objects[0]["messages"] == 10
