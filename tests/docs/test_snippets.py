"""The blocks of the documents run: Python blocks unchanged, console blocks with the output beneath them.

In a console block every line that begins with `$ ` is a command, and the lines after it are its output on
stdout and stderr together. `...` stands for any text within a line, and alone for any number of lines. The
blocks of one page run in one folder, in order, as a reader would type them; each Python block stands alone. A
variable that a command exports is set for those after it.

The shell runs the first command of the README, and every command that is more than `offload` with arguments
and an `echo` of its exit code. The others run in this process, which takes a tenth of the time.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from offload.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the blocks of a page in this language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in BLOCK.finditer(text)
        if match[1] == language
    ]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


PLAIN = re.compile(r'offload ([^;<>|&*"]*?)(?:; echo (?:"(.*)\$\?"|\$\?))?')
"""`offload`, its arguments, and the text before its exit code if `echo` prints that."""

PYTHON = [
    pytest.param(page, line, code, id=f"{named(page)}:{line}")
    for page in PAGES
    for line, code in blocks(page, "python")
]
CONSOLES = [pytest.param(page, id=named(page)) for page in PAGES if blocks(page, "console")]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Make a working folder with those parts of a clone that the documents use."""
    for name in ("tests", "plugins", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("page", "line", "code"), PYTHON)
def test_python_blocks_run(clone, page, line, code):
    where = f"{named(page)}:{line}"
    exec(compile("\n" * (line - 1) + code, where, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", CONSOLES)
def test_console_blocks_print_the_output_that_they_show(clone, monkeypatch, page):
    monkeypatch.setenv("COLUMNS", "100")
    run = in_shell if page == ROOT / "README.md" else here
    for line, block in blocks(page, "console"):
        for command, expected in commands_of(block):
            if exported := re.fullmatch(r"export (\w+)=(\S+)", command):
                monkeypatch.setenv(exported[1], exported[2].replace("$PWD", str(clone)))
                continue
            found, run = run(command, clone), here
            assert re.fullmatch(pattern(expected), found), (
                f"{named(page)}:{line}: $ {command}\nshown:\n{expected}\nprinted:\n{found}"
            )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_executable_blocks_begin_at_the_margin(page):
    """An indented block would be displayed but never run."""
    assert re.findall(r"^[ >]+```(?:python|console)$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_the_readme_shows_the_main_commands():
    shown = {command.split()[1] for _, block in blocks(ROOT / "README.md", "console")
             for command, _ in commands_of(block) if command.startswith("offload")}  # fmt: skip

    assert {"demo", "sync", "ls", "inspect", "read", "verify"} <= shown


def commands_of(block: str) -> list[tuple[str, str]]:
    """Return each command of a console block, with the output that the block shows for it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert not parts[0].strip(), f"output before the first command: {parts[0]!r}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def here(command: str, folder: Path) -> str:
    """Return the output of a command, run in this process if `PLAIN` matches it, otherwise in the shell."""
    plain = PLAIN.fullmatch(command)
    if plain is None:
        return in_shell(command, folder)
    raw = io.BytesIO()
    printed = io.TextIOWrapper(raw, encoding="utf-8", newline="", write_through=True)
    with redirect_stdout(printed), redirect_stderr(printed):
        code = app.run(shlex.split(plain[1]))
        if "; echo" in command:
            print(f"{plain[2] or ''}{code}")
    return raw.getvalue().decode()


def in_shell(command: str, folder: Path) -> str:
    """Return the output of a command in the shell. A page prints exit codes itself, with `echo $?`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    return done.stdout.decode()


def pattern(expected: str) -> str:
    """Return a regular expression for output as a page shows it."""
    lines = []
    for line in expected.splitlines(keepends=True):
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*")
        else:
            lines.append(".*".join(re.escape(part) for part in line.split("...")))
    return "".join(lines)
