"""`offload mqtt archive` with a real mosquitto: what it stores, acknowledges, and says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import finish
from mqtt_world import Publisher, archived, archiving, is_in_order, publish, topic_of, until
from servers import mosquitto
from servers.mosquitto import Mosquitto


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    mosquitto.require()
    with mosquitto.serving() as running:
        yield running


def size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*.segment"))


def test_messages_that_came_while_it_was_away_are_stored_in_order(broker: Mosquitto, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    command = (broker.url, folder, "--filter", "away/+")
    first = archiving(*command)
    first.terminate()
    assert finish(first).code == 0
    sent = [(f"away/{i % 7}", b"%d" % i) for i in range(3000)]
    publish(broker.port, sent)

    second = archiving(*command)
    until(lambda: len(sent) * 30 < size_of(folder))
    second.terminate()
    ran = finish(second)

    assert archived(folder) == sent
    assert (ran.code, ran.lines[0].split(",")[0]) == (0, "mqtt: 3000 messages archived")


def test_a_kill_loses_nothing(broker: Mosquitto, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    command = (broker.url, folder, "--filter", "site/#")

    running = archiving(*command)
    with Publisher(broker.port, rate=2000) as publisher:
        for _ in range(3):
            grown = size_of(folder) + 10_000
            until(lambda: size_of(folder) > grown)  # noqa: B023 - it is called within the turn
            running.kill()
            finish(running)
            running = archiving(*command)
    publish(broker.port, [("site/end", b"-1")])
    until(lambda: b"site/end" in b"".join(each.read_bytes() for each in folder.rglob("*.segment")))
    running.terminate()

    assert finish(running).code == 0
    found = archived(folder)
    assert {*range(publisher.published)} <= {int(payload) for _, payload in found}
    assert is_in_order(found[:-1])
    assert all(topic == topic_of(int(payload)) for topic, payload in found[:-1])
