"""Tests of large objects: one resumable upload, which every failure cancels."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate, served
from cloud.gcs import GCS, TOKEN, said
from offload_gcs import GcsOptions, GcsStore
from offload_gcs.reading import written
from servers import Running, servers_of
from wire import Answer, Heard, Wire, wire

from offload import Body, Misuse, OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.formats.checksums import crc32c

KIB = 1024
CHUNK = 256 * KIB
DATA = b"".join(b"%08d" % n for n in range(100 * KIB))  # three chunks and a bit
SECRET_SESSION = "/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=HUSH"


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_gcs.store.PUT_SIZE_BYTES_MAX", 0)
    monkeypatch.setattr("offload_gcs.upload.CHUNK_SIZE_BYTES", CHUNK)


class Session:
    """The service's side of one resumable upload. `keeps` returns how much of a chunk it keeps."""

    def __init__(self, *, keeps: Callable[[int], int] = lambda size: size) -> None:
        self.keeps = keeps
        self.held = b""
        self.described: dict[str, Any] = {}
        self.complete = self.cancelled = False
        self.fail_at: int | None = None
        self.failure = Answer(503)
        self.elsewhere = ""

    def __call__(self, heard: Heard) -> Answer:
        match heard.method:
            case "POST":
                self.described = json.loads(heard.body)
                where = self.elsewhere or f"http://{heard.headers['host']}"
                return Answer(headers={"Location": where + SECRET_SESSION})
            case "DELETE":
                self.cancelled = True
                return Answer(499)
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", heard.headers["content-range"])
        assert found is not None
        start, end, total = (int(number) for number in found.groups())
        assert (start, end + 1) == (len(self.held), len(self.held) + len(heard.body))
        assert end + 1 == total or len(heard.body) % (256 * KIB) == 0
        if start == self.fail_at:
            return self.failure
        self.held += heard.body[: self.keeps(len(heard.body))]
        if len(self.held) == total:
            self.complete = True
            return said()
        kept = {"Range": f"bytes=0-{len(self.held) - 1}"} if self.held else {}
        return Answer(308, headers=kept)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def gcs(session: Session) -> Iterator[Wire]:
    with wire(session) as server:
        yield server


def put(url: str, body: Body, **options: Any) -> None:
    GCS.of_store(url, lambda store: store.put("a/key", body), **options)


def error_of(url: str, body: Body) -> OffloadError:
    return GCS.error_of(url, lambda store: store.put("a/key", body))


def body_of(data: bytes, window_size: int = 100_000) -> Body:
    async def windows() -> AsyncIterator[bytes]:
        for start in range(0, len(data), window_size):
            yield data[start : start + window_size]

    return Body(size_bytes=len(data), windows=windows)


def body_that_changes(*readings: bytes, size_bytes: int) -> Body:
    """Return a body that breaks its promise: each reading yields other bytes."""
    left = iter(readings)

    async def windows() -> AsyncIterator[bytes]:
        yield next(left)

    return Body(size_bytes=size_bytes, windows=windows)


def test_a_large_object_is_sent_chunk_by_chunk(gcs: Wire, session: Session) -> None:
    put(gcs.url, body_of(DATA))

    assert session.complete
    assert not session.cancelled
    assert session.held == DATA
    assert [heard.method for heard in gcs.heard] == ["POST", "PUT", "PUT", "PUT", "PUT"]
    assert {heard.connection for heard in gcs.heard} == {1}
    assert [len(heard.body) for heard in gcs.of("PUT")] == [CHUNK] * 3 + [len(DATA) - 3 * CHUNK]


def test_size_and_checksum_are_sent_before_the_first_byte(gcs: Wire, session: Session) -> None:
    """The service then refuses wrong bytes in any chunk."""
    put(gcs.url, body_of(DATA))

    begun = gcs.heard[0]
    assert begun.query == {"uploadType": ["resumable"]}
    assert begun.headers["x-upload-content-length"] == str(len(DATA))
    assert session.described == {
        "name": "a/key",
        "crc32c": written(crc32c(DATA)),
        "cacheControl": "no-store",
    }


def test_an_upload_has_the_options_of_fragments(gcs: Wire, session: Session) -> None:
    key = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"
    put(
        gcs.url,
        body_of(DATA),
        storage_class="COLDLINE",
        metadata="a=b",
        kms_key_name=key,
        user_project="payer",
    )

    assert gcs.heard[0].query["kmsKeyName"] == [key]
    assert gcs.heard[0].query["userProject"] == ["payer"]
    assert session.described["storageClass"] == "COLDLINE"
    assert session.described["metadata"] == {"a": "b"}


def test_bytes_that_the_service_did_not_keep_are_sent_again() -> None:
    """It keeps multiples of 256 KiB and reports how much it has. Here each chunk needs two requests."""
    session = Session(keeps=lambda size: min(size, CHUNK))
    with pytest.MonkeyPatch.context() as patch, wire(session) as server:
        patch.setattr("offload_gcs.upload.CHUNK_SIZE_BYTES", 2 * CHUNK)
        put(server.url, body_of(DATA))

    assert session.complete
    assert session.held == DATA


def test_an_upload_without_progress_is_cancelled() -> None:
    session = Session(keeps=lambda size: 0)
    with wire(session) as server:
        error = error_of(server.url, body_of(DATA))

    assert type(error) is OutcomeUnknown
    assert session.cancelled
    assert len(server.of("PUT")) == 1


def test_an_upload_that_never_completes_has_an_unknown_outcome(session: Session) -> None:
    def never_done(heard: Heard) -> Answer:
        answer = session(heard)
        return Answer(308, headers={"Range": f"bytes=0-{len(DATA) - 1}"}) if session.complete else answer

    with wire(never_done) as server:
        error = error_of(server.url, body_of(DATA))

    assert type(error) is OutcomeUnknown
    assert server.heard[-1].method == "DELETE"


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (Answer(503), OutcomeUnknown),
        (Answer(503, headers={"Retry-After": "3"}), Throttled),
        (Answer(drop=True), OutcomeUnknown),
        (Answer(400, b'{"error": {"message": "Provided CRC32C does not match"}}'), TryAgain),
    ],
)
@pytest.mark.parametrize("fail_at", [0, CHUNK, 3 * CHUNK])
def test_a_failure_cancels_the_session_and_sends_nothing_again(
    gcs: Wire, session: Session, fail_at: int, failure: Answer, raised: type[OffloadError]
) -> None:
    """Also a chunk whose connection drops is sent once."""
    session.fail_at, session.failure = fail_at, failure

    error = error_of(gcs.url, body_of(DATA))

    assert type(error) is raised
    assert session.cancelled
    assert not session.complete
    assert len(gcs.of("PUT")) == fail_at // CHUNK + 1
    assert len(gcs.of("DELETE")) == 1


def test_a_failed_cancel_hides_no_error(gcs: Wire, session: Session) -> None:
    def broken(heard: Heard) -> Answer:
        return Answer(drop=True) if heard.method in ("PUT", "DELETE") else session(heard)

    with wire(broken) as server:
        error = error_of(server.url, body_of(DATA))

    assert "store 'a/key'" in str(error)
    assert [heard.method for heard in server.heard] == ["POST", "PUT", "DELETE"]


def test_a_cancelled_put_cancels_its_session(gcs: Wire, session: Session) -> None:
    async def main() -> None:
        waiting = asyncio.Event()
        readings = 0

        async def windows() -> AsyncIterator[bytes]:
            nonlocal readings
            readings += 1
            yield DATA[:CHUNK]
            if readings == 2:
                waiting.set()
                await asyncio.sleep(60)
            yield DATA[CHUNK:]

        options = GcsOptions.of({"endpoint_url": gcs.url, "anonymous": True})
        store = GcsStore(bucket="bucket", options=options)
        putting = asyncio.create_task(store.put("key", Body(size_bytes=len(DATA), windows=windows)))
        await waiting.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        await store.aclose()

    asyncio.run(main())

    assert session.cancelled
    assert not session.complete


def test_a_body_of_another_size_is_refused_before_the_first_request(gcs: Wire) -> None:
    for announced in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(Misuse):
            put(gcs.url, Body(size_bytes=announced, windows=body_of(DATA).windows))

    assert gcs.heard == []


@pytest.mark.parametrize("second", [DATA[:-1], DATA + b"!"])
def test_a_body_that_changes_is_never_complete(gcs: Wire, session: Session, second: bytes) -> None:
    with pytest.raises(OffloadError):
        put(gcs.url, body_that_changes(DATA, second, size_bytes=len(DATA)))

    assert session.cancelled
    assert not session.complete


def test_a_session_on_another_server_gets_no_credentials(gcs: Wire, session: Session, tmp_path: Path) -> None:
    """The session's address suffices as a key. The credentials are for the endpoint alone."""
    made = certificate(tmp_path)
    with wire(session, tls=served(made)) as other:
        session.elsewhere = other.url
        put(gcs.url, body_of(DATA), verify=str(made.path))

    assert session.complete
    assert len(gcs.heard) == 1
    assert not any("authorization" in heard.headers for heard in other.heard)


def test_a_session_on_another_server_without_tls_is_refused(gcs: Wire, session: Session) -> None:
    with wire(session) as other:
        session.elsewhere = other.url
        error = error_of(gcs.url, body_of(DATA))

    assert "names no upload session" in str(error)
    assert other.heard == []


def test_a_session_whose_address_cannot_be_sent_is_refused(gcs: Wire, session: Session) -> None:
    """An error of the transport might repeat it, and the address alone lets its reader write."""
    session.elsewhere = f"{gcs.url}/a b"

    error = error_of(gcs.url, body_of(DATA))

    assert "names no upload session" in str(error)
    assert len(gcs.heard) == 1


def test_every_chunk_carries_the_credentials(gcs: Wire) -> None:
    put(gcs.url, body_of(DATA))

    assert {heard.headers["authorization"] for heard in gcs.heard} == {f"Bearer {TOKEN}"}


def test_memory_does_not_grow_with_the_object(gcs: Wire, session: Session) -> None:
    """The object has 32 chunks, and only a few are in memory at a time."""
    window = bytes(CHUNK)

    async def windows() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield window

    session.keeps = lambda size: size
    accept = session.__call__

    def forget(heard: Heard) -> Answer:
        if heard.method != "PUT":
            return accept(heard)
        _, end, total = (int(n) for n in re.findall(r"\d+", heard.headers["content-range"]))
        gcs.heard.clear()
        return said() if end + 1 == total else Answer(308, headers={"Range": f"bytes=0-{end}"})

    gcs.answer = forget
    tracemalloc.start()
    put(gcs.url, Body(size_bytes=32 * CHUNK, windows=windows))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 12 * CHUNK, "the server of this test holds some of them too"


@pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)
def test_a_large_object_is_read_back_unchanged(running_server: Running) -> None:
    place = running_server.place()

    async def main() -> None:
        store = GcsStore(bucket=place.name, options=GcsOptions.of(place.options))
        try:
            await store.put("a/large one", body_of(DATA))
            assert await store.get("a/large one") == DATA
        finally:
            await store.aclose()

    asyncio.run(main())

    assert place.get("a/large one") == DATA
    assert place.keys() == {"a/large one"}
