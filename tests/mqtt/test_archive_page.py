"""The commands of docs/archive-mqtt.md run, with a real mosquitto, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import finish, offload
from mqtt_world import archiving, publish, until
from ready import ReadyCommand
from servers import mosquitto
from servers.mosquitto import Mosquitto

PAGE = (Path(__file__).parents[2] / "docs" / "archive-mqtt.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
SHOWN = [
    line
    for block in re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]


@pytest.fixture
def broker() -> Iterator[Mosquitto]:
    mosquitto.require()
    with mosquitto.serving() as running:
        yield running


def shape(text: str) -> str:
    """Return a line without what differs from run to run."""
    return re.sub(r"\d+", "0", re.sub(r"offload[0-9a-f]{16}|mqtt://[\w.]+(:\d+)?", "_", text))


def test_the_commands_of_the_page_do_what_it_says(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = {shape(line) for line in SHOWN}
    printed = set[str]()
    for command in COMMANDS:
        words = [word.replace("mqtt://localhost", broker.url) for word in shlex.split(command)][1:]
        if words[:2] != ["mqtt", "archive"]:
            ran = offload(*words)
            assert ran.code == 0, ran.stderr
            printed |= {shape(line) for line in ran.lines}
            continue
        running = ReadyCommand(*words)
        until(lambda: "archiving" in running.stderr)  # noqa: B023 - it is called within the turn
        publish(broker.port, [("site/7/temperature", b"20.5"), *[("site/7/alarm", b"1")] * 2])
        until(lambda: any(b"site/7/alarm" in path.read_bytes() for path in tmp_path.rglob("*.segment")))
        running.terminate()
        ended = finish(running)
        assert ended.code == 0, ended.stderr
        printed |= {shape(line) for line in (*ended.lines, *ended.stderr.splitlines())}

    assert len(COMMANDS) >= 5
    assert shown - printed == set()


def ends_with(folder: Path, payload: bytes) -> bool:
    newest = max(folder.rglob("*.segment"), key=lambda path: path.name)
    return payload in newest.read_bytes()[-200:]


def test_an_archive_is_sorted_and_replayed_by_topic(broker: Mosquitto, tmp_path: Path) -> None:
    """The tier has what is sealed, in the order of topics. The folder has the rest."""
    folder, tier = tmp_path / "archive", tmp_path / "tier"
    sent = [(f"site/{i % 10}/line/{i % 7}/state", b"%d" % i) for i in range(3000)]
    running = archiving(broker.url, folder, "--filter", "site/#", "--roll-size", "50KB")
    for first in range(0, len(sent), 300):  # small batches: a ledger ends with the one that fills it
        publish(broker.port, sent[first : first + 300])
        until(lambda last=sent[first + 299]: ends_with(folder, last[1]))
    running.terminate()
    assert finish(running).code == 0

    by = ("--source-option", "by=mqtt:topic")
    ran = offload("sync", f"topics+rabbitmq://{folder}", tier, *by)
    assert ran.code == 0, ran.stderr
    ran = offload(
        *("mqtt", "replay", tier, "mqtt.topics", "--filter", "site/+/line/3/#"),
        *("--source", f"rabbitmq://{folder}", "--by", "mqtt:topic"),
    )
    assert ran.code == 0, ran.stderr

    found = [(each["topic"], str(each["value"]).encode()) for each in ran.objects]
    expected = [each for each in sent if "/line/3/" in each[0]]
    assert sorted(found) == sorted(expected)
    for topic in {topic for topic, _ in expected}:
        assert [each for each in found if each[0] == topic] == [each for each in expected if each[0] == topic]
    assert offload("ls", tier, "--json").document["messages"] > 1000, "nothing was sorted"
