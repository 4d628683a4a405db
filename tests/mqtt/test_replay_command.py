"""Tests of `offload mqtt replay`: a stream of RabbitMQ's files, sorted onto a tier, replayed by topic."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import PROGRAM, offload
from mqtt_stream import MqttStream
from offload_mqtt import replay_command
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.output import Printed
from offload_mqtt.pacing import by_arrival, paced
from offload_mqtt.reading import ReplayRun
from offload_mqtt.replay import Replay
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from replay_world import ReplayWorld, all_of
from servers import mosquitto

from offload.ground.env import Env
from offload.showing.lines import Format
from offload.showing.message_output import MessageOutput

ODD = ("/lead", "trail/", "a//b", "x", "$odd/x", "ünï/cödé", "site/7", "site", "deep/" + "/".join("l" * 40))
FILTERS = [
    "#",
    "+",
    "+/+",
    "site/#",
    "site/+/line/3/#",
    "site/+/line/+/machine/+/state",
    "site/7/#",
    "site/7",
    "site/+",
    "site/3/line/1/#",
    "+/+/line/2/#",
    "+/7/+/1/+/1/+",
    "device/#",
    "device/+/battery",
    "+/+/battery",
    "device/a1/battery",
    "a//b",
    "/lead",
    "+/lead",
    "trail/",
    "trail/+",
    "trail/#",
    "$odd/x",
    "$odd/#",
    "+/x",
    "x",
    "ünï/+",
    "deep/#",
    "deep/l/l/#",
    "none/#",
]


def second(topic: str, wanted: str) -> bool:
    """The rules of MQTT over text, by another way than the plugin's."""

    def walk(levels: list[str], filters: list[str]) -> bool:
        if filters == ["#"]:
            return True
        if not levels or not filters:
            return not levels and not filters
        return filters[0] in ("+", levels[0]) and walk(levels[1:], filters[1:])

    return not (topic[0] == "$" and wanted[0] in "+#") and walk(topic.split("/"), wanted.split("/"))


def topics(seed: int, count: int) -> list[str]:
    """Return topics of a device platform, with odd ones among them."""
    random = Random(seed)
    return [
        random.choice(ODD)
        if random.random() < 0.1
        else f"device/{random.choice('abcdef')}{random.randrange(30)}/{random.choice(('battery', 'state'))}"
        if random.random() < 0.3
        else f"site/{random.randrange(12)}/line/{random.randrange(5)}/machine/{random.randrange(2)}/"
        + random.choice(("temperature", "state"))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> MqttStream:
    """A stream of three segments, the last of them open, whose sealed ones are sorted on a tier beside it."""
    made = MqttStream(tmp_path_factory.mktemp("mqtt") / "telemetry")
    for seed in range(3):
        made.segment([topic.replace("/", ".") for topic in topics(seed, 700)])
    assert offload("sync", f"topics+rabbitmq://{made.folder}", tier_of(made)).code == 0
    assert offload("index", tier_of(made), "telemetry.topics", "--by", "ranges=mqtt:topic").code == 0
    return made


def tier_of(stream: MqttStream) -> Path:
    return stream.folder.parent / "tier"


def replayed(stream: MqttStream, *given: str, joined: bool = False) -> list[dict[str, Any]]:
    beside = ["--source", f"rabbitmq://{stream.folder}"] if joined else []
    ran = offload("mqtt", "replay", tier_of(stream), "telemetry.topics", *given, *beside)
    assert ran.code == 0, ran.stderr
    return [json.loads(line) for line in ran.lines]


def wanted(stream: MqttStream, *filters: str, end: int | None = None) -> list[tuple[int, str]]:
    """Return the offset and the topic of each match, by a scan of what was written."""
    named = {offset: key.replace(".", "/") for offset, (key, _) in stream.messages.items() if key}
    return [
        (offset, topic)
        for offset, topic in sorted(named.items())
        if any(second(topic, each) for each in filters) and (end is None or offset < end)
    ]


@pytest.mark.parametrize("topic", FILTERS)
def test_a_replay_equals_a_scan_that_a_second_implementation_filters(stream: MqttStream, topic: str) -> None:
    """30 filters, over two sorted ledgers and the open segment on the disk of the source."""
    found = replayed(stream, "--filter", topic, joined=True)

    assert sorted((each["origin"], each["topic"]) for each in found) == wanted(stream, topic)
    order = dict[str, int]()
    for each in found:
        assert order.get(each["topic"], -1) < each["origin"]
        order[each["topic"]] = each["origin"]


def test_several_filters_deliver_each_message_once_from_an_offset_on(stream: MqttStream) -> None:
    found = replayed(
        stream, "--filter", "site/+/line/3/#", "--filter", "site/7/#", "--filter", "#", "--from", "900"
    )

    end = stream.cuts[2]
    assert sorted(each["origin"] for each in found) == [
        at for at, _ in wanted(stream, "#", "site/7/#", end=end) if at >= 900
    ]


def test_the_same_answers_come_after_the_loss_of_indexes_a_copy_a_compaction_and_a_trim(
    stream: MqttStream, tmp_path: Path
) -> None:
    how = ("--filter", "site/+/line/3/#", "--filter", "device/+/battery")
    before = replayed(stream, *how)
    copy = tmp_path / "tier"
    assert offload("copy", tier_of(stream), copy).code == 0

    def of_copy() -> list[dict[str, Any]]:
        ran = offload("mqtt", "replay", copy, "telemetry.topics", *how)
        assert ran.code == 0, ran.stderr
        return [json.loads(line) for line in ran.lines]

    unindexed = of_copy()  # copies leave indexes out
    offload("index", copy, "telemetry.topics", "--by", "ranges=mqtt:topic")
    indexed = of_copy()
    assert offload("compact", copy, "telemetry.topics").code == 0
    compacted = of_copy()
    assert offload("trim", copy, "telemetry.topics", "--before", str(stream.cuts[1]), "--yes").code == 0
    trimmed = of_copy()

    assert unindexed == indexed == compacted == before
    assert trimmed in (before, [each for each in before if each["offset"] >= stream.cuts[1]])


def test_an_interrupted_replay_continues_where_it_says(stream: MqttStream) -> None:
    """The printed messages and the rest are all messages, each once."""
    words = "mqtt", "replay", tier_of(stream), "telemetry.topics", "--filter", "site/#", "--follow"
    running = subprocess.Popen(
        [*PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stderr is not None
    count = len(wanted(stream, "site/#", end=stream.cuts[2]))
    first = [json.loads(running.stdout.readline()) for _ in range(count)]
    running.send_signal(signal.SIGINT)
    advice = running.stderr.read()
    running.wait(timeout=30)
    running.stdout.close()
    running.stderr.close()
    iterator = advice.rpartition("--resume ")[2].strip()

    rest = replayed(stream, "--filter", "site/#", "--resume", iterator, joined=True)

    assert sorted(each["origin"] for each in [*first, *rest]) == [at for at, _ in wanted(stream, "site/#")]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    mosquitto.require()
    with mosquitto.serving() as running:
        yield running.port


def test_messages_are_published_to_a_broker_again(stream: MqttStream, port: int) -> None:
    """Topic and body of each, in the order of each topic, without the retain flag."""
    got, subscribed = list[tuple[str, bytes, bool]](), threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, client_id="subscriber")
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _c, _d, each: got.append((each.topic, bytes(each.payload), each.retain))
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe("#", qos=1)
    assert subscribed.wait(10)

    url = f"mqtt://127.0.0.1:{port}"
    ran = offload("mqtt", "replay", tier_of(stream), "telemetry.topics", "--filter", "site/3/#", "--to", url)
    expected = wanted(stream, "site/3/#", end=stream.cuts[2])
    deadline = time.monotonic() + 10
    while len(got) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    client.loop_stop()

    assert (ran.code, ran.stdout) == (0, b""), ran.stderr
    assert sorted(got) == sorted((topic, b"%d" % offset, False) for offset, topic in expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--filter", "a/#/b"], "# is the last level"),
        (["--filter", "#", "--speed", "0"], "--speed takes a number above 0"),
        (["--filter", "#", "--by", "nothing"], "--by"),
        (["--filter", "#", "--to", "http://x"], "--to"),
        (["--filter", "#", "--resume", "m1.abc"], "no iterator of a replay"),
        (["--filter", "#", "--from", "last"], "begins at first, next"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(stream: MqttStream, given: list[str], said: str) -> None:
    ran = offload("mqtt", "replay", tier_of(stream), "telemetry.topics", *given)

    assert ran.code != 0
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_pace_restores_the_order_and_the_times_of_arrival() -> None:
    """A sorted ledger is read topic by topic. With a speed, messages come as they came, so much faster."""
    world, slept = ReplayWorld(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> list[int]:
        for _ in range(2):
            world.append(*["a", "b", "c", "b", "a"] * 4)
            world.seal()
            await world.sort()
        replay: Replay = world.replay(joined=False)
        env = Env(sleep=sleep, monotonic=lambda: 0.0)
        runs = paced(by_arrival(replay.runs(await replay.iterator(["#"]))), 2.0, env)
        return [each.origin async for run in runs for each in run.messages()]

    assert asyncio.run(main()) == [*range(40)]
    assert sum(slept[-1:]) == pytest.approx(39 * 0.0005 / 2)


@pytest.mark.parametrize("limit", [None, 7])
def test_a_paced_replay_that_is_interrupted_leaves_nothing_out(limit: int | None) -> None:
    """Messages of a ledger come in another order than its offsets, so the place is before or behind all."""
    world = ReplayWorld()

    async def main() -> None:
        for _ in range(2):
            world.append(*["a", "b", "c", "b", "a"] * 4)
            world.seal()
            await world.sort()
        replay: Replay = world.replay(joined=False)
        begun = await replay.iterator(["#"])
        env = Env(sleep=_no_sleep, monotonic=lambda: 0.0)
        for most in range(1, 41, 4):
            got, at = list[int](), begun
            async with aclosing(paced(by_arrival(replay.runs(begun)), 2.0, env)) as runs:
                async for each in runs:
                    run = each.rows(0, len(each) if limit is None else min(limit, most - len(got)))
                    got += [message.origin for message in run.messages()]
                    at = str(run.at)
                    if len(got) >= most:
                        break
            rest, _ = await all_of(world.replay(joined=False), at)

            assert {*got, *(each.origin for each in rest)} == {*range(40)}

    asyncio.run(main())


async def _no_sleep(seconds: float) -> None:
    pass


@pytest.mark.parametrize("at_once", [False, True])
def test_what_an_interrupted_replay_says_is_written(*, at_once: bool) -> None:
    """Lines are kept to be written in large pieces. The place is behind them, so they are written first."""
    world, written, place = ReplayWorld(), bytearray(), replay_command._Summary()

    async def main() -> None:
        world.append(*["a", "b"] * 20)
        world.seal()
        await world.sort()
        replay: Replay = world.replay(joined=False)
        begun, reached = await replay.iterator(["#"]), asyncio.Event()

        async def runs() -> AsyncGenerator[ReplayRun, None]:
            async with aclosing(replay.runs(begun)) as found:
                async for each in found:
                    yield each
            reached.set()
            await asyncio.Event().wait()

        out = Printed(MessageOutput(Format.JSONL, MqttDecoder(), write=written.extend), at_once=at_once)
        writing = asyncio.create_task(replay_command._write(runs(), out, None, place))
        await reached.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(main())
    assert place.messages == 40
    assert sorted(json.loads(line)["origin"] for line in written.splitlines()) == [*range(40)]


def test_the_programs_of_the_page_replay_by_topic(
    stream: MqttStream, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "replay-by-topic.md").read_text()
    programs: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(block, programs)
    url, end = str(tier_of(stream)), stream.cuts[2]

    iterator = asyncio.run(programs["replay"](url, "telemetry.topics", None))
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    again = asyncio.run(programs["replay"](url, "telemetry.topics", iterator))
    table = programs["temperatures"](url, "telemetry.topics")

    expected = wanted(stream, "site/+/line/3/#", "device/+/battery", end=end)
    assert sorted((int(line[1]), line[0]) for line in printed) == expected
    assert (again, capsys.readouterr().out) == (iterator, "")
    assert table.num_rows == len(wanted(stream, "site/+/line/3/+/+/temperature", end=end))
    assert table.num_rows > 0
