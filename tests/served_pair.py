"""A server beside a real RabbitMQ with the same streams.

`offload restore --files` puts the streams into the broker, as they are on the tier.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command_line import offload
from servers.rabbitmq import RECIPE, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED
from stream_client import RawClient, text
from stream_server import served

CREATE: Final = 13
Ports = tuple[int, int]
"""The port of the broker and that of the server."""


@contextmanager
def served_pair(tier: Path, streams: Sequence[str]) -> Iterator[Ports]:
    """Yield both ports. Skips the test without RabbitMQ, or fails it if servers are required."""
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("served") as scratch:
        with rabbitmq(scratch) as broker:
            _declare(broker.stream_port, streams)
        for stream in streams:
            [folder] = broker.streams.glob(f"__{stream}_*")
            ran = offload("restore", tier, stream, "--files", folder)
            assert ran.code == 0, ran.text
        with rabbitmq(scratch) as broker, served(tier) as running:
            for stream in streams:
                _wait_for(broker.stream_port, stream)
            yield broker.stream_port, running.port


def _declare(port: int, streams: Sequence[str]) -> None:
    with RawClient.opened(port) as client:
        for stream in streams:
            assert client.ask(CREATE, text(stream) + bytes(4))[:2] == b"\0\1"


def _wait_for(port: int, stream: str) -> None:
    """Wait until the broker has opened a stream after its start."""
    with RawClient.opened(port) as client:
        while client.subscribe(stream, b"\0\1", credit=0) == 6:
            pass
