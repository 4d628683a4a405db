"""Lending: tests share clients and a loop while they pass, and nothing of a failed test is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from offload_conformance.lending import Lending

from offload.contracts.store import ObjectStore
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator

SECONDS_MAX = 10.0


class Client(MemoryStore):
    __slots__ = ("closed",)

    closed: bool

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def lending() -> Iterator[Lending]:
    lending = Lending(Client)
    yield lending
    lending.end(passed=False)


def borrowed(lending: Lending, *, is_kept: bool = True, closes: bool = False, leaves: bool = False) -> Client:
    """Run a test that borrows one client, and return it."""

    async def test() -> ObjectStore:
        client = lending.borrow(is_kept=is_kept)
        if closes:
            await client.aclose()
        if leaves:
            left.append(asyncio.create_task(asyncio.sleep(60)))
        return client

    left: list[asyncio.Task[None]] = []
    with lending.loop(SECONDS_MAX) as run:
        lent = run(test())
    assert isinstance(lent, StoreDecorator)
    assert isinstance(lent.inner, Client)
    return lent.inner


def test_a_client_serves_the_next_test_although_its_borrower_closed_it(lending: Lending) -> None:
    first = borrowed(lending, closes=True)
    lending.end(passed=True)

    assert borrowed(lending) is first
    assert not first.closed


def test_two_borrowers_of_one_test_have_different_clients(lending: Lending) -> None:
    assert borrowed(lending) is not borrowed(lending)


def test_a_client_that_a_clause_really_closes_is_not_lent_again(lending: Lending) -> None:
    first = borrowed(lending, is_kept=False, closes=True)
    lending.end(passed=True)

    assert first.closed
    assert borrowed(lending) is not first


def test_clients_of_a_failed_test_are_closed(lending: Lending) -> None:
    first = borrowed(lending)
    lending.end(passed=False)

    assert first.closed
    assert borrowed(lending) is not first


def test_clients_of_a_test_that_left_a_task_are_closed(lending: Lending) -> None:
    first = borrowed(lending, leaves=True)
    lending.end(passed=True)

    assert first.closed
    assert borrowed(lending) is not first


def test_another_loop_gets_a_client_of_its_own(lending: Lending) -> None:
    borrowed(lending)

    async def elsewhere() -> ObjectStore:
        return lending.borrow(is_kept=True)

    assert isinstance(asyncio.run(elsewhere()), Client)
