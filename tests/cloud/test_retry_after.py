"""Tests of `Retry-After` with every client: it waits as the server asks, and repeats nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from cloud.calls import Call, create, get, names, put
from cloud.clients import CLIENTS
from wire import Answer, Heard, Wire, wire

from offload import ObjectStore
from offload.store.retry import RetryingStore

ASKED_SECONDS: Final = 30.0
BUSY: Final = Answer(503, b"", {"Retry-After": "30", "x-amz-request-id": "r", "x-ms-request-id": "r"})


def busy_at_first(server: Wire, answers: Callable[[Heard], Answer]) -> Callable[[Heard], Answer]:
    """Return the answers of a server that refuses two requests and answers all others."""
    return lambda heard: BUSY if len(server.heard) <= 2 else answers(heard)


def pauses_of(client: str, call: Call) -> tuple[list[float], int]:
    """Return each pause of the call, without waiting for it, and how many requests the server got."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def patiently(store: ObjectStore) -> None:
        await call(RetryingStore(store, clock=lambda: sum(slept), sleep=sleep))

    with wire(lambda heard: BUSY) as server:
        server.answer = busy_at_first(server, CLIENTS[client].answers)
        CLIENTS[client].of_store(server.url, patiently)
        return slept, len(server.heard)


@pytest.mark.parametrize("call", [put, create, get, names])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_pauses_as_long_as_the_server_asks(client: str, call: Call) -> None:
    pauses, requests = pauses_of(client, call)

    assert requests == 3
    assert [pause >= ASKED_SECONDS for pause in pauses] == [True, True]
