"""A consumer of a replay that may be killed at any moment: a line of its file has messages and its place.

    python -m mqtt_consumer TIER STREAM SOURCE ORIGIN FILE

FILE gets a JSON object for each run of messages: `at`, the iterator behind it, and `messages`, each with its
origin, topic and payload. It goes on at the last whole line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import aclosing
from pathlib import Path

from offload_mqtt.reader_origin import ReaderOrigin
from offload_mqtt.replay import Replay
from offload_mqtt.sorted_ledger import DEFAULT_BY
from offload_mqtt.sorted_source import topic_source
from offload_rabbitmq.decoder import AmqpDecoder

from offload import AtEdge, Session, open_tier
from offload.ground.env import Env
from offload.two_sides.tiered import TieredReader


def lines_of(path: Path) -> list[dict[str, object]]:
    """Return the whole lines of a file. What a kill has left behind them is cut off."""
    raw = path.read_bytes() if path.exists() else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


async def consume(tier: str, stream: str, source: str, origin: str, path: Path) -> None:
    """Follow the replay of all topics for ever."""
    before, topics, amqp = lines_of(path), topic_source(DEFAULT_BY), AmqpDecoder()
    async with (
        open_tier(tier) as catalogue,
        Session() as session,
        aclosing(session.source(source)) as streams,
    ):
        found = await streams.stream(origin)
        live = ReaderOrigin(
            lambda emit: TieredReader.open(found, catalogue, env=Env(), emit=emit), topics, Env()
        )
        replay = Replay(catalogue, stream, origin=live)
        iterator = before[-1]["at"] if before else await replay.iterator(["#"], AtEdge.FIRST)
        with path.open("ab", buffering=0) as file:
            while True:
                async with aclosing(replay.runs(str(iterator))) as runs:
                    async for run in runs:
                        iterator = str(run.at)
                        columns = run.columns
                        bodies = amqp.bodies(columns.rests.to_list())
                        rows = zip(columns.origins.tolist(), columns.topics, bodies, strict=True)
                        messages = [[at, topic.decode(), body.decode()] for at, topic, body in rows]
                        file.write(json.dumps({"at": iterator, "messages": messages}).encode() + b"\n")
                await live.wait()


if __name__ == "__main__":
    *words, last = sys.argv[1:]
    asyncio.run(consume(*words, Path(last)))
