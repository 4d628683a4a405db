"""Tests of the proxy: each fault does on the wire what it promises, and nothing else changes."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from servers.proxy import Fault, Plan, Proxy, Request, Rule, delayed, proxied

LARGE = random.Random(0).randbytes(3_000_000)

HANGS_SECONDS = 60
"""A limit that no test here reaches, even on a busy machine. It ends a test that would hang."""


class _Handler(BaseHTTPRequestHandler):
    """A handler that stores bodies of puts, and records its requests."""

    protocol_version = "HTTP/1.1"
    server: Tiny

    def do_PUT(self) -> None:
        body = self._body()
        if body is None:
            self.server.asked.append(f"cut {self.command} {self.path}")
            self.close_connection = True
            return
        self._note()
        if self.headers["If-None-Match"] == "*" and self.path in self.server.objects:
            self._answer(412)
            return
        self.server.objects[self.path] = body
        self._answer(200)

    def do_POST(self) -> None:
        self._body()
        self._note()
        port = self.server.server_address[1]
        self._answer(200, b"", ("Location", f"http://127.0.0.1:{port}/session?id=1"))

    def do_GET(self) -> None:
        self._note()
        body = self.server.objects.get(self.path.partition("?")[0])
        if body is None:
            self._answer(404, b"no such thing")
        elif self.path.endswith("?chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(body), 1000):
                piece = body[start : start + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path.endswith("?close"):
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        else:
            self._answer(200, body)

    do_HEAD = do_GET  # noqa: N815 - the name is the base class' own

    def log_message(self, *args: Any) -> None:
        pass

    def _note(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.heads.append(dict(self.headers))

    def _body(self) -> bytes | None:
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size_bytes := int(self.rfile.readline(), 16):
                body += self.rfile.read(size_bytes)
                self.rfile.readline()
            self.rfile.readline()
            return body
        size_bytes = int(self.headers["Content-Length"] or 0)
        try:
            body = self.rfile.read(size_bytes)
        except ConnectionResetError:
            return None
        return body if len(body) == size_bytes else None

    def _answer(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Tiny(ThreadingHTTPServer):
    """A server of these tests, which records requests independently of the proxy."""

    daemon_threads = True
    request_queue_size = 64  # 5 by default: a busy machine drops connections of twenty clients

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@pytest.fixture
def tiny() -> Iterator[Tiny]:
    with Tiny() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def proxy(tiny: Tiny, plan: Plan) -> Iterator[Proxy]:
    with proxied(tiny.url, plan) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection("127.0.0.1", _port(proxy.url), timeout=HANGS_SECONDS)) as client:
        yield client


def _port(url: str) -> int:
    port = urllib.parse.urlsplit(url).port
    assert port is not None
    return port


def _ask(client: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> Any:
    client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return client.getresponse()


def _status(client: http.client.HTTPConnection, *request: Any, **headers: str) -> int:
    reply = _ask(client, *request, **headers)
    reply.read()
    status: int = reply.status
    return status


def _raw(proxy: Proxy, request: bytes) -> bytes:
    """Return everything that comes back on a new connection until it ends. Raises if it is reset."""
    with socket.create_connection(("127.0.0.1", _port(proxy.url)), HANGS_SECONDS) as connection:
        connection.sendall(request)
        received = b""
        while data := connection.recv(65536):
            received += data
        return received


def _wait_until(condition: Any) -> None:
    deadline = time.monotonic() + HANGS_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Without faults.


def test_bodies_of_every_framing_pass_unchanged(client: http.client.HTTPConnection, tiny: Tiny) -> None:
    assert _ask(client, "PUT", "/a", LARGE).read() == b""
    assert _ask(client, "PUT", "/b", iter([LARGE[:7], LARGE[7:]])).read() == b""
    assert tiny.objects == {"/a": LARGE, "/b": LARGE}

    assert _ask(client, "GET", "/a").read() == LARGE
    assert _ask(client, "GET", "/a?chunked").read() == LARGE
    assert _status(client, "GET", "/missing") == 404


def test_a_body_that_ends_with_the_connection_passes(client: http.client.HTTPConnection, tiny: Tiny) -> None:
    tiny.objects["/a"] = LARGE

    assert _ask(client, "GET", "/a?close").read() == LARGE


def test_a_reply_to_head_has_no_body_and_the_connection_stays_open(
    client: http.client.HTTPConnection, tiny: Tiny
) -> None:
    tiny.objects["/a"] = b"0123456789"

    head = _ask(client, "HEAD", "/a")
    head.read()

    assert head.getheader("Content-Length") == "10"
    assert _ask(client, "GET", "/a").read() == b"0123456789"


def test_a_clients_connection_is_one_connection_to_the_server(
    client: http.client.HTTPConnection, tiny: Tiny, proxy: Proxy
) -> None:
    for number in range(10):
        _ask(client, "PUT", f"/{number}", b"x").read()

    assert tiny.connections == 1
    assert proxy.counts["requests"] == 10


def test_host_and_every_other_header_arrive_as_sent(
    client: http.client.HTTPConnection, tiny: Tiny, proxy: Proxy
) -> None:
    _ask(client, "PUT", "/a", b"x", Authorization="signed", X_Odd="  spaces kept  ").read()

    [head] = tiny.heads
    assert head["Host"] == proxy.url.removeprefix("http://")
    assert head["Authorization"] == "signed"


def test_a_client_that_expects_100_continue_gets_it_from_the_server(proxy: Proxy, tiny: Tiny) -> None:
    with socket.create_connection(("127.0.0.1", _port(proxy.url)), HANGS_SECONDS) as connection:
        connection.sendall(b"PUT /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        assert b" 200 " in connection.recv(1000)

    assert tiny.objects == {"/a": b"hello"}


def test_two_pipelined_requests_both_reach_the_server(proxy: Proxy, tiny: Tiny) -> None:
    put = b"PUT /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n%s\r\n%s"

    replies = _raw(proxy, put % (b"a", b"", b"1") + put % (b"b", b"Connection: close\r\n", b"2"))

    assert replies.count(b"HTTP/1.1 200 ") == 2
    assert tiny.objects == {"/a": b"1", "/b": b"2"}


def test_a_location_on_the_server_leads_to_the_proxy(
    client: http.client.HTTPConnection, proxy: Proxy
) -> None:
    assert _ask(client, "POST", "/start", b"").getheader("Location") == f"{proxy.url}/session?id=1"


def test_a_client_that_dies_in_its_body_is_a_cut_request_to_the_server(proxy: Proxy, tiny: Tiny) -> None:
    with socket.create_connection(("127.0.0.1", _port(proxy.url)), HANGS_SECONDS) as connection:
        connection.sendall(b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")

    _wait_until(lambda: tiny.asked)
    assert tiny.asked == ["cut PUT /a"]


def test_many_clients_at_once_are_served(proxy: Proxy, tiny: Tiny) -> None:
    def put(number: int) -> None:
        with closing(
            http.client.HTTPConnection("127.0.0.1", _port(proxy.url), timeout=HANGS_SECONDS)
        ) as client:
            for turn in range(10):
                _ask(client, "PUT", f"/{number}/{turn}", LARGE[:100_000]).read()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(put, range(20)))

    assert len(tiny.objects) == proxy.counts["requests"] == 200
    assert set(tiny.objects.values()) == {LARGE[:100_000]}


# Each fault.


def _rule(plan: Plan, fault: Fault, method: str = "*", **options: Any) -> None:
    plan.rules = [Rule(fault, method, nth=1, **options)]


def test_cut_after_stores_and_says_nothing(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    _rule(plan, Fault.CUT_AFTER)

    with pytest.raises(http.client.RemoteDisconnected):
        _ask(client, "PUT", "/a", LARGE)

    assert tiny.objects == {"/a": LARGE}
    assert proxy.counts["cut_after"] == 1


def test_error_after_stores_and_says_500(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    _rule(plan, Fault.ERROR_AFTER)

    reply = _ask(client, "PUT", "/a", LARGE)

    assert reply.status == 500
    assert b"InternalError" in reply.read()
    assert tiny.objects == {"/a": LARGE}
    assert _ask(client, "GET", "/a").read() == LARGE  # on the same connection
    assert tiny.connections == 1
    assert proxy.counts["error_after"] == 1


@pytest.mark.parametrize("seconds", [0, 1])
def test_refuse_says_503_and_the_server_gets_no_request(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy, seconds: int
) -> None:
    _rule(plan, Fault.REFUSE)
    plan.seed, plan.retry_after_seconds_max = (0, 0) if seconds == 0 else (_seed_of_one(), 1)

    reply = _ask(client, "PUT", "/a", LARGE)

    assert (reply.status, reply.getheader("Retry-After")) == (503, str(seconds))
    assert b"SlowDown" in reply.read()
    assert not tiny.asked
    assert _ask(client, "PUT", "/a", b"x").status == 200
    assert proxy.counts["refuse"] == 1


@pytest.mark.parametrize(("fault", "said"), [(Fault.PAGE, b"Please log in"), (Fault.EMPTY, b"")])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "HEAD"])
def test_a_page_has_status_200_and_the_server_gets_no_request(
    client: http.client.HTTPConnection,
    tiny: Tiny,
    plan: Plan,
    proxy: Proxy,
    fault: Fault,
    said: bytes,
    method: str,
) -> None:
    _rule(plan, fault)

    reply = _ask(client, method, "/a", b"x")

    assert reply.status == 200
    assert (b"" if method == "HEAD" else said) in reply.read()
    assert not tiny.asked
    assert _ask(client, "PUT", "/a", b"x").status == 200  # on the same connection
    assert proxy.counts[fault.name.lower()] == 1


def _seed_of_one() -> int:
    request = Request(b"PUT /a HTTP/1.1\r\n\r\n")
    return next(seed for seed in range(100) if Plan(seed=seed).draw(request).randint(0, 1) == 1)


def test_a_client_that_expects_100_continue_is_refused_at_once(proxy: Proxy, plan: Plan, tiny: Tiny) -> None:
    _rule(plan, Fault.REFUSE)

    reply = _raw(proxy, b"PUT /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 503 ")
    assert not tiny.asked


@pytest.mark.parametrize(
    ("headers", "path", "said"),
    [
        ({}, "/bucket/key", b"<Code>SlowDown</Code>"),
        ({"x-ms-version": "2025-01-05"}, "/account/box/key", b"<Code>ServerBusy</Code>"),
        ({}, "/upload/storage/v1/b/bucket/o?name=key", b'{"error": {"code": 503'),
    ],
)
def test_a_refusal_has_the_format_of_the_protocol(
    client: http.client.HTTPConnection, plan: Plan, headers: dict[str, str], path: str, said: bytes
) -> None:
    _rule(plan, Fault.REFUSE)

    assert said in _ask(client, "PUT", path, b"x", **headers).read()


def test_reset_in_the_middle_of_a_body_stores_nothing(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    _rule(plan, Fault.RESET)

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        _ask(client, "PUT", "/a", LARGE)

    _wait_until(lambda: tiny.asked)
    assert tiny.asked == ["cut PUT /a"]
    assert not tiny.objects
    assert proxy.counts["reset"] == 1


def test_a_reset_request_without_body_does_not_reach_the_server(proxy: Proxy, plan: Plan, tiny: Tiny) -> None:
    _rule(plan, Fault.RESET)

    with pytest.raises(ConnectionResetError):
        _raw(proxy, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")

    assert not tiny.asked


def test_late_lands_after_the_client_was_cut_off(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    _rule(plan, Fault.LATE)

    with pytest.raises(http.client.RemoteDisconnected):
        _ask(client, "PUT", "/a", LARGE)
    assert not tiny.asked
    assert _ask(client, "GET", "/a").status == 404
    proxy.settle()

    assert tiny.objects == {"/a": LARGE}
    assert proxy.counts["late"] == 1


@pytest.mark.parametrize("path", ["/a", "/a?chunked"])
def test_truncate_ends_within_the_body_and_announces_the_true_length(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy, path: str
) -> None:
    tiny.objects["/a"] = LARGE
    _rule(plan, Fault.TRUNCATE)

    reply = _ask(client, "GET", path)

    assert path != "/a" or reply.getheader("Content-Length") == str(len(LARGE))
    with pytest.raises(http.client.IncompleteRead) as cut:
        reply.read()
    assert 0.4 < len(cut.value.partial) / len(LARGE) < 0.6
    assert proxy.counts["truncate"] == 1


def test_trickle_is_slow_and_whole(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    tiny.objects["/a"] = LARGE
    _rule(plan, Fault.TRICKLE)
    plan.pause_seconds = 0.02

    began = time.monotonic()
    body = _ask(client, "GET", "/a").read()

    assert body == LARGE
    assert time.monotonic() - began > 0.1
    assert proxy.counts["trickle"] == 1
    assert _ask(client, "GET", "/a").read() == LARGE


def test_a_fault_without_a_matching_request_is_not_counted(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    tiny.objects["/a"] = b""
    _rule(plan, Fault.TRUNCATE)

    assert _ask(client, "GET", "/a").read() == b""

    assert proxy.counts["truncate"] == 0


def test_ignore_precondition_takes_the_header_away(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    tiny.objects["/a"] = b"old"
    _rule(plan, Fault.IGNORE_PRECONDITION)

    assert _status(client, "PUT", "/a", b"new", If_None_Match="*") == 200
    assert _status(client, "PUT", "/a", b"newer", If_None_Match="*") == 412

    assert "If-None-Match" not in tiny.heads[0]
    assert tiny.objects == {"/a": b"new"}
    assert (proxy.counts["creates"], proxy.counts["ignore_precondition"]) == (2, 1)


@pytest.mark.parametrize(
    ("target", "left"),
    [
        ("/o?ifGenerationMatch=0", "/o"),
        ("/o?ifGenerationMatch=0&name=k", "/o?name=k"),
        ("/o?name=k&ifGenerationMatch=0&x=1", "/o?name=k&x=1"),
        ("/o?name=k&ifGenerationMatch=0", "/o?name=k"),
    ],
)
def test_ignore_precondition_takes_the_parameter_away(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, target: str, left: str
) -> None:
    _rule(plan, Fault.IGNORE_PRECONDITION)

    _ask(client, "POST", target, b"x").read()

    assert tiny.asked == [f"POST {left}"]


def test_a_request_other_than_a_create_keeps_its_parameters(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    _rule(plan, Fault.IGNORE_PRECONDITION)

    _ask(client, "POST", "/o?ifGenerationMatch=01", b"x").read()

    assert tiny.asked == ["POST /o?ifGenerationMatch=01"]
    assert proxy.counts["creates"] == 0


# Plans.


def test_a_rule_picks_by_method_target_and_number(client: http.client.HTTPConnection, plan: Plan) -> None:
    plan.rules = [Rule(Fault.REFUSE, "PUT", "*/root.*", nth=2), Rule(Fault.REFUSE, "GET", creates=True)]

    said = [_status(client, "PUT", path, b"x") for path in ("/b/root.1", "/b/other", "/b%2Froot.2")]

    assert said == [200, 200, 503]


def test_the_same_seed_and_requests_have_the_same_faults_in_any_order() -> None:
    requests = [Request(b"PUT /%d/%d HTTP/1.1\r\n\r\n" % (i % 7, i % 13)) for i in range(300)]
    chances = dict.fromkeys(Fault, 0.1)

    def decided(order: list[Request], seed: int) -> list[tuple[str, Fault | None]]:
        plan = Plan(chances=chances, seed=seed)
        return sorted(((r.target, plan.decide(r)) for r in order), key=str)

    shuffled = random.Random(1).sample(requests, len(requests))
    assert decided(requests, 5) == decided(shuffled, 5) != decided(requests, 6)


def test_a_forgotten_name_does_not_change_the_random_choice() -> None:
    def decided(bucket: str) -> list[Fault | None]:
        plan = Plan(chances=dict.fromkeys(Fault, 0.1), forget=[bucket])
        return [plan.decide(Request(f"PUT /{bucket}/{i} HTTP/1.1\r\n\r\n".encode())) for i in range(50)]

    assert decided("one") == decided("another")


def test_chances_are_met_and_creates_have_separate_ones() -> None:
    plan = Plan(chances={Fault.REFUSE: 0.2}, create_chances={Fault.CUT_AFTER: 0.5})
    plain = [plan.decide(Request(b"PUT /%d HTTP/1.1\r\n\r\n" % i)) for i in range(2000)]
    creates = [plan.decide(Request(b"PUT /%d HTTP/1.1\r\nIf-None-Match: *\r\n\r\n" % i)) for i in range(2000)]

    assert 340 < plain.count(Fault.REFUSE) < 460
    assert plain.count(Fault.CUT_AFTER) == creates.count(Fault.REFUSE) == 0
    assert 900 < creates.count(Fault.CUT_AFTER) < 1100


def test_delays_of_simultaneous_requests_do_not_add_up(tiny: Tiny) -> None:
    def seconds(url: str) -> float:
        began = time.monotonic()
        with urllib.request.urlopen(f"{url}/a", timeout=HANGS_SECONDS) as reply:
            assert reply.read() == b"x"
        return time.monotonic() - began

    tiny.objects["/a"] = b"x"
    with delayed(tiny.url, delay_ms=400) as url, ThreadPoolExecutor(50) as pool:
        began = time.monotonic()
        each = list(pool.map(seconds, [url] * 50))

    assert min(each) >= 0.4
    assert time.monotonic() - began < 15  # of 20 that they would take one after the other


# Faults that last for some time.


def test_a_stalling_server_sends_a_part_and_keeps_the_connection(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, proxy: Proxy
) -> None:
    tiny.objects["/a"] = LARGE
    plan.rules = [Rule(Fault.STALL, "GET", nth=1)]
    plan.stall_after_bytes = 1000

    reply = _ask(client, "GET", "/a")
    assert reply.read(1000) == LARGE[:1000]
    assert client.sock is not None
    client.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        reply.read(1)

    client.close()
    assert _ask(client, "GET", "/a").read() == LARGE
    assert proxy.counts["stall"] == 1


@pytest.mark.parametrize("fault", [Fault.DEAF, Fault.STALL])
def test_a_server_that_stalls_at_once_sends_nothing(
    client: http.client.HTTPConnection, tiny: Tiny, plan: Plan, fault: Fault
) -> None:
    """A deaf server has not even read the request."""
    plan.rules = [Rule(fault)]
    client.timeout = 0.2

    with pytest.raises(TimeoutError):
        _ask(client, "PUT", "/a", b"body")

    if fault is Fault.STALL:
        _wait_until(lambda: tiny.asked)  # which may read it after its client has given up
    assert tiny.asked == ([] if fault is Fault.DEAF else ["PUT /a"])


def test_a_deaf_server_leaves_a_large_body_unread(proxy: Proxy, plan: Plan) -> None:
    plan.rules = [Rule(Fault.DEAF)]
    with socket.create_connection(("127.0.0.1", _port(proxy.url)), 0.2) as connection:
        connection.sendall(b"PUT /a HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(100 * 2**20))


def test_a_rule_with_seconds_ends(
    client: http.client.HTTPConnection, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("servers.proxy_plan.time.monotonic", lambda: now[0])
    plan.rules = [Rule(Fault.REFUSE, seconds=30)]
    plan.retry_after_seconds_min = plan.retry_after_seconds_max = 7

    refused = _ask(client, "GET", "/a")
    refused.read()
    now[0] += 29
    statuses = [_status(client, "GET", "/a")]
    now[0] += 2
    statuses.append(_status(client, "GET", "/a"))

    assert (refused.status, refused.headers["Retry-After"]) == (503, "7")
    assert statuses == [503, 404]


def test_a_refusal_may_omit_retry_after(client: http.client.HTTPConnection, plan: Plan) -> None:
    plan.rules = [Rule(Fault.REFUSE)]
    plan.retry_after_seconds_max = None

    assert "Retry-After" not in _ask(client, "GET", "/a").headers


def test_an_absent_server_refuses_connections_until_it_is_back(
    client: http.client.HTTPConnection, proxy: Proxy
) -> None:
    assert _status(client, "GET", "/a") == 404

    proxy.leave()
    with pytest.raises(http.client.RemoteDisconnected):  # the connection that existed before
        _ask(client, "GET", "/a")
    client.close()
    with pytest.raises(ConnectionRefusedError):
        _ask(client, "GET", "/a")
    client.close()
    proxy.come_back()

    assert _status(client, "GET", "/a") == 404


def test_flip_changes_one_bit_of_the_body(client: http.client.HTTPConnection, tiny: Tiny, plan: Plan) -> None:
    tiny.objects["/a"] = bytes(101)
    plan.rules = [Rule(Fault.FLIP, nth=1)]

    assert _ask(client, "GET", "/a").read() == bytes(50) + b"\x01" + bytes(50)
    assert _ask(client, "GET", "/a").read() == bytes(101)
