"""`offload help`: the pages of the documentation, without a browser and without a checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import offload

from offload.cli.commands import BUILT_IN

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "README")
NAMED = re.compile(r"offload help ([\w-]+(?:#[\w-]+)?)")


def test_all_pages_are_listed_with_their_titles() -> None:
    lines = offload("help").lines

    assert [line.split()[0] for line in lines] == PAGES
    assert "a-sync-stopped" in PAGES
    assert next(line for line in lines if line.startswith("run ")).endswith("  Run it beside RabbitMQ")


def test_a_section_is_printed_to_its_end_and_names_others_by_commands() -> None:
    ran = offload("help", "a-sync-stopped#make-room-on-the-tier")

    assert ran.code == 0
    assert ran.lines[0] == "## Make room on the tier"
    assert [line for line in ran.lines if line.startswith("## ")] == ["## Make room on the tier"]
    assert "A sync stopped: what now (offload help a-sync-stopped)" in offload("help", "run").text


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("a-sync-stoped", "did you mean: offload help a-sync-stopped"),
        ("zzz", "to list all: offload help"),
        ("run#zzz", "page 'run' has no section 'zzz'; it has: write-the-configuration"),
    ],
)
def test_a_topic_that_does_not_exist_is_one_line(topic: str, said: str) -> None:
    ran = offload("help", topic)

    assert ran.code == 2
    assert said in ran.error


@pytest.mark.parametrize("command", sorted(BUILT_IN))
def test_each_command_has_a_section(command: str) -> None:
    ran = offload("help", command)

    assert ran.code == 0
    assert command in ran.lines[0] or ran.lines[0].startswith("# ")


def test_each_topic_that_a_message_or_an_alert_names_can_be_printed() -> None:
    folders = (ROOT / name for name in ("offload", "plugins", "backends"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    files.append(ROOT / "examples" / "sidecar" / "prometheus" / "alerts.yml")
    topics = {topic for path in files for topic in NAMED.findall(path.read_text(encoding="utf-8"))}

    assert topics
    assert {topic: offload("help", topic).code for topic in topics} == dict.fromkeys(topics, 0)
