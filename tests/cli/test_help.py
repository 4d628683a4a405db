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

from offload.cli.commands import BUILT_IN

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
