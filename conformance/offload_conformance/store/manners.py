"""How a client behaves whatever it is asked: what it declares, and that it hinders nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from offload.store.port import Body, ObjectStore, Span
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import DIGITS, StoreClauses, listed
from offload_conformance.watch import has_credentials, longest_stall

STALL_SECONDS: Final = 0.2


class MannerClauses(StoreClauses):
    """Declarations, urls, closing, and the event loop that a client shares with others."""

    def test_capabilities_do_not_change(self, store: ObjectStore, other: ObjectStore) -> None:
        """Two clients of one place declare the same capabilities, in plain values."""
        assert store.capabilities == other.capabilities
        assert all(
            isinstance(value, bool | int | str | None) for value in store.capabilities.as_dict().values()
        )

    def test_closing_is_idempotent(self, run: Run, open_client: Callable[[], ObjectStore]) -> None:
        """A client may be closed twice, used or not."""
        store = open_client()
        run(listed(store))

        run(store.aclose())
        run(store.aclose())

    def test_the_url_names_the_place(self, store: ObjectStore, other: ObjectStore) -> None:
        """Two clients of one place have one url, and it has a scheme."""
        assert store.url == other.url
        assert "://" in store.url

    def test_the_url_carries_no_credentials(self, store: ObjectStore) -> None:
        """A url is for messages, so it has neither a password nor a key or token of the store."""
        assert not has_credentials(store.url)

    def test_closing_leaves_other_clients_alone(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """When one client of a place is closed, the others go on."""
        run(store.put("key", Body.of(b"data")))
        run(other.get("key"))

        run(store.aclose())

        assert run(other.get("key")) == b"data"
        run(other.put("key", Body.of(b"more")))
        assert run(other.get("key")) == b"more"

    def test_calls_may_overlap(self, run: Run, store: ObjectStore) -> None:
        """Of many calls at the same time, each gets its own answer."""
        there = {f"key.{n:02}": b"%d" % n * n for n in range(24)}

        async def scenario() -> list[bytes]:
            await asyncio.gather(*(store.put(key, Body.of(data)) for key, data in there.items()))
            return await asyncio.gather(*(store.get(key) for key in there))

        assert run(scenario()) == [*there.values()]
        assert self.keys_in_store() == set(there)

    def test_calls_do_not_hold_up_the_loop(self, run: Run, store: ObjectStore) -> None:
        """While a call waits for its store, other tasks of the event loop run."""
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: store.put("put", Body.of(DIGITS)),
            "create": lambda: store.create("created", DIGITS),
            "get": lambda: store.get("put", Span(1, 3)),
            "list": lambda: listed(store),
            "delete": lambda: store.delete(["created"]),
        }
        run(store.delete(["created"]))  # the first call may load an SDK, and connect

        for name, call in calls.items():
            stall_seconds = run(longest_stall(call, enough_seconds=STALL_SECONDS, between=calls["delete"]))
            assert stall_seconds < STALL_SECONDS, f"{name} held up the event loop, at every try"
