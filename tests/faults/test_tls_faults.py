"""Tests of faults of TLS: in handshakes, records and certificates.

A proxy with TLS is in front of a server of each protocol. `test_fault_rounds` draws such faults at random.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import pytest
from campaign import few
from certificates import Certificate, certificate
from faults.rig import bare_store
from servers import Place, Running, servers
from servers.proxy import Fault, HandshakeFault, Plan, Proxy, Rule, proxied
from servers.proxy_tls import Tls

from offload import Body, ObjectStore, StoreDenied, TryAgain
from offload.contracts.store import Span

T = TypeVar("T")
KEY: Final = "orders/data/fragment"
DATA: Final = random.Random(0).randbytes(200_000)
"""More than ten records of TLS, which hold 16 KiB each."""

CASES = "calls whose TLS breaks, on each protocol; make test has each fault with both calls, on two protocols"

on_each_protocol = pytest.mark.parametrize("running_server", servers(), indirect=True)


def behind(
    running: Running,
    tls: Tls | None,
    plan: Plan,
    call: Callable[[ObjectStore, Proxy], Awaitable[T]],
    **options: str,
) -> tuple[T, Place]:
    """Call with a store that has sent no request, behind a proxy. Return the result and the place."""
    place = running.place()

    async def main(proxy: Proxy) -> T:
        store = bare_store(place.url, proxy.options(place.options) | options)
        try:
            return await call(store, proxy)
        finally:
            await store.aclose()

    with proxied(running.endpoint, plan, tls) as proxy:
        return asyncio.run(main(proxy)), place


async def ranged(store: ObjectStore) -> None:
    assert await store.get(KEY, Span(1, len(DATA) - 1)) == DATA[1:]


async def whole(store: ObjectStore) -> None:
    assert await store.get(KEY) == DATA


async def put(store: ObjectStore) -> None:
    await store.put(KEY, Body.of(DATA))


async def create(store: ObjectStore) -> None:
    await store.create(KEY, DATA)


@few(CASES, 3)
@pytest.mark.parametrize("read", [ranged, whole])
@on_each_protocol
def test_a_body_that_ends_within_a_record_is_no_object(
    running_server: Running, tls: Tls, read: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    """All of the body but its last record arrives. The next read opens a connection."""
    plan = Plan(rules=[Rule(Fault.CUT_RECORD, nth=1)])

    async def twice(store: ObjectStore, proxy: Proxy) -> int:
        await put(store)
        with pytest.raises(TryAgain):
            await read(store)
        await read(store)
        return proxy.counts["cut_record"]

    assert behind(running_server, tls, plan, twice)[0] == 1


@few(CASES, 3, start=1)
@pytest.mark.parametrize("call", [put, create])
@on_each_protocol
def test_a_write_whose_handshake_was_cut_was_never_sent(
    running_server: Running, tls: Tls, call: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    """So it is `TryAgain`, and not `OutcomeUnknown`. The same store connects again and writes."""
    plan = Plan(handshakes=deque([HandshakeFault.CUT]))

    async def twice(store: ObjectStore, proxy: Proxy) -> int:
        with pytest.raises(TryAgain):
            await call(store)
        assert proxy.counts["requests"] == 0
        await call(store)
        return proxy.counts["handshake_cut"]

    cut, place = behind(running_server, tls, plan, twice)

    assert cut == 1
    assert place.get(KEY) == DATA


@few(CASES, 3, start=2)
@pytest.mark.parametrize("call", [put, create])
@on_each_protocol
def test_a_handshake_that_nobody_answers_ends_at_the_time_limit_of_connecting(
    running_server: Running, tls: Tls, call: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    plan = Plan(handshakes=deque([HandshakeFault.SILENT]))

    async def once(store: ObjectStore, proxy: Proxy) -> int:
        with pytest.raises(TryAgain, match="connect_timeout_seconds"):
            await call(store)
        await call(store)
        return proxy.counts["handshake_silent"]

    silent, place = behind(running_server, tls, plan, once, connect_timeout_seconds="2")

    assert silent == 1
    assert place.get(KEY) == DATA


@on_each_protocol
def test_a_connection_that_ends_without_close_notify_behind_a_body_is_not_used_again(
    running_server: Running, tls: Tls
) -> None:
    """The body is whole by its length, so it counts."""
    plan = Plan()

    async def several(store: ObjectStore, proxy: Proxy) -> tuple[int, int]:
        await put(store)
        plan.rules = [Rule(Fault.HANG_UP)]
        before = proxy.counts["connections"]
        for ended in (1, 2, 3):
            await ranged(store)
            while proxy.counts["ended"] < ended:  # noqa: ASYNC110 - the proxy's thread sets no event
                await asyncio.sleep(0.01)
        return proxy.counts["hang_up"], proxy.counts["connections"] - before

    (hung_up, opened), _ = behind(running_server, tls, plan, several)

    assert hung_up == 3
    assert opened >= 2  # the first read may use the connection of the put


@few(CASES, 3)
@pytest.mark.parametrize("call", [put, create])
@on_each_protocol
def test_a_certificate_that_changes_between_two_connections_is_checked_again(
    running_server: Running, tmp_path: Path, call: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    """A renewed one is trusted. An expired one ends the connection before the request is sent."""
    first, renewed, expired = (made(tmp_path, name) for name in ("first", "renewed", "expired"))
    trusted = tmp_path / "authorities"
    trusted.write_bytes(b"".join(each.path.read_bytes() for each in (first, renewed, expired)))
    tls = Tls(first, trusted=trusted)

    async def change(store: ObjectStore, proxy: Proxy) -> None:
        await put(store)
        await ranged(store)
        present(proxy, renewed)
        await ranged(store)
        await store.delete([KEY])
        present(proxy, expired)
        before = proxy.counts["requests"]
        with pytest.raises(StoreDenied, match="expired"):
            await call(store)
        assert proxy.counts["requests"] == before
        present(proxy, renewed)
        await call(store)

    def present(proxy: Proxy, made: Certificate) -> None:
        """Replace the certificate, and end the connections that were opened with the old one."""
        tls.present(made)
        proxy.leave()
        proxy.come_back()

    _, place = behind(running_server, tls, Plan(), change)

    assert place.get(KEY) == DATA


def made(folder: Path, name: str) -> Certificate:
    """Make a certificate, which has expired if its name is `expired`."""
    (folder / name).mkdir()
    return certificate(folder / name, days=-1 if name == "expired" else 1)
