"""Candidates for a transport of bytes, each in a process of its own: get, ranged get, put and part.

    python benchmarks/transport_clients.py CANDIDATE JOB < task.json

A candidate moves the pieces of a task (`Piece`). Those that block run in as many threads as pieces are
in flight. A thread owns one buffer and receives every piece into it, unless the candidate's name says that
it makes new memory (`bytes`). Requests are signed by botocore with UNSIGNED-PAYLOAD, unless the candidate
signs by itself. The program prints the seconds, the CPU seconds and the peak memory of the transfer alone,
without imports and without opening a client. Every candidate counts the bytes of each piece, and fails if one
is missing.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import transport_pycurl
from transport_task import METER, MIB, REGION, Move, Piece, Task, all_at_once, in_threads

SLICE_SIZE_BYTES: Final = 64 * 1024


def _check(status: int) -> None:
    if status not in {200, 206}:
        raise SystemExit(f"HTTP {status}")


def _fill(buffer: memoryview, receive: Callable[[memoryview], int]) -> int:
    filled = 0
    while filled < len(buffer) and (count := receive(buffer[filled:])):
        filled += count
    return filled


def _connection(task: Task) -> http.client.HTTPConnection:
    host = urlsplit(task.endpoint).netloc
    if task.context:
        return http.client.HTTPSConnection(host, timeout=30, context=task.context)
    return http.client.HTTPConnection(host, timeout=30)


def _send(connection: Any, task: Task, piece: Piece, data: memoryview) -> None:
    """Send a request, its body slice by slice: `sendall` has one timeout for all of its bytes."""
    connection.putrequest(
        "GET" if task.is_read else "PUT", task.target(piece), skip_host=False, skip_accept_encoding=True
    )
    for name, value in task.headers(piece).items():
        connection.putheader(name, value)
    connection.endheaders()
    if not task.is_read:
        sent = 0
        while sent < len(data):
            sent += connection.sock.send(data[sent:])


def by_http_client(task: Task) -> None:
    """Move by `http.client` in threads, and receive by its `readinto`."""

    def mover() -> Move:
        connection = _connection(task)
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def move(piece: Piece, buffer: memoryview) -> int:
            _send(connection, task, piece, buffer)
            with connection.getresponse() as reply:
                _check(reply.status)
                if not task.is_read:
                    return piece.size_bytes + len(reply.read())
                return _fill(buffer, reply.readinto)

        return move

    in_threads(task, mover)


def by_urllib3(task: Task, *, how: str) -> None:
    """Move by a pool of urllib3, and receive by `readinto`, `read(n)`, or the response beneath it."""
    import urllib3

    pools = urllib3.PoolManager(
        maxsize=task.at_once, block=True, retries=False, ca_certs=task.authority or None, timeout=30
    )

    def mover() -> Move:
        def move(piece: Piece, buffer: memoryview) -> int:
            method, headers = ("GET" if task.is_read else "PUT"), task.headers(piece)
            body = None if task.is_read else _slices(buffer)
            reply = pools.request(
                method, task.endpoint + task.target(piece), headers=headers, body=body, preload_content=False
            )
            _check(reply.status)
            if not task.is_read:
                moved = piece.size_bytes + len(reply.read())
            elif how == "read":
                moved = len(reply.read(piece.size_bytes))
            elif how == "readinto":
                moved = _fill(buffer, lambda rest: reply.readinto(rest[:SLICE_SIZE_BYTES]))
            else:  # no public name leads to the reply of http.client beneath
                moved = _fill(buffer, reply._original_response.readinto)
            reply.release_conn()
            return moved

        return move

    in_threads(task, mover)


def _slices(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), SLICE_SIZE_BYTES):
        yield data[start : start + SLICE_SIZE_BYTES]


def by_httpcore(task: Task) -> None:
    """Move by httpcore's synchronous pool. It yields `bytes` of at most 64 KiB, which are copied."""
    import httpcore

    pool = httpcore.ConnectionPool(ssl_context=task.context, max_connections=task.at_once)

    def mover() -> Move:
        def move(piece: Piece, buffer: memoryview) -> int:
            method = "GET" if task.is_read else "PUT"
            body = None if task.is_read else map(bytes, _slices(buffer))  # as its types ask
            headers, filled = {"Host": urlsplit(task.endpoint).netloc, **task.headers(piece)}, 0
            url = task.endpoint + task.target(piece)
            with pool.stream(method, url, headers=headers, content=body) as reply:
                _check(reply.status)
                for chunk in reply.iter_stream():
                    buffer[filled : filled + len(chunk)] = chunk
                    filled += len(chunk)
            return filled if task.is_read else piece.size_bytes

        return move

    in_threads(task, mover)


def by_boto3(task: Task, *, how: str) -> None:
    """Move by boto3 in threads: with its defaults, or unsigned and without a checksum."""
    import boto3
    from botocore.config import Config

    plain = {"addressing_style": "path"}
    if how == "unsigned":
        chosen = Config(
            max_pool_connections=task.at_once,
            s3=plain | {"payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
    else:
        chosen = Config(max_pool_connections=task.at_once, s3=plain)
    client = boto3.client(
        "s3",
        endpoint_url=task.endpoint,
        region_name=REGION,
        aws_access_key_id=task.key,
        aws_secret_access_key=task.secret,
        verify=task.authority or None,
        config=chosen,
    )

    def mover() -> Move:
        def move(piece: Piece, buffer: memoryview) -> int:
            where = {"Bucket": task.bucket, "Key": piece.key}
            if task.is_read:
                end = piece.start + piece.size_bytes - 1
                ranged = {} if piece.is_whole else {"Range": f"bytes={piece.start}-{end}"}
                body = client.get_object(**where, **ranged)["Body"]
                if how != "pieces":
                    return len(body.read())
                return sum(map(len, iter(lambda: body.read(MIB), b"")))
            if piece.upload_id:
                part = {"UploadId": piece.upload_id, "PartNumber": piece.number}
                client.upload_part(**where, **part, Body=task.data)
            else:
                client.put_object(**where, Body=task.data)
            return piece.size_bytes

        return move

    in_threads(task, mover)


def by_obstore(task: Task, *, how: str) -> None:
    """Move by obstore's asynchronous calls."""
    import obstore
    from obstore.store import S3Store

    extra: dict[str, Any] = {"unsigned_payload": True} if how != "signed" else {}
    if how == "crc64nvme":
        extra["checksum_algorithm"] = "crc64nvme"
    limits: dict[str, Any] = {"allow_http": True}
    if task.authority:  # it refuses a server whose certificate is its own authority
        limits["allow_invalid_certificates"] = True
    store = S3Store(
        task.bucket,
        endpoint=task.endpoint,
        region=REGION,
        access_key_id=task.key,
        secret_access_key=task.secret,
        virtual_hosted_style_request=False,
        client_options=limits,
        **extra,
    )

    async def move(piece: Piece) -> int:
        if not task.is_read:
            await obstore.put_async(store, piece.key, task.data, use_multipart=False)
            return piece.size_bytes
        if piece.is_whole:
            return len(await (await obstore.get_async(store, piece.key)).bytes_async())
        return len(
            await obstore.get_range_async(store, piece.key, start=piece.start, length=piece.size_bytes)
        )

    asyncio.run(all_at_once(task, move))


def by_offload(task: Task) -> None:
    """Move by this project's store."""
    from offload_s3 import S3Options
    from offload_s3.store import S3Store

    from offload import Body, Span

    login = {"endpoint_url": task.endpoint, "region": REGION, "key": task.key, "secret": task.secret}
    verify = {"verify": task.authority} if task.authority else {}
    store = S3Store(bucket=task.bucket, options=S3Options.of(login | verify))

    async def move(piece: Piece) -> int:
        if task.job == "part":
            from offload_s3.upload import S3Upload

            where = {"Bucket": task.bucket, "Key": piece.key, "UploadId": piece.upload_id}
            await S3Upload(store, piece.key, where, keyed={}).put_part(piece.number, task.data)  # type: ignore[arg-type]
            return piece.size_bytes
        if not task.is_read:
            await store.put(piece.key, Body.of(task.data))
            return piece.size_bytes
        span = None if piece.is_whole else Span(piece.start, piece.size_bytes)
        return len(await store.get(piece.key, span))

    async def main() -> None:
        try:
            await store.get("object/0", Span(0, 1))  # opens the client
            await all_at_once(task, move)
        finally:
            await store.aclose()

    asyncio.run(main())


@contextmanager
def curl_of(task: Task) -> Iterator[list[str]]:
    """Yield the command of one curl process for all pieces, with URLs that are signed before the start."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=task.endpoint,
        region_name=REGION,
        aws_access_key_id=task.key,
        aws_secret_access_key=task.secret,
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
    )
    calls = {"put": "put_object", "part": "upload_part"}
    with tempfile.TemporaryDirectory() as folder:
        data, lines = Path(folder) / "data", []
        data.write_bytes(b"" if task.is_read else task.data)
        for piece in task.pieces:
            where: dict[str, Any] = {"Bucket": task.bucket, "Key": piece.key}
            if piece.upload_id:
                where |= {"UploadId": piece.upload_id, "PartNumber": piece.number}
            url = client.generate_presigned_url(calls.get(task.job, "get_object"), Params=where)
            line = [f'url = "{url}"', "http1.1", "fail", "silent", "show-error", 'output = "/dev/null"']
            line += [f'cacert = "{task.authority}"'] if task.authority else []
            line += [] if task.is_read else [f'upload-file = "{data}"', 'header = "Expect:"']
            if not piece.is_whole and task.is_read:
                line.append(f'range = "{piece.start}-{piece.start + piece.size_bytes - 1}"')
            lines.append("\n".join(line))
        config = Path(folder) / "config"
        config.write_text("\nnext\n".join(lines))
        parallel = (
            "--no-progress-meter",
            "--parallel",
            "--parallel-immediate",
            "--parallel-max",
            str(task.at_once),
        )
        yield ["curl", *parallel, "--config", str(config)]


CANDIDATES: Final[dict[str, Callable[[Task], None]]] = {
    "boto3": lambda task: by_boto3(task, how="default"),
    "boto3, 1 MiB pieces": lambda task: by_boto3(task, how="pieces"),
    "boto3, unsigned": lambda task: by_boto3(task, how="unsigned"),
    "obstore, signed": lambda task: by_obstore(task, how="signed"),
    "obstore, unsigned": lambda task: by_obstore(task, how="unsigned"),
    "obstore, crc64nvme": lambda task: by_obstore(task, how="crc64nvme"),
    "http.client readinto": by_http_client,
    "urllib3 readinto": lambda task: by_urllib3(task, how="readinto"),
    "urllib3 read, bytes": lambda task: by_urllib3(task, how="read"),
    "urllib3 beneath": lambda task: by_urllib3(task, how="beneath"),
    "httpcore": by_httpcore,
    "pycurl, threads": transport_pycurl.in_own_threads,
    "pycurl, loop": transport_pycurl.on_the_loop,
    "pycurl, loop beside": transport_pycurl.beside_the_loop,
    "offload": by_offload,
}


def _measured(task: Task, candidate: str) -> dict[str, float]:
    if candidate != "curl":
        _ = task.is_read or task.data
        CANDIDATES[candidate](task)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"seconds": METER.seconds, "cpu_seconds": METER.cpu_seconds, "peak_mib": peak}
    with curl_of(task) as argv:
        METER.start()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        METER.stop()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": METER.seconds, "cpu_seconds": cpu, "peak_mib": used.ru_maxrss / 1024}


def main() -> None:
    """Run one candidate, and print what it took."""
    said = json.load(sys.stdin)
    task = Task(**said | {"pieces": [Piece(**piece) for piece in said["pieces"]]})
    print(json.dumps(_measured(task, sys.argv[1])), flush=True)
    os._exit(0)  # obstore's threads may abort an interpreter that ends while they release a stream


if __name__ == "__main__":
    main()
