"""The words of the commands: operators see none of the commit protocol unless they ask with `--verbose`.

`docs/command-line.md` lists every command and every option.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import small_tier
from command_line import offload, sync
from osiris_data import DATA

from offload.cli.commands import BUILT_IN

PAGE: Final = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
PROTOCOL: Final = re.compile(r"(?i)(?<!-)\b(incarnation|epoch|guest|condemned|resolve)(s|d)?\b")
"""Words of the protocol. The name of an option, `--incarnation`, is none."""

SHARED: Final = {"--help", "--option", "-h", "-o"}
"""Options that the page explains once, for all commands."""


@cache
def shown_by(*command: str) -> str:
    """Return the help text of a command."""
    ran = offload(*command, "--help")
    assert ran.code == 0, ran.stderr
    return ran.text


def commands_in(text: str) -> list[str]:
    """Return the commands that a help text lists."""
    return re.findall(r"^  ([a-z][a-z-]*)  ", text.partition("\nCommands")[2], re.MULTILINE)


def options_in(text: str) -> set[str]:
    """Return the options that a help text explains."""
    found = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?: */ *(--[a-z-]+))?", text, re.MULTILINE)
    return {option for pair in found for option in pair if option} - SHARED


def section(name: str) -> str:
    """Return the section of the page about one command."""
    [found] = re.findall(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


ALL: Final = commands_in(shown_by())


def test_the_page_lists_every_command_in_the_order_of_the_help() -> None:
    listed = re.findall(r"^\| \[`([a-z-]+)`\]\(#[a-z-]+\)", PAGE, re.MULTILINE)

    assert listed == commands_in(shown_by())
    assert re.findall(r"^## ([a-z-]+)$", PAGE, re.MULTILINE) == listed


def test_the_page_lists_the_options_of_all_commands() -> None:
    assert [each for each in sorted(options_in(shown_by())) if f"`{each}`" not in PAGE] == []


@pytest.mark.parametrize("name", ALL)
def test_the_section_of_a_command_lists_its_options_and_no_others(name: str) -> None:
    helps = [shown_by(name), *(shown_by(name, job) for job in commands_in(shown_by(name)))]
    options = {option for text in helps for option in options_in(text)}
    usage = re.findall(r"```(?:sh|text)\n(.*?)```", section(name), re.DOTALL)[0]

    documented = set(re.findall(r"--[a-z-]+", usage)) - SHARED

    assert documented == options


@pytest.mark.parametrize("name", commands_in(shown_by("spark")))
def test_the_page_lists_the_jobs_of_spark(name: str) -> None:
    assert f"offload spark {name} " in section("spark")
    assert f"| `{name}` |" in section("spark")


@pytest.mark.parametrize("name", ["", *BUILT_IN])
def test_help_has_no_word_of_the_protocol(name: str) -> None:
    assert PROTOCOL.findall(shown_by(*filter(None, [name]))) == []


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with whole streams, running attempts, groups and unreferenced objects. Tests change nothing."""
    folder = tmp_path_factory.mktemp("words")
    for key, raw in small_tier.make(folder).items():
        path = folder / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    sync(DATA / "tiny", folder / "tier")
    return folder / "tier"


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("inspect", "marked"),
        ("verify",),
        ("sweep", "--dry-run"),
        ("trim", "marked", "--before", "15", "--dry-run"),
        ("delete", "marked", "--dry-run"),
        ("rebuild", "marked", "--dry-run"),
        ("rebuild",),
        ("abandon", "marked"),
        ("check", "--read-only"),
        ("compact", "tiny"),
    ],
    ids=" ".join,
)
def test_output_has_no_word_of_the_protocol(tier: Path, words: tuple[str, ...]) -> None:
    command, *others = words

    ran = offload(command, tier, *others)

    assert ran.text or ran.stderr or command == "compact"
    assert PROTOCOL.findall(ran.text + ran.stderr) == []


def test_inspect_shows_the_protocol_with_verbose(tier: Path) -> None:
    root = offload("inspect", tier, "marked", "--json").document["root"]

    shown = offload("inspect", tier, "marked", "--verbose").text

    assert f"incarnation {root['incarnation']}" in shown
    assert f"root version {root['version']}, epoch {root['epoch']}, live" in shown
    assert re.search(r"ledger 25, epoch \d+, the writer's", shown)


def test_errors_about_a_lost_history_have_no_word_of_the_protocol(tmp_path: Path) -> None:
    """All roots are lost, and a sync begins the stream again beside the old data."""
    tier = tmp_path / "tier"
    sync(DATA / "tiny", tier)
    for root in (tier / "tiny" / "metadata").iterdir():
        root.unlink()
    lost = (tier / "tiny" / "data").rename(tmp_path / "lost")
    sync(DATA / "tiny", tier)
    for fragment in lost.iterdir():
        fragment.rename(tier / "tiny" / "data" / fragment.name)

    for words in [("sweep", tier, "--grace", "0"), ("verify", tier), ("rebuild", tier, "tiny", "--dry-run")]:
        ran = offload(*words)

        assert ran.code == 1
        assert " history " in ran.text + ran.stderr
        assert PROTOCOL.findall(ran.text + ran.stderr) == []
