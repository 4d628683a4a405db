"""Help and shell completion: every command takes `-h`, and its arguments have descriptive names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import few
from command_line import offload

from offload.cli.app import build
from offload.cli.commands import BUILT_IN
from offload.opening.plugins import Plugins

SPARK = [("spark", job) for job in ("backfill", "copy", "verify", "compact", "rebuild", "export")]
COMMANDS = [(), ("spark",), *((name,) for name in (*BUILT_IN, "conformance", "new-backend")), *SPARK]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_short_or_long_and_names_every_argument_in_capitals(command: tuple[str, ...]) -> None:
    short, long = offload(*command, "-h"), offload(*command, "--help")

    assert (short.code, short.stdout) == (0, long.stdout)
    usage = re.search(r"Usage: offload.*?\n\n", short.text, re.DOTALL)
    assert usage is not None
    assert re.findall(r"[{\[][a-z]\w*[}\]]", usage[0]) == []
    assert re.findall(r"^  -.*<(?:str|int|float|path|list\S*|int range)>", short.text, re.MULTILINE) == []


@pytest.mark.parametrize("words", [["--help", "ls"], ["--debug", "--help", "ls"], ["-h", "verify"]], ids=str)
def test_help_before_a_command_lists_all_commands(words: list[str]) -> None:
    shown = offload(*words)

    assert shown.code == 0
    assert {*BUILT_IN} <= {line.split()[0] for line in shown.lines if line.strip()}


def test_a_command_line_reads_the_signature_of_its_command_alone() -> None:
    """To read those of all others would take longer than many a command."""
    names = {each.name for each in build(Plugins(), "ls", alone=True).registered_commands}

    assert names == {"ls"}


def test_a_command_that_does_not_exist_is_an_error_beside_all_commands() -> None:
    found = {each.name for each in build(Plugins(), "lss", alone=True).registered_commands}
    ran = offload("lss")

    assert found == {*BUILT_IN}
    assert ran.code == 2
    assert "No such command 'lss'" in ran.stderr


@few("words that bash completes; make test has a command and a choice", 2)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("offload ver", ["verify"]),
        ("offload verify --lev", ["--level"]),
        ("offload verify --level che", ["checksum"]),
        ("offload --debug spark back", ["backfill"]),
    ],
)
def test_bash_completes_commands_options_and_choices(tmp_path: Path, line: str, expected: list[str]) -> None:
    program = tmp_path / "offload"
    program.write_text(f"#!{sys.executable}\nfrom offload.cli.main import main\nmain()\n")
    program.chmod(0o755)
    words = " ".join(f"'{word}'" for word in line.split())
    script = (
        f'eval "$(offload --show-completion bash)"; COMP_WORDS=({words}); '
        "COMP_CWORD=$((${#COMP_WORDS[@]}-1)); "
        '_offload_completion offload; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }

    shown = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)

    assert shown.stdout.split() == expected
