"""Tests of publishing a rescued queue, by an imitation of the client that may refuse and break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiormq
import numpy as np
import pytest
from command_line import Ran, finish, offload, start
from offload_rabbitmq.queues import publishing
from offload_rabbitmq.queues.records import encode_records
from offload_rabbitmq.queues.store_files import ROW
from queue_terms import WIRE, message
from yarl import URL

import offload as offload_names

STREAM = "%2F/orders"
PLACE = ("publish", "tier", STREAM, "amqp://host/")


@dataclass
class FakeBroker:
    """One queue, and the exchanges bound to it. `room` messages are taken, then the connection breaks."""

    there: int = 0
    room: int = 10**6
    error: BaseException | None = None
    urls: list[URL] = field(default_factory=list)
    exchanges: set[str] = field(default_factory=set)
    taken: list[tuple[bytes, str, bytes]] = field(default_factory=list)
    queue: str = ""

    async def connect(self, url: URL) -> FakeBroker:
        self.urls.append(url)
        if self.error is not None:
            raise self.error
        return self

    async def channel(self, **_: Any) -> FakeBroker:
        return self

    async def close(self) -> None:
        return

    async def queue_declare(self, queue: str, *, passive: bool) -> Any:
        assert passive
        self.queue = queue
        return type("DeclareOk", (), {"message_count": self.there})

    async def exchange_declare(self, exchange: str, **how: Any) -> None:
        assert how == {"exchange_type": "fanout", "auto_delete": True}

    async def queue_bind(self, queue: str, exchange: str) -> None:
        self.exchanges.add(exchange)

    async def queue_unbind(self, queue: str, exchange: str) -> None:
        self.exchanges.remove(exchange)

    async def basic_publish(
        self, body: bytes, *, exchange: str, routing_key: str, properties: Any, wait: bool
    ) -> None:
        assert exchange in self.exchanges
        self.room -= 1
        if self.room < 0:
            raise aiormq.ChannelInvalidStateError("closed")
        await asyncio.sleep(0)
        self.taken.append((body, routing_key, properties.marshal()))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    fake = FakeBroker()
    monkeypatch.setattr(publishing.aiormq, "connect", fake.connect)
    monkeypatch.setattr(publishing, "BATCH_MESSAGES_MAX", 10)
    return fake


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stored(*terms: bytes) -> None:
    """Make a tier whose stream has these messages."""
    with offload_names.Blocking("./tier") as tier:
        tier.append(STREAM, encode_records(np.zeros(len(terms), ROW), terms))


def run(*more: str) -> Ran:
    return offload("queues", *PLACE, *more)


def bodies(broker: FakeBroker) -> Sequence[int]:
    return [int(body) for body, *_ in broker.taken]


def test_messages_are_published_in_order_with_their_keys_and_the_bytes_of_their_properties(
    broker: FakeBroker, here: Path
) -> None:
    wire = b"\x10\x40\x02" + bytes(7) + b"\x05"
    stored(*[message(b"%d" % number, wire=wire, keys=(b"k%d" % number, b"cc")) for number in range(35)])

    ran = run()

    assert (ran.code, ran.text) == (0, f"{STREAM}: 35 messages published to queue orders\n")
    assert broker.taken == [(b"%d" % number, f"k{number}", wire) for number in range(35)]
    assert (broker.queue, broker.exchanges) == ("orders", set())
    assert json.loads(Path("%252F%2Forders.published").read_text()) == {
        "tier": "tier",
        "stream": STREAM,
        "broker": "amqp://host/",
        "queue": "orders",
        "next_offset": 35,
    }
    assert run().text == f"{STREAM}: 0 messages published to queue orders\n"


def test_a_run_that_broke_goes_on_behind_the_last_confirmed_batch(broker: FakeBroker, here: Path) -> None:
    stored(*[message(b"%d" % number) for number in range(35)])
    broker.room = 25

    broken = run()

    assert broken.code == 1
    assert "closed" in broken.stderr
    assert bodies(broker)[:20] == [*range(20)]
    del broker.taken[20:]  # at least once: what was sent of the third batch may be there twice
    broker.room, broker.there = 10**6, 25
    assert run().code == 0
    assert bodies(broker) == [*range(35)]


def test_a_queue_with_messages_is_refused_unless_they_are_appended(broker: FakeBroker, here: Path) -> None:
    stored(message(b"1"))
    broker.there = 3

    refused = run()

    assert refused.code == 1
    assert "--append" in refused.stderr
    assert run("--append").code == 0
    assert bodies(broker) == [1]


def test_a_progress_file_is_for_one_stream_and_one_queue(broker: FakeBroker, here: Path) -> None:
    stored(message(b"1"))
    assert run("--progress", "file").code == 0

    other = run("--progress", "file", "--queue", "other")
    Path("file").write_text("[1")
    damaged = run("--progress", "file")

    assert (other.code, damaged.code) == (1, 1)
    assert "of another publish" in other.stderr
    assert "no progress file" in damaged.stderr
    assert bodies(broker) == [1]


def test_what_cannot_be_published_is_counted(broker: FakeBroker, here: Path) -> None:
    stored(message(b"0"), b"\x83a\x01", message(b"2", keys=(b"\xff",)), message(b"3"))
    with offload_names.Blocking("./tier") as tier:
        tier.append(STREAM, [b"no record"])

    ran = run()

    assert ran.code == 1
    assert bodies(broker) == [0, 3]
    reasons = ["a routing key that is not UTF-8", "no record of a classic queue", "stored term"]
    assert ran.stderr.splitlines() == [f"note: {STREAM}: not published: {why}: 1" for why in reasons]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (aiormq.ChannelPreconditionFailed("user_id property set to 'x'"), "the broker refuses"),
        (aiormq.ChannelNotFoundEntity("no queue"), "declare the queue first"),
        (aiormq.AuthenticationError("no"), "the broker refuses"),
        (
            ConnectionRefusedError(111, "refused"),
            "refused: check the host and the port, and that the broker runs",
        ),
        (TimeoutError(), "TimeoutError: check the host"),
    ],
)
def test_an_error_of_the_client_is_one_line(
    broker: FakeBroker, here: Path, error: BaseException, words: str
) -> None:
    stored(message(b"1"))
    broker.error = error

    ran = run()

    assert ran.code == 1
    (line,) = ran.stderr.splitlines()
    assert words in line


def test_a_broker_that_does_not_answer_is_one_line(here: Path) -> None:
    """Without an imitation: the library logs the error too."""
    stored(message(b"1"))

    ran = finish(start("queues", "publish", here / "tier", STREAM, "amqp://127.0.0.1:1/"))

    assert ran.code == 1
    assert ran.error.startswith("offload: queue 'orders' of amqp://127.0.0.1:1/")
    assert ran.error.endswith(": check the host and the port, and that the broker runs")
    assert len(ran.stderr.splitlines()) == 1


def test_the_login_comes_from_the_environment_alone(
    broker: FakeBroker, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOAD_BROKER_USER", "u@x")
    monkeypatch.setenv("OFFLOAD_BROKER_PASSWORD", "p/w")
    stored(message(b"1", wire=WIRE))

    ran = offload("queues", "publish", "tier", STREAM, "amqps://host/tenant%2Fx")

    assert ran.code == 0
    (url,) = broker.urls
    assert (url.user, url.password, url.port, url.path) == ("u@x", "p/w", 5671, "/tenant/x")
    assert "p/w" not in Path("%252F%2Forders.published").read_text()
    for wrong in ("amqp://u:p@host/", "http://host/", "amqp:///x", "amqp://host:x/", "amqp://host/?a=1"):
        refused = offload("queues", "publish", "tier", STREAM, wrong)
        assert refused.code == 2, wrong
        assert "u:p" not in refused.stderr
