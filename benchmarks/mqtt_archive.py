"""Archive an MQTT broker: `offload mqtt archive`, beside paho that only acknowledges.

    python benchmarks/mqtt_archive.py [MESSAGES [INFLIGHT]]

A mosquitto of `make servers` has MESSAGES messages of 100 bytes for a session that is away, on 1,000 topics,
with QoS 1. It sends at most INFLIGHT of them without an acknowledgement; 0, the default, is no limit. Then a
process receives and acknowledges them. `paho` is the usual program: `loop_forever`, `ack` in `on_message`.
`archive` is ours: every message is synced before it is acknowledged. CPU is that of the process, user and
system, from the connection to the last message. The two alternate.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

ROUNDS = 5
TOPICS = 1000
PAYLOAD_SIZE_BYTES = 100


def cpu_seconds() -> float:
    """Return the CPU time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def paho(port: int, messages: int, folder: str) -> tuple[float, float]:
    """Acknowledge in the callback. Return CPU and wall seconds."""
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.enums import CallbackAPIVersion

    client = Client(CallbackAPIVersion.VERSION2, client_id="bench", clean_session=False, manual_ack=True)
    seen, began = 0, (cpu_seconds(), time.perf_counter())

    def take(client: Client, _data: object, message: MQTTMessage) -> None:
        nonlocal seen
        seen += 1
        client.ack(message.mid, message.qos)
        if seen == messages:
            client.disconnect()

    client.on_message = take
    client.connect("127.0.0.1", port)
    client.loop_forever()
    return cpu_seconds() - began[0], time.perf_counter() - began[1]


def archive(port: int, messages: int, folder: str) -> tuple[float, float]:
    """Run our archive until it has stored all. Return CPU and wall seconds."""
    from offload_mqtt.address import parse_address
    from offload_mqtt.archive import MqttRoute, open_archive
    from offload_mqtt.topics import TopicFilter

    async def run() -> tuple[float, float]:
        routes = [MqttRoute("mqtt", TopicFilter.parse("#"))]
        stopping = asyncio.Event()
        async with open_archive(Path(folder), routes, client_id="bench") as opened:
            began = cpu_seconds(), time.perf_counter()
            task = asyncio.create_task(opened.run(parse_address(f"mqtt://127.0.0.1:{port}", {}), stopping))
            while opened.stored.get("mqtt", 0) < messages:  # noqa: ASYNC110 - it has no event for a number
                await asyncio.sleep(0.02)
            stopping.set()
            await task
            assert opened.logs["mqtt"].next_offset == messages
            return cpu_seconds() - began[0], time.perf_counter() - began[1]

    return asyncio.run(run())


def fill(port: int, messages: int) -> None:
    """Make the session of `bench`, and publish."""
    from mqtt_world import publish
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    client = Client(CallbackAPIVersion.VERSION2, client_id="bench", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("#", qos=1)
    client.on_subscribe = lambda *_: client.disconnect()
    client.connect("127.0.0.1", port)
    client.loop_forever()
    payload = os.urandom(PAYLOAD_SIZE_BYTES)
    publish(port, [(f"site/{i % TOPICS}/temperature", payload) for i in range(messages)])


def main() -> None:
    """Measure both, in a process of their own each, in turn."""
    from servers import mosquitto
    from servers.scratch import scratch_folder

    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    inflight = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    settings = (
        *(each for each in mosquitto.WHOLE if "inflight" not in each),
        f"max_inflight_messages {inflight}",
    )
    rates: dict[str, list[float]] = {"paho": [], "archive": []}
    for round_ in range(ROUNDS):
        for name in rates if round_ % 2 else reversed(rates):
            with (
                scratch_folder("mosquitto") as scratch,
                mosquitto.mosquitto(scratch, *settings) as broker,
                tempfile.TemporaryDirectory() as folder,
            ):
                fill(broker.port, messages)
                command = [sys.executable, __file__, "--one", name, str(broker.port), str(messages), folder]
                said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
                cpu, wall = map(float, said.split())
                rates[name].append(messages / cpu)
                print(
                    f"{name:8} {messages / cpu:9,.0f} a CPU second  {messages / wall:9,.0f} a second",
                    flush=True,
                )
    theirs, ours = (median(rates[name]) for name in ("paho", "archive"))
    print(f"medians a CPU second: paho {theirs:,.0f}, archive {ours:,.0f}, ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        name, port, messages, folder = sys.argv[2:]
        cpu, wall = {"paho": paho, "archive": archive}[name](int(port), int(messages), folder)
        print(cpu, wall)
    else:
        main()
