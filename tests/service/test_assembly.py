"""Tests of opening what a configuration names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from osiris_data import DATA

from offload.follow.rules import FollowState
from offload.ground.errors import Misuse
from offload.opening.session import Session
from offload.service.assembly import open_service, shares
from offload.service.config import BASE_SIZE_BYTES, UPLOAD_SIZE_BYTES, RunConfig


@pytest.mark.parametrize("offloaders", [1, 2, 3, 9])
def test_the_uploads_of_all_turns_fit_into_the_memory(offloaders: int) -> None:
    for memory in range(224, 2048, 37):
        turns, uploads = shares(memory * 2**20, offloaders)

        assert turns >= 1
        assert uploads >= 1
        at_once = min(turns, offloaders) * uploads
        assert BASE_SIZE_BYTES + at_once * UPLOAD_SIZE_BYTES <= memory * 2**20, memory


def test_streams_that_are_stored_alike_share_an_offloader(tmp_path: Path) -> None:
    streams = {
        "a": {"max_lag": "5s"},
        "b": {"compress": "zstd"},
        "c": {"compress": "zstd:1"},
        "d": {"follow": False},
    }
    document = {"source": f"rabbitmq://{DATA}/tiny", "tier": str(tmp_path / "tier"), "streams": streams}

    async def scenario() -> None:
        async with Session() as session:
            opened = open_service(session, RunConfig.model_validate(document), lambda event: None)
            assert len(opened.tiers) == 2
            assert opened.tier_for("a") is opened.tier_for("other")
            assert opened.tier_for("b") is opened.tier_for("c")
            assert opened.plan_of("d") is None

    asyncio.run(scenario())


def test_upkeep_works_for_the_streams_that_this_process_leads(tmp_path: Path) -> None:
    document = {"source": f"rabbitmq://{DATA}/tiny", "tier": str(tmp_path / "tier")}
    statuses = [SimpleNamespace(stream=state.value, state=state) for state in FollowState]
    dispatcher: Any = SimpleNamespace(statuses=statuses, instance=None)

    async def scenario() -> None:
        async with Session() as session:
            opened = open_service(session, RunConfig.model_validate(document), lambda event: None)
            assert opened.upkeep(dispatcher, lambda event: None).led() == ["leading"]

    asyncio.run(scenario())


def test_the_dispatcher_keeps_the_bounds_of_the_configuration(tmp_path: Path) -> None:
    bounds = {"memory": "320MiB", "stop_seconds": 3, "discover": "5s"}
    document = {"source": f"rabbitmq://{DATA}/tiny", "tier": str(tmp_path / "tier"), **bounds}

    async def scenario() -> None:
        async with Session() as session:
            opened = open_service(session, RunConfig.model_validate(document), lambda event: None)
            made = opened.dispatcher(lambda event: None)
            assert (made.turns_max, made.stop_seconds, made.discover_seconds) == (2, 3.0, 5.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("source_options", "source 'rabbitmq' has no option 'x'"),
        ("options", "backend 'posix' has no option 'x'"),
    ],
)
def test_an_option_that_nobody_has_is_refused(tmp_path: Path, table: str, said: str) -> None:
    document = {"source": f"rabbitmq://{DATA}/tiny", "tier": str(tmp_path), table: {"x": 1}}

    async def scenario() -> None:
        async with Session() as session:
            with pytest.raises(Misuse, match=said):
                open_service(session, RunConfig.model_validate(document), lambda event: None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("spec", "said"),
    [("nobody:key", "'nobody'"), ("amqp:tags", "decoder amqp has no 'tags'. It has key, properties")],
)
def test_an_index_without_its_decoder_or_section_is_refused(tmp_path: Path, spec: str, said: str) -> None:
    document = {
        "source": f"rabbitmq://{DATA}/tiny",
        "tier": str(tmp_path),
        "streams": {"*": {"index": [spec]}},
    }

    async def scenario() -> None:
        async with Session() as session:
            with pytest.raises(Misuse, match=said):
                open_service(session, RunConfig.model_validate(document), lambda event: None)

    asyncio.run(scenario())
