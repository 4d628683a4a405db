"""Metadata of objects: its rules, what a hostile reply may have, and the way through each decorator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import check_metadata, metadata_size, read_metadata
from offload.contracts.records import RecordLimits
from offload.contracts.store import Body, ObjectStore, Upload
from offload.formats.keys import is_decisive, sides_of
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.hashed import HashedStore
from offload.store.limit import LimitedStore
from offload.store.logged import LoggedStore
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.multipart import put_in_parts
from offload.store.prefix import PrefixStore
from offload.store.read_only import ReadOnlyStore
from offload.store.records import RecordStore
from offload.store.retry import RetryingStore
from offload.store.split import SplitStore
from offload.store.stack import stacked_store
from offload.store.wrap import StoreDecorator

SENT = {"Role": "data", "ManagedLedgerName": "public/default/persistent/t"}
STORED = {"role": "data", "managedledgername": "public/default/persistent/t"}

DECORATORS = {
    "plain": StoreDecorator,
    "prefix": lambda store: PrefixStore(store, "below/here"),
    "hashed": lambda store: HashedStore(store, lone="tier."),
    "split": lambda store: SplitStore(store, MemoryStore(), decisive=is_decisive, sides_of=sides_of),
    "retries": RetryingStore,
    "limits": LimitedStore,
    "metrics": MeteredStore,
    "log": LoggedStore,
    "faults": FaultyStore,
    "all of a session": lambda store: stacked_store(store, Env()),
}


@pytest.fixture
def can() -> Capabilities:
    return MemoryStore().capabilities


class OfContract02(MemoryStore):
    """A backend that was written before objects had metadata: it knows no parameter of that name."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, metadata_size_bytes_max=0)

    async def put(self, key: str, body: Body) -> None:
        self.objects[key] = b"".join([window async for window in body.windows()])

    async def start_upload(self, key: str) -> Upload:
        return await super().start_upload(key)


# The rules


def test_names_are_returned_in_lower_case_and_values_as_they_are(can: Capabilities) -> None:
    assert check_metadata(SENT, can) == STORED


def test_the_limit_counts_names_values_and_a_header_for_each_pair(can: Capabilities) -> None:
    assert metadata_size({"ab": "cde", "f": "g"}) == 2 * 16 + 7
    exact = replace(can, metadata_size_bytes_max=2 * 16 + 7)

    check_metadata({"ab": "cde", "f": "g"}, exact)
    with pytest.raises(Misuse, match="at most 39 bytes of metadata, and an object has 40"):
        check_metadata({"ab": "cde", "f": "gh"}, exact)


def test_an_error_shows_a_name_and_no_value(can: Capabilities) -> None:
    """A value may be private, and the error goes to a log."""
    for metadata in ({"token": "sécret"}, {"to-ken": "secret"}, {"token": "secret " * 2_000}):
        with pytest.raises(Misuse) as caught:
            check_metadata(metadata, can)
        assert "cret" not in str(caught.value)
        assert "\n" not in str(caught.value)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,20}", fullmatch=True),
        st.from_regex(r"[!-~]{1,10}( [!-~]{1,10}){0,5}", fullmatch=True),
        max_size=8,
    )
)
def test_metadata_that_is_taken_reads_back_the_same(metadata: dict[str, str]) -> None:
    can = MemoryStore().capabilities
    try:
        taken = check_metadata(metadata, can)
    except Misuse:
        assert len({name.lower() for name in metadata}) < len(metadata)
        return

    assert read_metadata(((name.upper(), value) for name, value in taken.items()), where="memory") == taken


# Replies of strangers


def test_names_of_a_reply_are_in_lower_case_and_repeated_ones_are_joined() -> None:
    found = [("Role", "data"), ("x-other_1", "é"), ("ROLE", "index"), ("", "no name")]

    read = read_metadata(found, where="here")

    assert read == {"role": "data,index", "x-other_1": "é", "": "no name"}


def test_a_letter_of_another_script_does_not_become_one_of_ascii() -> None:
    assert read_metadata([("mar\u212a", "1"), ("mark", "2")], where="") == {"mar\u212a": "1", "mark": "2"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    """Otherwise the first print of the value fails, far away."""
    read = read_metadata([("a\udcff", "b\udcfe\ud800")], where="here")

    assert read == {"a\ufffd": "b\ufffd\ufffd"}
    assert "".join([*read, *read.values()]).encode()


@pytest.mark.parametrize(
    "found",
    [
        [("name", "v" * 70_000)],
        [("n" * 70_000, "v")],
        ((f"n{number}", "") for number in range(10**9)),
        (("same", "v") for _ in range(10**9)),
    ],
    ids=["a value", "a name", "names", "one name again and again"],
)
def test_more_metadata_than_any_store_keeps_is_corrupt_before_it_is_kept(found) -> None:
    with pytest.raises(Corrupt) as caught:
        read_metadata(found, where="s3://bucket: 'key'")

    assert caught.value.where == "s3://bucket: 'key'"
    assert len(str(caught.value)) < 200


# Decorators


@pytest.mark.parametrize("wrap", DECORATORS.values(), ids=list(DECORATORS))
def test_each_decorator_passes_metadata_on(wrap: Callable[[ObjectStore], ObjectStore]) -> None:
    async def main() -> None:
        store = wrap(MemoryStore())
        await store.put("orders/data/1", Body.of(b"put", metadata=SENT))
        upload = await store.start_upload("orders/data/2", metadata=SENT)
        await upload.put_part(1, b"part")
        await upload.complete()
        await put_in_parts(
            store, "orders/data/3", Body.of(b"parts", metadata=SENT), part_size_bytes=2, at_once=1
        )
        await store.put("orders/data/4", Body.of(b"put"))

        found = [await store.metadata_of(f"orders/data/{number}") for number in range(1, 5)]

        assert found == [STORED, STORED, STORED, {}]
        assert (
            store.capabilities.metadata_size_bytes_max == MemoryStore().capabilities.metadata_size_bytes_max
        )

    asyncio.run(main())


@pytest.mark.parametrize("wrap", DECORATORS.values(), ids=list(DECORATORS))
def test_a_backend_that_is_older_than_metadata_works_as_before(
    wrap: Callable[[ObjectStore], ObjectStore],
) -> None:
    async def main() -> None:
        store = wrap(OfContract02())
        await store.put("orders/data/1", Body.of(b"put"))
        upload = await store.start_upload("orders/data/2")
        await upload.put_part(1, b"part")
        await upload.complete()

        assert await store.get("orders/data/1") == b"put"
        assert await store.get("orders/data/2") == b"part"

    asyncio.run(main())


def test_metadata_for_a_backend_that_is_older_is_refused_before_it_is_called() -> None:
    """It would store the object and drop its metadata."""

    async def main() -> None:
        backend = OfContract02()
        store = stacked_store(backend, Env())
        with pytest.raises(Misuse, match="keeps no metadata"):
            await store.put("key", Body.of(b"put", metadata=SENT))
        with pytest.raises(Misuse, match="keeps no metadata"):
            await store.start_upload("key", metadata=SENT)

        assert backend.objects == {}

    asyncio.run(main())


def test_a_pair_of_stores_keeps_as_much_metadata_as_both_do() -> None:
    pair = SplitStore(MemoryStore(), OfContract02(), decisive=is_decisive, sides_of=sides_of)

    assert pair.capabilities.metadata_size_bytes_max == 0


def test_a_late_put_lands_with_its_metadata() -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore(), rules=[Rule(Fault.DELAY, "put")])
        with pytest.raises(Exception, match="lost on purpose"):
            await store.put("key", Body.of(b"late", metadata=SENT))
        await store.land()

        assert await store.metadata_of("key") == STORED

    asyncio.run(main())


def test_a_request_for_metadata_is_repeated_counted_logged_and_may_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def no_pause(_seconds: float) -> None:
            pass

        faulty = FaultyStore(MemoryStore(), rules=[Rule(Fault.FAIL_BEFORE, "metadata_of", nth=1)])
        metered = MeteredStore(LoggedStore(faulty))
        store = RetryingStore(metered, sleep=no_pause)
        await store.put("key", Body.of(b"", metadata=SENT))

        with caplog.at_level(logging.DEBUG):
            assert await store.metadata_of("key") == STORED

        assert metered.metrics.requests["metadata_of"] == 2
        assert metered.metrics.retries["metadata_of", "try_again"] == 1
        assert "ask for the metadata of key" in caplog.text

    asyncio.run(main())


def test_a_read_only_store_shows_metadata_and_begins_no_upload() -> None:
    async def main() -> None:
        inner = MemoryStore()
        await inner.put("key", Body.of(b"", metadata=SENT))
        store = ReadOnlyStore(inner, lambda: TryAgain("not now"))

        assert await store.metadata_of("key") == STORED
        with pytest.raises(TryAgain):
            await store.start_upload("key", metadata=SENT)

    asyncio.run(main())


def test_a_metadata_service_refuses_metadata_before_it_is_asked() -> None:
    class Service:
        url = "service://records"
        limits = RecordLimits(key_size_bytes_max=1024, value_size_bytes_max=2**20, delete_batch_max=10)

    async def main() -> None:
        store = RecordStore(Service())
        with pytest.raises(Misuse, match="keeps no metadata"):
            await store.put("key", Body.of(b"", metadata=SENT))

        assert await store.metadata_of("key") is None

    asyncio.run(main())
