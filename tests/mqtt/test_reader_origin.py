"""Tests of the origin of a replay: the disk of a source and the tier, and where a ledger begins there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import offload
from mqtt_stream import MqttStream
from offload_mqtt.origin import OriginTrimmed
from offload_mqtt.reader_origin import ReaderOrigin
from offload_mqtt.sorted_ledger import DEFAULT_BY
from offload_mqtt.sorted_source import topic_source
from offload_mqtt.topic_record import columns_of

from offload import Plugins, StreamReader, open_source, open_tier
from offload.ground.env import Env
from offload.model.record_columns import RecordBytes
from offload.two_sides.tiered import TieredReader

KEYS = [f"site.{number % 7}.state" if number % 5 else None for number in range(120)]


@pytest.fixture
def stream(tmp_path: Path) -> MqttStream:
    """Three segments. The first two of them are sorted on a tier."""
    made = MqttStream(tmp_path / "telemetry")
    for _ in range(3):
        made.segment(KEYS)
    assert offload("sync", f"topics+rabbitmq://{made.folder}", tmp_path / "tier").code == 0
    return made


def replayed(tier: Path, *given: object) -> list[dict[str, Any]]:
    ran = offload("mqtt", "replay", tier, "telemetry.topics", "--filter", "#", *given)
    assert ran.code == 0, ran.stderr
    return [json.loads(line) for line in ran.lines]


@pytest.mark.parametrize("beside", ["disk", "tier", "both"])
def test_a_replay_continues_on_the_disk_the_tier_or_both(
    stream: MqttStream, tmp_path: Path, beside: str
) -> None:
    """Also while segments are sealed, sorted, and deleted at the source between two replays."""
    tier, source = tmp_path / "tier", f"rabbitmq://{stream.folder}"
    if beside != "disk":
        assert offload("sync", source, tier).code == 0
    how = ["--origin", "telemetry"] if beside == "tier" else ["--source", source]
    wanted = [offset for offset, (key, _) in stream.messages.items() if key]

    found = replayed(tier, *how)
    if beside == "both":
        for path in stream.folder.glob(f"{stream.cuts[2]:020}.*"):
            path.rename(tmp_path / path.name)  # the broker has lost its newest segment, and the tier has it
        assert sorted(each["origin"] for each in replayed(tier, *how)) == wanted

    assert sorted(each["origin"] for each in found) == wanted
    assert {each["topic"] for each in found} == {f"site/{number}/state" for number in range(7)}


def origin_of(stream: MqttStream, tier: Any) -> ReaderOrigin:
    async def opened(emit: Any) -> TieredReader:
        source = await open_source(f"rabbitmq://{stream.folder}", plugins=Plugins.find()).stream("telemetry")
        return await TieredReader.open(source, tier, hold_back_seconds=0, env=Env(), emit=emit)

    return ReaderOrigin(opened, topic_source(DEFAULT_BY), Env())


def test_an_origin_knows_where_ledgers_begin_and_says_what_it_has_lost(
    stream: MqttStream, tmp_path: Path
) -> None:
    async def main() -> None:
        async with open_tier(str(tmp_path / "tier")) as tier:
            origin = origin_of(stream, tier)
            begins = [at for at in range(stream.next_offset) if await origin.begins_ledger(at)]
            records = [
                (int(run.offsets[row]), columns_of(RecordBytes.of([bytes(run.data[start : start + size])])))
                async for run in origin.runs(stream.cuts[2])
                for row, (start, size) in enumerate(zip(run.starts.tolist(), run.sizes.tolist(), strict=True))
            ]
            assert begins == stream.cuts
            assert await origin.next_offset() == stream.next_offset
            for offset, parts in records:
                key, message = stream.messages[offset]
                assert parts.topics == [(key or "").replace(".", "/").encode()]
                assert parts.origins.tolist() == [offset]
                assert parts.rests.to_list() == [message]
            assert len(records) == len(KEYS)

            for path in stream.folder.glob(f"{stream.cuts[0]:020}.*"):
                path.unlink()
            with pytest.raises(OriginTrimmed) as gone:
                [run async for run in origin_of(stream, tier).runs(5)]
            assert gone.value.first_offset == stream.cuts[1]
            assert [run async for run in origin_of(stream, tier).runs(stream.next_offset + 5)] == []

    asyncio.run(main())


def test_a_copy_on_a_tier_knows_where_ledgers_begin(stream: MqttStream, tmp_path: Path) -> None:
    """The open segment has no end, so nobody knows whether a ledger begins behind it."""
    assert offload("sync", f"rabbitmq://{stream.folder}", tmp_path / "raw").code == 0

    async def main() -> None:
        async with open_tier(str(tmp_path / "raw")) as tier:

            async def opened(emit: Any) -> StreamReader:
                return await StreamReader.open(tier, "telemetry", emit=emit)

            origin = ReaderOrigin(opened, topic_source(DEFAULT_BY), Env())
            begins = [at for at in range(1, stream.cuts[2] + 1) if await origin.begins_ledger(at)]

            assert begins == stream.cuts[1:]

    asyncio.run(main())
