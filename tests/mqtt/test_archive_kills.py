"""kill -9 of archives and brokers under load: what the broker confirmed to its publisher is in the folder."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from campaign import campaign
from command_line import finish
from mqtt_world import Publisher, archived, archiving, is_in_order, publish, topic_of, until
from ready import ReadyCommand
from servers import mosquitto
from servers.mosquitto import Mosquitto
from servers.processes import free_port
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

pytestmark = campaign("minutes beside real brokers; make test kills an archive three times beside mosquitto")

KILLS = 30
ROUNDS_OF_BOTH = 5


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_folder("archive-kills") as folder:
        yield folder


class Archive:
    """An archive of `site/#` that is killed and started again."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._running = self._start()

    def _start(self) -> ReadyCommand:
        return archiving(self.url, self.folder, "--filter", "site/#")

    @property
    def size_bytes(self) -> int:
        return sum(each.stat().st_size for each in self.folder.rglob("*.segment"))

    def kill(self) -> None:
        """Kill it at a random moment after it has stored something."""
        grown = self.size_bytes + 10_000
        until(lambda: self.size_bytes > grown, 60)
        time.sleep(random.random() * 0.2)
        self._running.kill()
        finish(self._running)

    def start(self) -> None:
        self._running = self._start()

    def stop(self, port: int) -> str:
        """End it in order when it has everything. Return its output."""
        publish(port, [("site/end", b"-1")])
        newest = lambda: max(self.folder.rglob("*.segment"), key=lambda path: path.name)  # noqa: E731
        until(lambda: b"site/end" in newest().read_bytes()[-100_000:], 60)
        self._running.terminate()
        ran = finish(self._running)
        assert ran.code == 0, ran.stderr
        return ran.text

    def judge(
        self, publisher: Publisher, capsys: pytest.CaptureFixture[str], what: str, *, ordered: bool = False
    ) -> None:
        """Assert that nothing is lost. Print the counts. If the broker lived on, topics are in order, too.

        A publisher whose broker ends sends the old messages again while new ones come.
        """
        found = [each for each in archived(self.folder) if each[0] != "site/end"]
        numbers = [int(payload) for _, payload in found]
        again, lost = len(numbers) - len({*numbers}), len({*range(publisher.published)} - {*numbers})
        with capsys.disabled():
            counts = f"{len(numbers)} stored, {again} again, {lost} lost"
            print(f"\n{what}: {publisher.published} confirmed, {counts}")
        assert {*range(publisher.published)} == {*numbers}
        assert not ordered or is_in_order(found)
        assert all(topic == topic_of(int(payload)) for topic, payload in found)


def test_thirty_kills_of_the_archive_lose_nothing(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mosquitto.require()
    with mosquitto.mosquitto(scratch) as broker:
        archive = Archive(broker.url, scratch / "archive")
        with Publisher(broker.port, rate=1000) as publisher:
            for _ in range(KILLS):
                archive.kill()
                archive.start()
        archive.stop(broker.port)

    archive.judge(publisher, capsys, f"mosquitto, {KILLS} kills of the archive", ordered=True)


def test_a_clean_stop_of_mosquitto_loses_nothing(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stop saves its sessions and what they wait for, also while the archive is killed."""
    mosquitto.require()
    with mosquitto.mosquitto(scratch) as broker:
        archive = Archive(broker.url, scratch / "archive")
        with Publisher(broker.port, rate=1000) as publisher:
            for _ in range(5):
                archive.kill()
                broker.stop()
                broker.start()
                archive.start()
        archive.stop(broker.port)

    archive.judge(publisher, capsys, "mosquitto, 5 stops of the broker and kills of the archive")


def test_kills_of_rabbitmq_and_the_archive_lose_nothing(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    ports = free_port(), free_port(), free_port()
    with ExitStack() as stack:

        def started() -> Broker:
            return stack.enter_context(rabbitmq(scratch, has_streams=False, has_mqtt=True, ports=ports))

        broker = started()
        archive = Archive(f"mqtt://127.0.0.1:{broker.mqtt_port}", scratch / "archive")
        with Publisher(ports[2], rate=500) as publisher:
            for _ in range(ROUNDS_OF_BOTH):
                archive.kill()
                broker.kill()
                stack.close()  # its port mapper, too
                broker = started()
                archive.start()
                until(lambda: archive.size_bytes > 0)
        archive.stop(ports[2])

    archive.judge(publisher, capsys, f"RabbitMQ, {ROUNDS_OF_BOTH} kills of the broker and the archive")


def test_a_kill_of_mosquitto_loses_what_it_had_not_saved(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page says so: this is the broker's loss, and no setting avoids it."""
    mosquitto.require()
    broker = Mosquitto(scratch, ("persistence true",))
    broker.start()
    archive = Archive(broker.url, scratch / "archive")
    archive._running.terminate()
    finish(archive._running)
    sent = [("site/1", b"%d" % i) for i in range(900)]
    publish(broker.port, sent)
    broker.kill()
    broker.start()
    try:
        archive.start()
        archive.stop(broker.port)
    finally:
        broker.stop()

    found = archived(scratch / "archive")
    with capsys.disabled():
        print(f"\nmosquitto killed, autosave at its default: {len(found) - 1} of {len(sent)} are left")
    assert len(found) < len(sent)


def test_a_clean_stop_without_persistence_loses_all(scratch: Path) -> None:
    mosquitto.require()
    with mosquitto.mosquitto(scratch, "persistence false") as broker:
        archive = Archive(broker.url, scratch / "archive")
        archive._running.terminate()
        finish(archive._running)
        publish(broker.port, [("site/1", b"%d" % i) for i in range(900)])
        broker.stop()
        broker.start()
        archive.start()
        archive.stop(broker.port)

    assert archived(scratch / "archive") == [("site/end", b"-1")]


def test_a_message_of_the_largest_size_is_stored(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MQTT allows 268,435,455 bytes for the topic and the payload. Memory is that of the whole process."""
    mosquitto.require()
    payload = os.urandom(1 << 20) * 256
    payload = payload[: 268_435_455 - 2 - len("site/1") - 2]
    with mosquitto.mosquitto(scratch) as broker:
        archive = Archive(broker.url, scratch / "archive")
        publish(broker.port, [("site/1", payload)])
        until(lambda: archive.size_bytes > len(payload), 120)
        status = Path(f"/proc/{archive._running.pid}/status").read_text()
        archive.stop(broker.port)

    found = archived(scratch / "archive")
    with capsys.disabled():
        print(f"\na message of {len(payload)} bytes: {' '.join(status.partition('VmHWM:')[2].split()[:2])}")
    assert found[0] == ("site/1", payload)


@pytest.mark.parametrize(("limit", "stored"), [(None, 1000), (0, 3000)])
def test_mosquitto_drops_what_is_above_max_queued_messages(
    scratch: Path, limit: int | None, stored: int
) -> None:
    """By default it keeps 1,000 messages of QoS 1 for a session that is away, and those in flight."""
    mosquitto.require()
    settings = ("persistence true", *([] if limit is None else [f"max_queued_messages {limit}"]))
    with mosquitto.mosquitto(scratch, *settings) as broker:
        archive = Archive(broker.url, scratch / "archive")
        archive._running.terminate()
        finish(archive._running)
        publish(broker.port, [("site/1", b"%d" % i) for i in range(3000)])
        archive.start()
        archive.stop(broker.port)

    assert stored <= len(archived(scratch / "archive")) - 1 <= stored + 20
