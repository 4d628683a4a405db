"""The behaviour that each decorator adds. All decorators also keep the contract of a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from random import Random

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import Asynchronous, Run

from offload.contracts.metrics import REQUEST_OUTCOMES, StoreMetrics, outcome_of
from offload.contracts.opening import RequestLimits
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Unfinished
from offload.formats.checksums import crc32c
from offload.formats.keys import is_decisive, sides_of
from offload.ground.errors import (
    AlreadyExists,
    Denied,
    Misuse,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    Throttled,
    TryAgain,
)
from offload.store.faults import Call, Fault, FaultyStore, Rule
from offload.store.hashed import HashedStore, folder_of
from offload.store.limit import LimitedStore
from offload.store.logged import LoggedStore
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore, note_first_byte, note_shared_reply
from offload.store.prefix import PrefixStore
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.split import SplitStore
from offload.store.wrap import StoreDecorator


@pytest.mark.parametrize(
    "wrap",
    [
        lambda store: PrefixStore(store, "below/here"),
        lambda store: HashedStore(store, lone="tier."),
        lambda store: SplitStore(store, MemoryStore(), decisive=is_decisive, sides_of=sides_of),
        lambda store: RetryingStore(store),
        lambda store: LimitedStore(store),
        lambda store: MeteredStore(store),
        lambda store: LoggedStore(store),
        lambda store: FaultyStore(store),
    ],
)
def test_each_decorator_finds_and_aborts_unfinished_uploads(
    wrap: Callable[[ObjectStore], ObjectStore],
) -> None:
    """The uploads have the names that the caller knows."""

    async def main() -> None:
        store = wrap(MemoryStore())
        for key in ("orders/data/1", "orders/data/2", "other/data/1"):
            await store.start_upload(key)
        done = await store.start_upload("orders/data/3")
        await done.put_part(1, b"part")
        await done.complete()

        found = await store.unfinished_uploads("orders/data/")
        await store.abort_upload(found[0])
        await store.abort_upload(found[0])

        assert sorted(upload.key for upload in found) == ["orders/data/1", "orders/data/2"]
        left = [upload.key for upload in await store.unfinished_uploads("")]
        assert sorted(left) == sorted([found[1].key, "other/data/1"])

    asyncio.run(main())


@pytest.mark.parametrize("wrap", [StoreDecorator, MeteredStore, LoggedStore, FaultyStore])
def test_a_decorator_passes_every_call_on_with_its_arguments_and_returns_the_result(
    wrap: Callable[[ObjectStore], ObjectStore],
) -> None:
    async def main() -> None:
        store = wrap(MemoryStore())
        await store.put("a/1", Body.of(b"0123456789"))
        for key in ("a/2", "a/b/3", "c"):
            await store.create(key, b"created")
        completed, aborted = await store.start_upload("a/4"), await store.start_upload("a/5")
        for number, part in ((2, b"two"), (1, b"one, ")):
            await completed.put_part(number, part)
        await completed.complete()
        await aborted.put_part(1, b"part")
        await aborted.abort()

        assert await store.unfinished_uploads("") == []
        assert await store.get("a/1", Span(2, 3)) == b"234"
        assert await store.get("a/1", Suffix(2)) == b"89"
        assert await store.get("a/4") == b"one, two"
        rows = [row async for row in store.list("a/", after="a/1")]
        assert rows == [Listed("a/2", 7), Listed("a/4", 8), Listed("a/b/3", 7)]
        assert [name async for name in store.level("a/")] == ["a/1", "a/2", "a/4", "a/b/"]
        await store.delete(["a/1", "a/b/3"])
        assert [row.key async for row in store.list("")] == ["a/2", "a/4", "c"]

    asyncio.run(main())


def test_a_hashed_store_aborts_an_upload_under_the_key_of_its_folder() -> None:
    aborted = []

    class Noting(MemoryStore):
        async def abort_upload(self, upload: Unfinished) -> None:
            aborted.append(upload.key)

    store = HashedStore(Noting(), lone="tier.")
    for key in ("a/key", "tier.json"):
        asyncio.run(store.abort_upload(Unfinished(key, "id", 0)))

    assert aborted == [f"{folder_of('a')}/a/key", "tier.json"]


def test_a_split_store_lists_no_key_that_is_on_the_wrong_side() -> None:
    data = MemoryStore(objects={"a/data": b"", "a/stray.root": b""})
    commits = MemoryStore(objects={"a/1.root": b"", "a/stray": b""})
    store = SplitStore(
        data, commits, decisive=lambda key: key.endswith(".root"), sides_of=lambda prefix: (True, True)
    )

    async def main() -> None:
        assert [row.key async for row in store.list("a/")] == ["a/1.root", "a/data"]
        assert [name async for name in store.level("a/")] == ["a/1.root", "a/data"]

    asyncio.run(main())


class Refusing(MemoryStore):
    """A store that refuses every listing, or answers it late."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Wait for ever, or raise `TryAgain`."""
        if not self.late:
            raise TryAgain("not now")
        await asyncio.Event().wait()
        yield Listed("never", 0)


def test_a_listing_of_two_stores_raises_the_error_of_one_before_the_other_answers() -> None:
    """The simulation found this: closing the other, running listing raised a bare RuntimeError."""

    async def main() -> None:
        data, commits = Refusing(late=True), Refusing(late=False)
        store = SplitStore(data, commits, decisive=is_decisive, sides_of=sides_of)
        with pytest.raises(TryAgain, match="not now"):
            [row async for row in store.list("")]

    asyncio.run(main())


ATTEMPTS_MAX = 4


class World:
    """A faulty store behind retries. Its clock moves only when a task sleeps."""

    def __init__(self, *rules: Rule, chance: float = 0.0) -> None:
        self.behind = MemoryStore()
        self.objects = self.behind.objects
        self.faulty = FaultyStore(self.behind, rules=rules)
        self.pauses: list[float] = []
        policy = RetryPolicy(attempts_max=ATTEMPTS_MAX, pause_seconds_first=1, pause_seconds_max=3)
        self.retrying = RetryingStore(
            self.faulty, policy=policy, clock=self.now, sleep=self.sleep, random=lambda: chance
        )

    def now(self) -> float:
        return sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        assert len(self.pauses) < 100, "it retries for ever"
        self.pauses.append(seconds)

    def asked(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.faulty.calls)


async def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [row.key async for row in store.list(prefix, after=after)]


REPEATED: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("key", Body.of(b"data")),
    "get": lambda store: store.get("key"),
    "stored_crc32c": lambda store: store.stored_crc32c("key"),
    "delete": lambda store: store.delete(["key"]),
    "list": lambda store: keys(store),
    "start_upload": lambda store: store.start_upload("key"),
}


class TestRetryingStore(Asynchronous):
    @pytest.mark.parametrize("operation", REPEATED)
    def test_a_request_that_may_be_sent_twice_is_repeated(self, run: Run, operation: str) -> None:
        world = World(Rule(Fault.FAIL_BEFORE, operation, nth=1))
        world.objects["key"] = b"data"

        run(REPEATED[operation](world.retrying))  # type: ignore[arg-type]

        assert world.asked(operation) == 2
        assert len(world.pauses) == 1

    def test_a_refused_create_is_repeated(self, run: Run) -> None:
        """If the create took effect after all, the repeat raises `AlreadyExists`. Every caller reads back."""
        world = World(Rule(Fault.FAIL_BEFORE, "create", nth=1))

        run(world.retrying.create("key", b"data"))

        assert world.asked("create") == 2
        assert world.objects == {"key": b"data"}

    def test_a_put_of_unknown_outcome_is_repeated(self, run: Run) -> None:
        world = World(Rule(Fault.LOSE_REPLY, "put", nth=1))

        run(world.retrying.put("key", Body.of(b"data")))

        assert world.asked("put") == 2

    def test_an_abort_of_unknown_outcome_is_repeated(self, run: Run) -> None:
        class LosingAnAbort(MemoryStore):
            lost = False

            async def abort_upload(self, upload: Unfinished) -> None:
                await super().abort_upload(upload)
                if not self.lost:
                    self.lost = True
                    raise OutcomeUnknown("the reply was lost")

        async def scenario() -> None:
            store = RetryingStore(LosingAnAbort(), sleep=lambda seconds: asyncio.sleep(0))
            await store.start_upload("key")
            [upload] = await store.unfinished_uploads("")
            await store.abort_upload(upload)
            assert await store.unfinished_uploads("") == []

        run(scenario())

    def test_a_create_of_unknown_outcome_is_not_repeated(self, run: Run) -> None:
        world = World(Rule(Fault.LOSE_REPLY, "create", nth=1))

        with pytest.raises(OutcomeUnknown):
            run(world.retrying.create("key", b"data"))

        assert world.asked("create") == 1

    def test_attempts_are_bounded_and_the_last_error_is_raised(self, run: Run) -> None:
        world = World(Rule(Fault.FAIL_BEFORE, "get"))

        with pytest.raises(TryAgain, match="on purpose"):
            run(world.retrying.get("key"))

        assert world.asked("get") == 4

    @pytest.mark.parametrize(("chance", "pauses"), [(0.0, [0, 0, 0]), (0.5, [0.5, 1, 1.5]), (1.0, [1, 2, 3])])
    def test_a_pause_is_any_part_of_a_bound_that_doubles_up_to_its_maximum(
        self, run: Run, chance: float, pauses: list[float]
    ) -> None:
        world = World(Rule(Fault.FAIL_BEFORE), chance=chance)

        with pytest.raises(TryAgain):
            run(world.retrying.get("key"))

        assert world.pauses == pauses

    def test_a_repeated_put_sends_all_bytes_from_the_first_one(self, run: Run) -> None:
        class Halfway(MemoryStore):
            """A store that takes one window of the first put, and then refuses."""

            tried = False

            async def put(self, key: str, body: Body) -> None:
                if not self.tried:
                    self.tried = True
                    await anext(body.windows())
                    raise TryAgain("halfway")
                await super().put(key, body)

        async def windows() -> AsyncIterator[bytes]:
            yield b"first"
            yield b"second"

        store = Halfway()
        run(RetryingStore(store, sleep=World().sleep).put("key", Body(size_bytes=11, windows=windows)))

        assert store.objects == {"key": b"firstsecond"}

    def test_a_level_that_breaks_off_is_repeated_without_the_names_already_given(self, run: Run) -> None:
        world = World(Rule(Fault.CUT, "list", nth=1))
        world.objects.update(dict.fromkeys(["a/1", "a/2", "b", "c/1"], b""))

        async def names() -> list[str]:
            return [name async for name in world.retrying.level("")]

        assert run(names()) == ["a/", "b", "c/"]
        assert world.asked("list") == 2

    def test_a_level_that_breaks_off_without_progress_fails(self, run: Run) -> None:
        """Names that were given already are no progress."""
        world = World(Rule(Fault.CUT, "list"))
        world.objects.update(dict.fromkeys(["a/1", "b/1"], b""))

        async def names() -> list[str]:
            return [name async for name in world.retrying.level("")]

        with pytest.raises(TryAgain):
            run(names())
        assert world.asked("list") == ATTEMPTS_MAX

    def test_a_listing_continues_after_the_last_key_it_gave(self, run: Run) -> None:
        """Each break costs one attempt, and progress renews the attempts. No key is repeated or missed."""
        world = World(Rule(Fault.CUT, "list"))
        world.objects.update({f"{n:02}": b"" for n in range(20)})

        assert run(keys(world.retrying, after="02")) == [f"{n:02}" for n in range(3, 20)]

    def test_parts_are_repeated_and_completion_is_not(self, run: Run) -> None:
        world = World(
            Rule(Fault.FAIL_BEFORE, "put_part", nth=1),
            Rule(Fault.LOSE_REPLY, "put_part", nth=2),
            Rule(Fault.FAIL_BEFORE, "complete", nth=1),
        )

        async def scenario() -> None:
            upload = await world.retrying.start_upload("key")
            await upload.put_part(1, b"data")
            with pytest.raises(TryAgain):
                await upload.complete()

        run(scenario())

        assert world.asked("put_part") == 3
        assert world.asked("complete") == 1


class Slow(MemoryStore):
    """A store whose requests each take `seconds`. It records the most requests at a time."""

    seconds = 0.0
    running = 0
    running_max = 0

    async def get(self, key: str, span: object = None) -> bytes:
        await self.dawdle()
        return b""

    async def put(self, key: str, body: Body) -> None:
        await self.dawdle()

    async def create(self, key: str, data: bytes) -> None:
        await self.dawdle()

    async def dawdle(self) -> None:
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1


ONE_AT_A_TIME = RequestLimits(up_requests_max=1, down_requests_max=1, deadline_seconds=60)


class TestLimitedStore(Asynchronous):
    def test_no_more_requests_run_at_once_than_allowed(self, run: Run) -> None:
        slow = Slow()
        limited = LimitedStore(slow, RequestLimits(up_requests_max=3, down_requests_max=2))

        async def scenario() -> None:
            gets = [limited.get("key") for _ in range(10)]
            puts = [limited.put("key", Body.of(b"")) for _ in range(10)]
            await asyncio.gather(*gets)
            assert slow.running_max == 2
            await asyncio.gather(*puts)

        run(scenario())

        assert slow.running_max == 3

    def test_an_overdue_read_may_be_tried_again_and_an_overdue_write_is_unknown(self, run: Run) -> None:
        slow = Slow()
        slow.seconds = 60
        limited = LimitedStore(
            slow, RequestLimits(up_requests_max=1, down_requests_max=1, deadline_seconds=0.01)
        )

        with pytest.raises(TryAgain, match=r"get of 'key' .* longer than 0\.01 s"):
            run(limited.get("key"))
        with pytest.raises(OutcomeUnknown):
            run(limited.put("key", Body.of(b"")))
        with pytest.raises(OutcomeUnknown):
            run(limited.create("key", b""))

        assert slow.running == 0

    def test_waiting_for_a_turn_does_not_use_up_the_deadline(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Four requests take 0.4 seconds each, by a clock that does not move between them."""
        seconds = 0.0

        class Takes(MemoryStore):
            async def get(self, key: str, span: object = None) -> bytes:
                nonlocal seconds
                seconds += 0.4
                await asyncio.sleep(0)
                return b""

        limited = LimitedStore(
            Takes(), RequestLimits(up_requests_max=1, down_requests_max=1, deadline_seconds=0.5)
        )

        async def scenario() -> None:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: seconds)
            await asyncio.gather(*(limited.get("key") for _ in range(4)))

        run(scenario())
        monkeypatch.undo()

        assert seconds == pytest.approx(1.6)

    def test_a_consumer_that_stops_in_the_middle_of_a_listing_blocks_nobody(self, run: Run) -> None:
        limited = LimitedStore(
            MemoryStore(objects={"a": b"", "b": b""}), RequestLimits(up_requests_max=1, down_requests_max=1)
        )

        async def scenario() -> None:
            async for row in limited.list(""):
                assert await asyncio.wait_for(limited.get(row.key), 60) == b""

        run(scenario())

    def test_a_timeout_of_the_store_itself_is_passed_on(self, run: Run) -> None:
        class TimesOut(MemoryStore):
            async def get(self, key: str, span: object = None) -> bytes:
                raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            run(
                LimitedStore(
                    TimesOut(), RequestLimits(up_requests_max=1, down_requests_max=1, deadline_seconds=60)
                ).get("key")
            )


class TestPrefixStore(Asynchronous):
    def test_errors_name_the_key_that_the_caller_used(self, run: Run) -> None:
        store = PrefixStore(MemoryStore(objects={"a/tier/there": b""}, name="x"), "a/tier")

        with pytest.raises(NotFound) as absent:
            run(store.get("key"))
        with pytest.raises(AlreadyExists) as there:
            run(store.create("there", b""))

        assert (absent.value.key, there.value.key) == ("key", "there")
        assert store.url == "memory://x/a/tier"

    def test_the_marker_that_a_console_makes_for_its_folder_is_no_object(self, run: Run) -> None:
        store = PrefixStore(MemoryStore(objects={"tier/": b"", "tier/a/": b"", "tier/b": b""}), "tier")

        async def rows() -> tuple[list[str], list[str]]:
            return [row.key async for row in store.list("")], [name async for name in store.level("")]

        assert run(rows()) == (["a/", "b"], ["a/", "b"])

    @pytest.mark.parametrize("prefix", ["", "/", "a/", "../a", ".a"])
    def test_a_prefix_is_itself_a_key(self, prefix: str) -> None:
        with pytest.raises(Misuse):
            PrefixStore(MemoryStore(), prefix)


class Keeping(MemoryStore):
    """A store that keeps checksums which depend on the key."""

    async def stored_crc32c(self, key: str) -> int | None:
        return crc32c(await self.get(key) + key.encode())


class TestStoredChecksums(Asynchronous):
    """Every decorator asks the inner store for the key that it would read."""

    @pytest.mark.parametrize(
        ("decorated", "key_behind"),
        [
            (StoreDecorator, "a/key"),
            (FaultyStore, "a/key"),
            (LimitedStore, "a/key"),
            (MeteredStore, "a/key"),
            (RetryingStore, "a/key"),
            (lambda inner: PrefixStore(inner, "deep/er"), "deep/er/a/key"),
            (lambda inner: HashedStore(inner, lone="tier."), f"{folder_of('a')}/a/key"),
            (lambda inner: split(inner, MemoryStore(), decisive=False), "a/key"),
            (lambda inner: split(MemoryStore(), inner, decisive=True), "a/key"),
        ],
    )
    def test_a_stored_checksum_is_that_of_the_object_behind(
        self, run: Run, decorated: Callable[[ObjectStore], ObjectStore], key_behind: str
    ) -> None:
        store = decorated(Keeping(objects={key_behind: b"data"}))

        assert run(store.stored_crc32c("a/key")) == crc32c(b"data" + key_behind.encode())
        with pytest.raises(NotFound) as caught:
            run(store.stored_crc32c("other/key"))
        assert caught.value.key == "other/key"


def split(data: ObjectStore, commits: ObjectStore, *, decisive: bool) -> SplitStore:
    return SplitStore(data, commits, decisive=lambda key: decisive, sides_of=lambda prefix: (True, True))


CREATE_OUTCOMES = {
    TryAgain: "try_again",
    OutcomeUnknown: "outcome_unknown",
    Denied: "denied",
    AlreadyExists: "already_exists",
    asyncio.CancelledError: "cancelled",
}


class TestMeteredStore(Asynchronous):
    def test_requests_and_bytes_are_counted_as_they_pass(self, run: Run) -> None:
        """Every byte sent counts: parts and creates, both refused and repeated ones."""
        faulty = FaultyStore(MemoryStore(), rules=[Rule(Fault.LOSE_REPLY, "put", nth=1)])
        metered = MeteredStore(faulty, StoreMetrics())

        async def scenario() -> None:
            with pytest.raises(OutcomeUnknown):
                await metered.put("key", Body.of(b"12345"))
            await metered.put("key", Body.of(b"12345"))
            await metered.create("created", b"123")
            with pytest.raises(AlreadyExists):
                await metered.create("created", b"123")
            upload = await metered.start_upload("upload")
            await upload.put_part(1, b"1234567")
            await upload.complete()
            await metered.get("created")
            await metered.stored_crc32c("created")
            await keys(metered)
            await metered.delete(["created", "upload"])

        run(scenario())

        asked_once = ("start_upload", "put_part", "complete", "get", "stored_crc32c", "list", "delete")
        once = dict.fromkeys(asked_once, 1)
        assert metered.metrics.requests == Counter(once | {"put": 2, "create": 2})
        assert metered.metrics.moved == {"put": 5 + 5, "create": 3 + 3, "put_part": 7, "get": 3}
        assert (metered.metrics.bytes_put, metered.metrics.bytes_got) == (5 + 5 + 3 + 3 + 7, 3)

    @settings(max_examples=100 if CAMPAIGN else 30)
    @given(
        st.lists(st.sampled_from(["put", "create", "get", "list", "delete", "upload"]), max_size=15),
        st.integers(0, 2**32),
        st.sampled_from(
            [None, *["put", "create", "get", "list", "delete", "start_upload", "put_part", "complete"]]
        ),
    )
    def test_every_request_ends_once_with_its_outcome_and_every_other_attempt_is_a_retry(
        self, calls: list[str], seed: int, cancelled: str | None
    ) -> None:
        """The store below and the callers above count by themselves."""
        chances = {Fault.FAIL_BEFORE: 0.2, Fault.LOSE_REPLY: 0.1, Fault.DENY: 0.1, Fault.CUT: 0.1}
        faulty = FaultyStore(MemoryStore(), chances=chances, random=Random(seed))
        begun, raised = Counter[str](), Counter[str]()

        class Watched(StoreDecorator):
            """Sees what each attempt raises, below the metrics."""

            async def create(self, key: str, data: bytes) -> None:
                outcome = "ok"
                try:
                    await super().create(key, data)
                except BaseException as error:
                    outcome = CREATE_OUTCOMES[type(error)]
                    raise
                finally:
                    raised[outcome] += 1

        async def cancel(operation: str, key: str) -> None:
            if operation == cancelled:
                raise asyncio.CancelledError

        async def pause(seconds: float) -> None:
            """Take no time."""

        faulty.before = cancel
        metered = MeteredStore(Watched(faulty))
        store = RetryingStore(LimitedStore(metered), sleep=pause, policy=RetryPolicy(attempts_max=3))

        async def call(number: int, operation: str) -> None:
            begun["start_upload" if operation == "upload" else operation] += 1
            key = f"key {number % 3}"
            match operation:
                case "put":
                    await store.put(key, Body.of(b"1234"))
                case "create":
                    await store.create(key, b"1")
                case "get":
                    await store.get(key)
                case "list":
                    _ = [row async for row in store.list("")]
                case "delete":
                    await store.delete([key])
                case "upload":
                    upload = await store.start_upload(key)
                    begun["put_part"] += 1
                    await upload.put_part(1, b"part")
                    begun["complete"] += 1
                    await upload.complete()

        async def scenario() -> None:
            for number, operation in enumerate(calls):
                with suppress(OffloadError, asyncio.CancelledError):
                    await call(number, operation)

        asyncio.run(scenario())

        found = metered.metrics
        ended, retried = Counter[str](), Counter[str]()
        for (operation, _), times in found.times.items():
            ended[operation] += times.count
        for (operation, outcome), repeats in found.retries.items():
            assert repeats <= found.times[operation, outcome].count
            retried[operation] += repeats
        assert ended == found.requests == Counter(each.operation for each in faulty.calls)
        assert retried == found.requests - begun
        assert {key[1]: times.count for key, times in found.times.items() if key[0] == "create"} == raised

    def test_a_class_that_a_plugin_adds_counts_as_its_base(self) -> None:
        class OurOwn(Throttled):
            """An error of a plugin."""

        assert outcome_of(OurOwn) == outcome_of(Throttled) == "throttled"
        assert outcome_of(RuntimeError) == "other"
        assert {outcome_of(kind) for kind in (NotFound, TryAgain, StoreDenied, None)} < REQUEST_OUTCOMES

    def test_what_a_backend_says_of_a_reply_belongs_to_its_own_read(self) -> None:
        """Two reads at once: one waits for its reply, the other takes its bytes from an earlier reply."""

        class Backend(MemoryStore):
            async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
                await asyncio.sleep(0)
                if key == "shared":
                    note_shared_reply()
                else:
                    next(ticks)
                    note_first_byte()
                    next(ticks)
                await asyncio.sleep(0)
                return b""

        ticks = count()
        store = MeteredStore(Backend(), clock=lambda: next(ticks))

        class Above(MemoryStore):
            """A backend that reads another tier, and then says something of its own reply."""

            async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
                found = await store.get(key, span)
                note_shared_reply()
                return found

        above = MeteredStore(Above())

        async def scenario() -> None:
            note_first_byte()  # of no read
            note_shared_reply()
            await asyncio.gather(store.get("shared"), store.get("sent"), store.get("shared"))
            await above.get("sent")

        asyncio.run(scenario())

        found = store.metrics
        assert (found.requests["get"], found.reads_shared, found.first_bytes.count) == (4, 2, 2)
        assert (above.metrics.reads_shared, above.metrics.first_bytes.count) == (1, 0)
        assert 2 <= found.first_bytes.seconds < found.times["get", "ok"].seconds


class TestFaultyStore(Asynchronous):
    @pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.DENY])
    def test_a_request_that_fails_before_it_is_sent_has_no_effect(self, run: Run, fault: Fault) -> None:
        store = FaultyStore(MemoryStore(), rules=[Rule(fault)])

        for call in (store.put("key", Body.of(b"")), store.create("key", b""), store.delete(["key"])):
            with pytest.raises(Denied if fault is Fault.DENY else TryAgain):
                run(call)

        assert run(keys(store.inner)) == []

    def test_a_request_with_a_lost_reply_takes_effect(self, run: Run) -> None:
        store = FaultyStore(MemoryStore(), rules=[Rule(Fault.LOSE_REPLY)])

        for call in (store.put("put", Body.of(b"")), store.create("created", b"")):
            with pytest.raises(OutcomeUnknown):
                run(call)

        assert run(keys(store.inner)) == ["created", "put"]

    def test_a_delayed_write_takes_effect_when_the_test_lands_it(self, run: Run) -> None:
        """It stores the bytes of its call, over any newer object."""
        store = FaultyStore(MemoryStore(), rules=[Rule(Fault.DELAY, "put", nth=1)])

        with pytest.raises(OutcomeUnknown):
            run(store.put("key", Body.of(b"early")))
        run(store.put("key", Body.of(b"late")))
        assert store.late == (Call("put", "key"),)
        assert run(store.get("key")) == b"late"

        assert run(store.land()) == 1
        assert run(store.get("key")) == b"early"
        assert run(store.land()) == 0

    def test_a_delayed_create_takes_effect_only_if_the_key_is_still_free(self, run: Run) -> None:
        store = FaultyStore(
            MemoryStore(), rules=[Rule(Fault.DELAY, "create", "root.?", nth=n) for n in (1, 2)]
        )

        for key in ("root.1", "root.2"):
            with pytest.raises(OutcomeUnknown):
                run(store.create(key, b"late"))
        run(store.create("root.1", b"first"))

        assert run(store.land("root.1")) == 0
        assert run(store.land()) == 1
        assert run(store.get("root.1")) == b"first"
        assert run(store.get("root.2")) == b"late"

    def test_rules_choose_by_operation_key_and_count(self, run: Run) -> None:
        store = FaultyStore(MemoryStore(), rules=[Rule(Fault.FAIL_BEFORE, "create", "*/root.*", nth=2)])

        run(store.create("a/root.1", b""))
        run(store.create("a/data.1", b""))
        run(store.put("a/root.0", Body.of(b"")))
        with pytest.raises(TryAgain):
            run(store.create("b/root.2", b""))
        run(store.create("b/root.2", b""))

    def test_a_fault_can_cut_or_flip_the_bytes_of_a_read(self, run: Run) -> None:
        rules = [Rule(Fault.CUT, "get", nth=1), Rule(Fault.FLIP, "get", nth=2)]
        store = FaultyStore(MemoryStore(objects={"key": b"12345"}), rules=rules)

        assert run(store.get("key")) == b"12"
        assert run(store.get("key")) == b"12245"
        assert run(store.get("key")) == b"12345"

    def test_hooks_run_before_and_after_every_request(self, run: Run) -> None:
        """In a hook, a test crashes a writer or runs another one."""
        store = FaultyStore(MemoryStore())

        async def rival(operation: str, key: str) -> None:
            if operation == "create":
                await store.inner.create(key, b"rival")

        async def crash(operation: str, _key: str) -> None:
            if operation == "put":
                raise KeyError("crash")

        store.before, store.after = rival, crash
        with pytest.raises(AlreadyExists):
            run(store.create("root", b"mine"))
        with pytest.raises(KeyError):
            run(store.put("key", Body.of(b"")))

        assert run(keys(store.inner)) == ["key", "root"]
        assert store.calls == [("create", "root"), ("put", "key")]

    def test_the_same_seed_gives_the_same_faults(self, run: Run) -> None:
        def outcomes(seed: int) -> list[str]:
            chances = {Fault.FAIL_BEFORE: 0.2, Fault.LOSE_REPLY: 0.2, Fault.DELAY: 0.2}
            store = FaultyStore(MemoryStore(), chances=chances, random=Random(seed))
            return [run(outcome(store, str(n))) for n in range(60)]

        async def outcome(store: ObjectStore, key: str) -> str:
            try:
                await store.create(key, b"")
            except (TryAgain, OutcomeUnknown) as error:
                return type(error).__name__
            return "created"

        assert outcomes(1) == outcomes(1) != outcomes(2)
        assert set(outcomes(1)) == {"created", "TryAgain", "OutcomeUnknown"}

    def test_an_upload_fails_in_the_same_ways(self, run: Run) -> None:
        rules = [Rule(Fault.FAIL_BEFORE, "put_part", nth=1), Rule(Fault.LOSE_REPLY, "complete")]
        store = FaultyStore(MemoryStore(), rules=rules)

        async def scenario() -> None:
            upload = await store.start_upload("key")
            with pytest.raises(TryAgain):
                await upload.put_part(1, b"data")
            await upload.put_part(1, b"data")
            with pytest.raises(OutcomeUnknown):
                await upload.complete()

        run(scenario())

        assert run(store.get("key")) == b"data"
        assert [call.operation for call in store.calls[:4]] == [
            "start_upload",
            "put_part",
            "put_part",
            "complete",
        ]
