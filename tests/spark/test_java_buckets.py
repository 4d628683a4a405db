"""The Java reader reads buckets by signed requests: the same rows, bounded retries, and no URL in sight.

Most tests drive its task through Py4J, against a server of this module that misbehaves on demand.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from campaign import campaign
from offload_conformance import ledger_of
from offload_spark.java_plans import LONG_MAX
from servers import Place
from servers.places import S3Place
from spark.java_tasks import ALL, by_java, by_python, plan_of, task_by_java, write, write_shapes

from offload import Blocking, MemoryHandle, build_chunk
from offload.model.part import StreamPart
from offload.native.place import TierPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "X-Amz-Signature=0123456789abcdef"
minio = pytest.mark.parametrize("bucket", ["minio"], indirect=True)


def storage(place: Place) -> dict[str, str]:
    return {"storageOptions": json.dumps(place.options)}


@minio
def test_a_bucket_gives_the_rows_of_the_python_source(spark: SparkSession, bucket: Place) -> None:
    """These are the rows of each shape, compressed, and of a stream with two parts."""
    write_shapes(bucket.url, "zstd", storage_options=bucket.options)
    second = StreamPart("simple", 2)
    with Blocking(bucket.url, storage_options=bucket.options) as tier:
        first = tier.load_manifest("simple")
        tier.run(tier.offloader.begin_part(second, before=first))
    more = ledger_of(5, first_offset=first.next_offset)
    write(bucket.url, second.name, [more], storage_options=bucket.options)

    for stream in ("simple", "sub_batches", "codecs", "large"):
        expected = by_python(bucket.url, stream=stream, columns="part,value", **storage(bucket))
        assert {row[0] for row in expected} == ({1, 2} if stream == "simple" else {1})
        found = by_java(spark, bucket.url, stream=stream, columns="part,value", **storage(bucket))
        assert found == expected


RGW = pytest.param("rgw", id="rgw", marks=campaign("rgw: make test asks another s3 server"))
SIGNING = ("minio", RGW, "fake-gcs-server", "azurite")


@pytest.mark.parametrize("bucket", SIGNING, indirect=True)
def test_a_store_that_signs_reads_is_read(spark: SparkSession, bucket: Place) -> None:
    """Below a prefix, in a tier with hashed keys, with names that a URL must quote."""
    url, stream = f"{bucket.url}/a b+ü", "orders of 50%"
    chunk = build_chunk([b"body"] * 3, offset=0, timestamp_ms=1, epoch=1)
    plan = TierPlan(hashed_keys=True)
    write(url, stream, [MemoryHandle([chunk])], storage_options=bucket.options, plan=plan)

    assert [row[-1] for row in by_java(spark, url, **storage(bucket))] == [b"body"] * 3


@minio
def test_a_query_of_a_bucket_shows_no_signed_request(
    spark: SparkSession, bucket: S3Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither `explain` nor an error does, nor a text of the objects that Spark may log."""
    chunk = build_chunk([b"body"] * 100, offset=0, timestamp_ms=1, epoch=1)
    write(bucket.url, "orders", [MemoryHandle([chunk])], storage_options=bucket.options)
    spark.conf.set("spark.offload.reader", "java")
    try:
        frame = spark.read.format("offload").options(**storage(bucket)).load(bucket.url).where("offset >= 98")
        frame = frame.select("offset", "value")
        assert [row.offset for row in frame.collect()] == [98, 99]
        query: Any = frame._jdf.queryExecution()
        shown = query.toString() + query.executedPlan().toString() + query.executedPlan().toJSON()
        assert "the Java reader" in shown
        leaf = query.executedPlan().collectLeaves().head()
        shown += str(leaf.scan()) + str(leaf.batch().planInputPartitions()[0])
        for key in sorted(bucket.keys()):
            if key.endswith(".fragment"):
                bucket.boto.delete_object(Bucket=bucket.name, Key=key)
        with pytest.raises(Exception, match="is gone: it was trimmed or replaced") as failure:
            frame.collect()  # by the same plan
    finally:
        spark.conf.set("spark.offload.reader", "python")
    head, text = plan_of(bucket.url, ALL, **storage(bucket))
    assert "X-Amz-Signature" in text
    jvm: Any = spark.sparkContext._jvm
    shown += jvm.ledgeroffload.spark.TaskPlan.of(text).toString() + head + str(failure.value) + caplog.text
    assert "X-Amz" not in shown


@minio
def test_signed_requests_that_expired_are_an_error_that_names_the_option(
    spark: SparkSession, bucket: Place
) -> None:
    chunk = build_chunk([b"body"], offset=0, timestamp_ms=1, epoch=1)
    write(bucket.url, "orders", [MemoryHandle([chunk])], storage_options=bucket.options)
    _, text = plan_of(bucket.url, ALL, signedSeconds="1", **storage(bucket))
    [part] = json.loads(text)["parts"]

    while time.time() * 1000 <= part["signed"]["until_ms"] + 1000:  # the server counts in whole seconds
        time.sleep(0.05)
    with pytest.raises(Exception, match=r"expired after 1 s \(HTTP 403 AccessDenied\).*signedSeconds"):
        task_by_java(spark, text)


@minio
def test_a_request_that_the_store_refuses_before_it_expires_says_so(
    spark: SparkSession, bucket: Place
) -> None:
    chunk = build_chunk([b"body"], offset=0, timestamp_ms=1, epoch=1)
    write(bucket.url, "orders", [MemoryHandle([chunk])], storage_options=bucket.options)
    _, text = plan_of(bucket.url, ALL, **storage(bucket))

    with pytest.raises(Exception, match=r"refused a signed request: HTTP 403 SignatureDoesNotMatch"):
        task_by_java(spark, text.replace("X-Amz-Signature=", "X-Amz-Signature=00"))


class Object:
    """A server of one fragment. `answer` may write a reply of its own, and return True."""

    def __init__(self, data: bytes) -> None:
        self.data, self.requests = data, list[tuple[int, int]]()
        self.answer: Callable[[BaseHTTPRequestHandler, int, int, int], bool] = lambda *_: False

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:  # noqa: N805 - `self` is the server
                first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
                self.requests.append((first, last + 1))
                if not self.answer(handler, len(self.requests), first, last + 1):
                    self.part(handler, first, last + 1)

            def log_message(handler, *_: Any) -> None:  # noqa: N805 - `self` is the server
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the client hung up
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/key?{SECRET}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def part(
        self,
        handler: BaseHTTPRequestHandler,
        first: int,
        stop: int,
        *,
        status: int = 206,
        said: str | None = None,
        length: int | None = None,
        body: bytes | None = None,
    ) -> bool:
        """Reply with a part, about which the head may lie."""
        data = self.data[first:stop] if body is None else body
        handler.send_response(status)
        handler.send_header("Content-Range", said or f"bytes {first}-{stop - 1}/{len(self.data)}")
        handler.send_header("Content-Length", str(len(data) if length is None else length))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = length is not None and length != len(data)
        return True

    def status(self, handler: BaseHTTPRequestHandler, status: int, **headers: str) -> bool:
        handler.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        return True


class Served:
    """A stream of one fragment or more, and its plan with the URL of a server for each."""

    def __init__(
        self, folder: Path, spark: SparkSession, *, body_size: int = 5000, fragments: int = 1
    ) -> None:
        url = str(folder / "tier")
        chunks = [
            build_chunk([Random(n).randbytes(body_size)] * 4, offset=4 * n, timestamp_ms=n, epoch=1)
            for n in range(20 * fragments)
        ]
        write(url, "orders", [MemoryHandle(chunks[20 * n :][:20]) for n in range(fragments)])
        paths = sorted((folder / "tier").rglob("*.fragment"))
        self.spark, self.expected = spark, by_python(url)
        self.objects = [Object(path.read_bytes()) for path in paths]
        self.object = self.objects[0]
        self.offsets = [(None, row[3]) for row in self.expected]
        """The rows of a read of `key` and `offset`, which fetches and checks all values too."""

        self.text = json.loads(plan_of(url, ALL)[1])
        [part] = self.text["parts"]
        for fragment, each in zip(part["fragments"], self.objects, strict=True):
            fragment["place"] = each.url
        self.signed = part["signed"] = {
            "seconds": 5,
            "until_ms": 2**60,
            "stall_ms": 10_000,
            "patience_ms": 60_000,
        }

    def read(
        self, columns: str = "stream,part,ledger,offset,timestamp,value", *, limit: int = LONG_MAX
    ) -> list[Any]:
        return task_by_java(self.spark, json.dumps(self.text), columns, limit=limit)

    def close(self) -> None:
        for each in self.objects:
            each.close()

    def fails(self, *, patience_ms: int = -1, stall_ms: int = 10_000) -> str:
        """Return the text of the error of a read, in which there is no URL.

        By default nothing is tried again: a patience of 0 ms would permit a pause of 0 ms.
        """
        self.signed.update(patience_ms=patience_ms, stall_ms=stall_ms)
        with pytest.raises(Exception, match="orders") as failure:
            self.read()
        text = str(failure.value) + str(getattr(failure.value, "java_exception", ""))
        assert SECRET not in text
        assert "127.0.0.1" not in text
        return text


@pytest.fixture
def served(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, spark)
    with closing(made):
        yield made


@pytest.fixture
def large(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    """A fragment of 9 MB: more than one window, and more than is fetched whole."""
    made = Served(tmp_path / "large", spark, body_size=120_000)
    with closing(made):
        yield made


@pytest.fixture
def several(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    """Three fragments of 400 kB and 80 rows."""
    made = Served(tmp_path / "several", spark, fragments=3)
    with closing(made):
        yield made


def test_a_small_fragment_is_one_request_and_a_large_one_two(served: Served, large: Served) -> None:
    assert served.read() == served.expected
    assert served.object.requests == [(0, len(served.object.data))]

    assert large.read("key,offset") == large.offsets
    (tail, end), (begin, stop) = large.object.requests
    assert (begin, stop, end) == (16, tail, len(large.object.data))


def test_a_limit_fetches_only_the_chunks_that_hold_so_many_rows(large: Served) -> None:
    assert large.read("key,offset", limit=10) == large.offsets[:12]
    _, (begin, stop) = large.object.requests

    assert begin == 16
    assert 12 * 120_000 < stop < 13 * 120_000


def test_offsets_alone_cost_one_request_for_the_tail(served: Served) -> None:
    assert served.read("offset") == [row[3:4] for row in served.expected]
    [(begin, end)] = served.object.requests
    assert end == len(served.object.data)
    assert end - begin < 2000


def test_a_busy_server_is_asked_again(served: Served) -> None:
    for status in (503, 429, 500, 408):
        served.object.requests.clear()
        served.object.answer = lambda handler, number, *_, status=status: (
            number <= 2 and served.object.status(handler, status)
        )
        assert served.read("key,offset") == served.offsets
        assert len(served.object.requests) == 3


def test_a_busy_server_is_an_error_when_patience_ends(served: Served) -> None:
    served.object.answer = lambda handler, *_: served.object.status(handler, 503)

    assert "cannot be read: HTTP 503 (1 attempt" in served.fails()
    assert len(served.object.requests) == 1


def test_a_pause_longer_than_the_patience_is_not_waited_for(served: Served) -> None:
    served.object.answer = lambda handler, *_: served.object.status(handler, 503, Retry_After="86400")

    assert "HTTP 503" in served.fails(patience_ms=60_000)
    assert len(served.object.requests) == 1


def test_a_broken_reply_costs_only_what_did_not_arrive(large: Served) -> None:
    """The connection ends in the middle of the chunks. The next request begins behind what arrived."""

    def answer(handler: BaseHTTPRequestHandler, number: int, first: int, stop: int) -> bool:
        cut = large.object.data[first : first + 3_000_000]
        return number == 2 and large.object.part(handler, first, stop, body=cut, length=stop - first)

    large.object.answer = answer
    assert large.read("key,offset") == large.offsets
    _, (begin, stop), (again, end) = large.object.requests
    assert stop == end
    assert begin + 2_000_000 < again <= begin + 3_000_000


def test_a_reply_about_other_bytes_is_never_used(served: Served) -> None:
    server, size = served.object, len(served.object.data)
    lies: list[dict[str, Any]] = [
        {"said": f"bytes 1-{size}/*"},
        {"said": f"bytes 1-{size - 1}/{size}"},
        {"said": f"bytes 0-{size - 2}/{size}"},
        {"said": "bytes none"},
        {"said": f"bytes */{size}"},
        {"length": size - 1, "body": server.data[:-1]},
        {"length": size + 1, "body": server.data + b"m"},
        {"status": 200, "said": "", "length": size, "body": server.data[:-1]},
    ]
    for lie in lies:
        server.requests.clear()
        server.answer = lambda handler, number, first, stop, lie=lie: (
            number == 1 and server.part(handler, first, stop, **lie)
        )
        assert served.read("key,offset") == served.offsets, lie
        assert len(server.requests) == 2, lie
    server.answer = lambda handler, _, first, stop: server.part(handler, first, stop, **lies[6])
    assert f"and got {size + 1} bytes of 0-{size - 1}" in served.fails()


def test_a_server_that_ignores_ranges_is_read(large: Served) -> None:
    """As by the Python client: the bytes before the wanted ones are dropped."""
    server = large.object
    server.answer = lambda handler, *_: server.part(handler, 0, len(server.data), status=200)

    assert large.read("key,offset") == large.offsets


@pytest.mark.parametrize("status", [206, 200])
def test_another_size_is_damage(served: Served, status: int) -> None:
    server, size = served.object, len(served.object.data)
    server.data += b"more"
    if status == 200:
        server.answer = lambda handler, *_: server.part(handler, 0, size + 4, status=200)

    assert f"at byte 0: object size: expected {size}, found {size + 4}" in served.fails()


def test_an_object_that_is_shorter_is_damage(served: Served) -> None:
    served.object.answer = lambda handler, *_: served.object.status(handler, 416, Content_Range="bytes */7")

    assert "object size: expected" in (text := served.fails())
    assert "found 7" in text


def test_a_redirect_is_not_followed(served: Served) -> None:
    served.object.answer = lambda handler, *_: served.object.status(
        handler, 307, Location=served.object.url.replace("key", "other")
    )

    assert "HTTP 307, a redirect, which is not followed" in served.fails(patience_ms=60_000)
    assert len(served.object.requests) == 1


def test_a_fragment_that_is_gone_says_to_load_the_frame_again(served: Served) -> None:
    served.object.answer = lambda handler, *_: served.object.status(handler, 404)

    said = served.fails(patience_ms=60_000)
    assert "trimmed or replaced since the read was planned, or it was lost. A frame keeps its plan" in said


@pytest.fixture
def tiny(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "tiny", spark, body_size=10)
    with closing(made):
        yield made


def test_a_server_that_sends_a_byte_now_and_then_is_an_error(tiny: Served) -> None:
    """No stall ends it, unless this machine is very busy, and the limit of the whole step does."""
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, _: int, first: int, stop: int) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {first}-{stop - 1}/{len(tiny.object.data)}")
        handler.send_header("Content-Length", str(stop - first))
        handler.end_headers()
        while not ended.wait(0.02):
            handler.wfile.write(b"x")
        return True

    tiny.object.answer = answer
    try:
        text = tiny.fails(stall_ms=300)
        assert "the reply is too slow" in text or "no byte for 300 ms" in text
    finally:
        ended.set()


def test_a_server_that_stops_in_a_reply_is_an_error(served: Served) -> None:
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler, _: int, first: int, stop: int) -> bool:
        served.object.part(handler, first, stop, body=b"x", length=stop - first)
        handler.wfile.flush()
        return ended.wait(60)

    served.object.answer = answer
    try:
        assert "no byte for 1000 ms" in served.fails(stall_ms=1000)
    finally:
        ended.set()


def test_damage_of_the_transfer_is_read_a_second_time(served: Served) -> None:
    """One wrong byte in the first reply: of a chunk, and of the tail."""
    server = served.object
    for at in (1000, len(server.data) - 100):
        wrong = bytearray(server.data)
        wrong[at] ^= 1
        server.requests.clear()
        server.answer = lambda handler, number, first, stop, wrong=wrong: (
            number == 1 and server.part(handler, first, stop, body=bytes(wrong))
        )
        assert served.read() == served.expected
        assert len(server.requests) == 2


HEAD = "HTTP/1.1 206 Partial Content\r\n"
ECHOES = (
    ("HTTP/1.1 {url}\r\n\r\n", "ProtocolException"),
    ("GET {target} HTTP/1.1\r\n\r\n", "ProtocolException"),
    ("HTTP/1.1 {secret}\r\n\r\n", "ProtocolException"),
    (HEAD + "{secret}: x\r\n\r\n", "ProtocolException"),
    (HEAD + "X: a\0{url}\r\n\r\n", "ProtocolException"),
    (HEAD + "Content-Length: {url}\r\n\r\n", "NumberFormatException"),
    (HEAD + "Content-Length: {secret}\r\n\r\n", "NumberFormatException"),
    ("{url}", "IOException"),
    ("{secret}", "IOException"),
    ("", "IOException: HTTP/1.1 header parser received no bytes"),
)
"""Replies that the client cannot read, and what may be said of its error. It quotes all but the last one."""


def test_an_error_in_which_the_client_quotes_a_reply_is_repeated_without_its_text(served: Served) -> None:
    """A server or a proxy may echo the request, and so the signature."""
    url, target = served.object.url, f"/key?{SECRET}"
    for echo, said in ECHOES:
        raw = echo.format(url=url, target=target, secret=SECRET).encode()

        def answer(handler: BaseHTTPRequestHandler, *_: int, raw: bytes = raw) -> bool:
            handler.close_connection = True
            return handler.wfile.write(raw) >= 0

        served.object.answer = answer
        assert f"cannot be read: {said} (1 attempt" in served.fails(), raw


def test_an_error_of_a_body_that_quotes_the_request_is_repeated_without_its_text(spark: SparkSession) -> None:
    """The client of Java 17 quotes nothing in such an error, so it is planted."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    reply_class = jvm.java.lang.Class.forName("ledgeroffload.spark.HttpReply", True, loader)
    [made] = reply_class.getDeclaredConstructors()
    [read] = [each for each in reply_class.getDeclaredMethods() if each.getName() == "read"]
    for accessible in (made, read):
        accessible.setAccessible(True)
    reply = made.newInstance(None)
    reply.onError(jvm.java.io.IOException(f"http://127.0.0.1/key?{SECRET}"))

    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 4)
    arguments[1], arguments[2], arguments[3] = 0, jvm.java.lang.Long(1), jvm.java.lang.Long(1000)
    with pytest.raises(Exception, match=r"java\.io\.IOException: IOException\n") as failure:
        read.invoke(reply, arguments)
    assert SECRET not in str(failure.value)


def test_the_next_fragment_is_asked_for_while_one_is_read_and_no_further_one(several: Served) -> None:
    first, second, third = several.objects
    asked, found = threading.Event(), list[tuple[bool, int]]()

    def answer_second(*_: object) -> bool:
        asked.set()
        return False

    def answer_first(*_: object) -> bool:
        found.append((asked.wait(60), len(third.requests)))
        return False

    first.answer, second.answer = answer_first, answer_second
    assert several.read() == several.expected
    assert found == [(True, 0)]
    assert [len(each.requests) for each in several.objects] == [1, 1, 1]


def test_a_fragment_is_not_asked_for_ahead_if_a_limit_ends_before_it(several: Served) -> None:
    assert several.read("key,offset", limit=10) == several.offsets[:12]
    assert [len(each.requests) for each in several.objects] == [1, 0, 0]

    assert several.read("key,offset", limit=81) == several.offsets[:84]
    assert [len(each.requests) for each in several.objects] == [2, 1, 0]


def test_a_request_ahead_that_fails_is_sent_again(several: Served) -> None:
    second = several.objects[1]

    def cut(handler: BaseHTTPRequestHandler, number: int, first: int, stop: int) -> bool:
        return number == 1 and second.part(handler, first, stop, body=b"some", length=stop - first)

    def refuse(handler: BaseHTTPRequestHandler, number: int, *_: int) -> bool:
        return number == 1 and second.status(handler, 503)

    for answer in (cut, refuse):
        second.requests.clear()
        second.answer = answer
        assert several.read("key,offset") == several.offsets
        assert len(second.requests) == 2


def test_a_reply_ahead_is_bounded_and_ends_with_its_task(several: Served) -> None:
    """The server of the second fragment sends for as long as anybody takes something."""
    second, sent, ended = several.objects[1], list[int](), threading.Event()

    def answer(handler: BaseHTTPRequestHandler, _: int, first: int, stop: int) -> bool:
        try:
            second.part(handler, first, stop, length=2**40)
            while True:
                sent.append(handler.wfile.write(bytes(2**16)))
        except OSError:
            ended.set()
        return True

    second.answer = answer
    jvm: Any = several.spark.sparkContext._jvm
    package = jvm.ledgeroffload.spark
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("offset bigint, value binary")
    task = package.PartReader(
        package.TaskPlan.of(json.dumps(several.text)), schema, jvm.java.lang.Long(LONG_MAX)
    )
    assert task.next()
    task.close()

    assert ended.wait(60)
    assert sum(sent) < 2**25
