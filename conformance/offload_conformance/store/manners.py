"""General behaviour of a client: its declarations and its URL, closing it, and calls beside other calls."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX
from offload.contracts.store import Body, Buffer, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import (
    CANCELS,
    DIGITS,
    LATE_LOOKS_MAX,
    LATE_PAUSE_SECONDS,
    MIB,
    StoreClauses,
    body_of,
    cancelled_after,
    drawn,
    keys,
    level,
    listed,
    make_sure_of,
    moment,
    refuses,
    store_by,
    turns_of,
    windows_of,
)
from offload_conformance.watch import has_credentials, longest_stall

STALL_SECONDS: Final = 0.2

STEP: Final = 50_000
LARGE_SIZE_BYTES: Final = 24 * STEP

BESIDE: Final = 3
"""Every third cancelled call has an equal call beside it."""

TURNS: Final = 40
"""How often a folder with one object gets another one while the first is deleted."""

CLOSED: Final = 8
"""The number of clients opened one after the other: more than there are threads that all clients share."""

COPIES: Final = 3
"""So many objects are copied within the store at once."""

AT_ONCE: Final = 18
"""So many objects are put at once, and then asked for: more than most clients have connections."""

CANCELLED: Final[Mapping[str, Callable[[ObjectStore], Coroutine[Any, Any, object]]]] = {
    "get": lambda store: store.get("large"),
    "get a part": lambda store: store.get("large", Span(STEP - 1, STEP, follows=STEP)),
    "retained": lambda store: store.retained("large"),
    "list": lambda store: listed(store),
    "level": lambda store: level(store, ""),
    "put": lambda store: store.put("put", Body.of(DIGITS * 5000)),
    "create": lambda store: create_of_any(store),
    "delete": lambda store: store.delete(["put"]),
    "stored_crc32c": lambda store: store.stored_crc32c("large"),
    "metadata_of": lambda store: store.metadata_of("large"),
    "unfinished_uploads": lambda store: unfinished(store),
}


class StoreMannerClauses(StoreClauses):
    """The clauses on declarations, URLs, closing, cancelling, and the event loop that clients share."""

    def test_capabilities_do_not_change(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Two clients of one place declare the same capabilities, as plain values.

        They do so before their first call and after any other, and no limit contradicts another one.
        """
        can = store.capabilities
        assert can == other.capabilities
        assert all(isinstance(value, bool | int | str | None) for value in can.as_dict().values())
        run(store.put("key", Body.of(DIGITS)))
        run(listed(store))
        run(store.get("key"))
        assert store.capabilities == can == other.capabilities
        assert 0 < can.key_size_bytes_max <= KEY_SIZE_BYTES_MAX
        re.compile(can.keys_refused or "")
        assert can.metadata_size_bytes_max >= 0
        assert can.part_size_bytes_min <= (can.part_size_bytes_max or can.part_size_bytes_min)
        limits = (can.part_size_bytes_min, can.part_size_bytes_max, can.parts_max, can.delete_batch_max)
        assert all(limit is None or limit > 0 for limit in (*limits, can.put_size_bytes_max))

    def test_closing_is_idempotent(self, run: Run, open_client: Callable[[], ObjectStore]) -> None:
        """A client may be closed twice, used or not, and closing it ends its threads and closes its files."""
        unused, before = open_client(), held()
        for _ in range(CLOSED):
            store = open_client()
            run(store.put("key", Body.of(DIGITS)))
            run(store.get("key"))
            run(listed(store))
            run(store.aclose())
            run(store.aclose())
        for _ in range(2):
            run(unused.aclose())

        for _ in range(LATE_LOOKS_MAX):
            more = {what: count - before[what] for what, count in held().items()}
            if max(more.values()) < CLOSED:
                return
            run(asyncio.sleep(LATE_PAUSE_SECONDS))
        pytest.fail(f"{CLOSED} clients were closed: expected no threads or files left; found {more} more")

    def test_the_url_names_the_place(self, store: ObjectStore, other: ObjectStore) -> None:
        """Two clients of one place have the same URL, and it has a scheme."""
        assert store.url == other.url
        assert "://" in store.url

    def test_the_url_carries_no_credentials(self, store: ObjectStore) -> None:
        """A URL contains no password, key or token, because it is shown in messages."""
        assert not has_credentials(store.url)

    def test_closing_leaves_other_clients_alone(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """Closing one client of a place does not affect the others.

        Their unfinished uploads can still be completed.
        """
        run(store.put("key", Body.of(b"data")))
        run(other.get("key"))
        upload = run(other.start_upload("uploaded")) if store.capabilities.multipart else None
        if upload is not None:
            run(upload.put_part(1, b"part"))

        run(store.aclose())

        if upload is not None:
            run(upload.complete())
            assert run(other.get("uploaded")) == b"part"
        assert run(other.get("key")) == b"data"
        run(other.put("key", Body.of(b"more")))
        assert run(other.get("key")) == b"more"

    def test_calls_may_overlap(self, run: Run, store: ObjectStore) -> None:
        """Overlapping calls each get their own answer: reads of one object or of many, and listings.

        Objects can be written to a folder while others in it are deleted. Bodies and parts that come at the
        same time do not mix. While a put waits for its body, every other call of the same client is answered.
        """
        there = {f"key.{n:02}": b"%d" % n * n for n in range(24)}
        large = drawn(LARGE_SIZE_BYTES)
        spans = [Span(n * STEP, STEP) for n in range(LARGE_SIZE_BYTES // STEP)]

        async def scenario() -> tuple[list[bytes], list[bytes], list[list[str]]]:
            await asyncio.gather(*(store.put(key, Body.of(data)) for key, data in there.items()))
            await store.put("large", Body.of(large))
            wanted = [key for key in there if key[:5] == "key.1"]
            async with asyncio.TaskGroup() as tasks:
                whole = [tasks.create_task(store.get(key)) for key in there]
                parts = [tasks.create_task(store.get("large", span)) for span in spans]
                rows = [
                    tasks.create_task(listed(store, "key.1", after=after, awaiting=wanted[n:]))
                    for n, after in enumerate(["", *wanted])
                ]
            return (
                [bytes(task.result()) for task in whole],
                [bytes(task.result()) for task in parts],
                [keys(task.result()) for task in rows],
            )

        whole, parts, rows = run(scenario())

        for data, wanted in zip(whole, there.values(), strict=True):
            make_sure_of(data, wanted, "an object read at the same time as others")
        make_sure_of(b"".join(parts), large, "parts read at the same time")
        assert rows == [[key for key in there if key[:5] == "key.1"][n:] for n in range(11)]
        assert self.keys_in_store() == {*there, "large"}
        for turn in range(TURNS):
            deletion = store.delete([f"a/folder/{turn - 1}"])
            run(gathered(store.put(f"a/folder/{turn}", Body.of(DIGITS)), deletion))
        assert self.keys_in_store() == {*there, "large", f"a/folder/{TURNS - 1}"}
        calls = (writes_beside_writes, partial(reads_within_puts, large=large), calls_within_a_put)
        for call in calls:
            run(within(self.clause_seconds_max / 2, call(store)))

    @pytest.mark.parametrize("name", CANCELLED)
    def test_a_cancelled_call_hinders_no_other(self, run: Run, store: ObjectStore, name: str) -> None:
        """A call that is cancelled at any moment keeps no connection or lock: the next calls are answered.

        The next calls get their own answers, not that of the cancelled call. An equal call that runs at the
        same time is answered too.
        """
        call = CANCELLED[name]
        large = drawn(STEP * 4)

        async def scenario() -> None:
            await store.put("large", Body.of(large))
            await store.put("kept", Body.of(DIGITS))
            turns = await turns_of(call(store))
            for number in range(CANCELS):
                beside = [asyncio.ensure_future(call(store))] if number % BESIDE == 0 else []
                await cancelled_after(moment(number, turns), call(store))
                await asyncio.gather(*beside)
                assert await store.get("kept", Span(1, 3)) == DIGITS[1:4]
                assert keys(await listed(store, "k", awaiting=["kept"])) == ["kept"]
            make_sure_of(await store.get("large"), large, "an object that no call changed")

        run(scenario())

    @pytest.mark.parametrize("size_bytes", [len(DIGITS), 8 * MIB])
    def test_calls_do_not_hold_up_the_loop(self, run: Run, store: ObjectStore, size_bytes: int) -> None:
        """While a call waits for its store or works on its bytes, other tasks of the event loop run."""
        can = store.capabilities
        data = drawn(min(size_bytes, can.put_size_bytes_max or size_bytes))
        made = data[: can.create_size_bytes_max]
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: store.put("put", body_of(*windows_of(data))),
            "create": lambda: store.create("created", made),
            "get": lambda: store.get("put"),
            "get a part": lambda: store.get("put", Span(1, len(data) // 2)),
            "list": lambda: listed(store),
            "level": lambda: level(store, ""),
            "stored_crc32c": lambda: store.stored_crc32c("put"),
            "metadata_of": lambda: store.metadata_of("put"),
            "unfinished_uploads": lambda: unfinished(store),
            "delete": lambda: store.delete(["created"]),
        }
        if can.multipart:
            calls["upload"] = lambda: store_by("upload", store, "put", data)
        run(store.delete(["created"]))  # the first call may load an SDK, and connect

        for name, call in calls.items():
            stall_seconds = run(longest_stall(call, enough_seconds=STALL_SECONDS, between=calls["delete"]))
            if stall_seconds >= STALL_SECONDS:
                pytest.fail(
                    f"{name}, {size_bytes:,} bytes: expected that other tasks run; found that none ran "
                    f"for {stall_seconds:.2f} s, in the best of several tries"
                )


async def within(seconds: float, call: Coroutine[Any, Any, None]) -> None:
    """Await a call, and fail with words if it does not end: its parts wait for each other."""
    try:
        async with asyncio.timeout(seconds):
            await call
    except TimeoutError:
        pytest.fail(f"calls of one client at the same time: expected answers; found none within {seconds} s")


async def writes_beside_writes(store: ObjectStore) -> None:
    """Fail if the windows of bodies or the parts of uploads mix, or answers of calls are exchanged."""
    there = [f"beside/{n:02}" for n in range(AT_ONCE)] + [f"beside/{'x' * 240}.{n}" for n in range(2)]
    pieces = {
        key: [bytes([65 + n, 48 + piece]) * 700 for piece in range(4)]
        for n, key in enumerate(there)
        if not refuses(store, f"{key}.up")
    }
    least = store.capabilities.part_size_bytes_min

    def body(windows: Sequence[bytes]) -> Body:
        async def again() -> AsyncIterator[bytes]:
            for window in windows:
                await asyncio.sleep(0)
                yield window

        return Body(size_bytes=sum(map(len, windows)), windows=again)

    async def upload(key: str) -> None:
        parts = [window.ljust(least, b".") for window in pieces[key][:2]]
        ongoing = await store.start_upload(f"{key}.up")
        await asyncio.gather(*(ongoing.put_part(n, part) for n, part in enumerate(parts, start=1)))
        await ongoing.complete()
        make_sure_of(await store.get(f"{key}.up"), b"".join(parts), "an upload beside others")

    async def make_sure(key: str) -> None:
        data = b"".join(pieces[key])
        make_sure_of(await store.get(key), data, "an object that was put beside others")
        assert await store.stored_crc32c(key) in {None, crc32c(data)}
        assert (await store.metadata_of(key) or {}).get("ours") == ours(key).get("ours")
        assert await level(store, "beside/") == [*pieces]

    def ours(key: str) -> dict[str, str]:
        return {"ours": key} if store.capabilities.metadata_size_bytes_max else {}

    puts = (store.put(key, replace(body(windows), metadata=ours(key))) for key, windows in pieces.items())
    await asyncio.gather(*puts)
    if store.capabilities.strong_listing:
        await asyncio.gather(*map(make_sure, pieces))
    if store.capabilities.multipart:
        await asyncio.gather(*map(upload, [*pieces][-3:]))


async def reads_within_puts(store: ObjectStore, large: bytes) -> None:
    """Fail if a client cannot read for the body of a put, of several puts at once, as a copy does."""

    def copy(start: int) -> Body:
        async def windows() -> AsyncIterator[Buffer]:
            for at in (start, start + STEP):
                yield await store.get("large", Span(at, STEP))

        return Body(size_bytes=2 * STEP, windows=windows)

    await asyncio.gather(*(store.put(f"copy/{n}", copy(n * STEP)) for n in range(COPIES)))
    for n in range(COPIES):
        make_sure_of(
            await store.get(f"copy/{n}"), large[n * STEP : (n + 2) * STEP], "a copy within the store"
        )


async def calls_within_a_put(store: ObjectStore) -> None:
    """Fail if a client that waits for the body of a put answers no other call."""

    async def windows() -> AsyncIterator[bytes]:
        yield DIGITS
        await store.put("within/put", Body.of(DIGITS))
        await create_of_any(store)
        assert await store.get("within/put", Suffix(3)) == DIGITS[-3:]
        await listed(store, "within/")
        await level(store, "within/")
        await store.stored_crc32c("within/put")
        await store.metadata_of("within/put")
        await store.retained("within/put")
        await unfinished(store)
        if store.capabilities.multipart:
            await store_by("upload", store, "within/upload", DIGITS)
        await store.delete(["within/put", "created"])
        yield DIGITS

    await store.put("around", Body(size_bytes=2 * len(DIGITS), windows=windows))
    assert await store.get("around") == DIGITS * 2


async def gathered(*calls: Coroutine[Any, Any, object]) -> None:
    """Await some calls at the same time."""
    await asyncio.gather(*calls)


def held() -> dict[str, int]:
    """Count the threads of this process, and its open files and connections if the system shows them."""
    descriptors = Path("/proc/self/fd")
    open_files = len([*descriptors.iterdir()]) if descriptors.is_dir() else 0
    return {"threads": threading.active_count(), "open files": open_files}


async def create_of_any(store: ObjectStore) -> None:
    """Create a key that may exist from an earlier call."""
    with suppress(AlreadyExists):
        await store.create("created", DIGITS * 5000)


async def unfinished(store: ObjectStore) -> list[str]:
    """Return the keys of unfinished uploads."""
    return [each.key for each in await store.unfinished_uploads("")]
