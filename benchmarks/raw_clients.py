"""Raw S3 clients that move the same objects, each in a process of its own, so that it can be measured.

    python benchmarks/raw_clients.py CLIENT put|get AT_ONCE < job.json

The job has `endpoint`, `bucket`, `key`, `secret` and `objects` (a file and a key each). Nothing is checked
except by the client itself, and bytes that are read are dropped. The program prints the seconds and the CPU
seconds of the transfer alone, without the start of the interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stopwatch import Stopwatch

Job = dict[str, Any]
REGION = "us-east-1"


def boto3_client(job: Job, at_once: int) -> Any:
    """Return a client with as many connections as threads."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=job["endpoint"],
        region_name=REGION,
        aws_access_key_id=job["key"],
        aws_secret_access_key=job["secret"],
        config=Config(max_pool_connections=at_once, s3={"addressing_style": "path"}),
    )


def by_boto3(job: Job, verb: str, at_once: int) -> str:
    """Move the objects in threads, one request for each; a read uses a buffer of 1 MiB."""
    client = boto3_client(job, at_once)

    def put(item: tuple[str, str]) -> None:
        with Path(item[0]).open("rb") as file:
            client.put_object(Bucket=job["bucket"], Key=item[1], Body=file)

    def get(item: tuple[str, str]) -> None:
        body = client.get_object(Bucket=job["bucket"], Key=item[1])["Body"]
        while body.read(2**20):
            pass

    watch = Stopwatch()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(put if verb == "put" else get, job["objects"]))
    return watch.read()


def by_obstore(job: Job, verb: str, at_once: int) -> str:
    """Move the objects by obstore's asynchronous calls, one request for each."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        job["bucket"],
        endpoint=job["endpoint"],
        region=REGION,
        access_key_id=job["key"],
        secret_access_key=job["secret"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    async def put(path: str, key: str) -> None:
        data = await asyncio.to_thread(Path(path).read_bytes)
        await obstore.put_async(store, key, data, use_multipart=False)

    async def get(path: str, key: str) -> None:
        async for _ in (await obstore.get_async(store, key)).stream(2**20):
            pass

    async def main() -> str:
        turns = asyncio.Semaphore(at_once)

        async def one(path: str, key: str) -> None:
            async with turns:
                await (put if verb == "put" else get)(path, key)

        watch = Stopwatch()
        await asyncio.gather(*(one(path, key) for path, key in job["objects"]))
        return watch.read()

    return asyncio.run(main())


def by_curl(job: Job, verb: str, at_once: int) -> str:
    """Move the objects by one curl process, in parallel, with URLs that are signed before the start."""
    client = boto3_client(job, 1)
    lines = []
    for path, key in job["objects"]:
        where = {"Bucket": job["bucket"], "Key": key}
        url = client.generate_presigned_url(f"{verb}_object", Params=where, ExpiresIn=3600)
        how = f'upload-file = "{path}"' if verb == "put" else 'output = "/dev/null"'
        lines.append(f'url = "{url}"\n{how}')
    with tempfile.NamedTemporaryFile("w", suffix=".curl") as config:
        config.write("\n".join(lines))
        config.flush()
        argv = ["curl", "-sSf", "--parallel", "--parallel-immediate", "--parallel-max", str(at_once)]
        watch = Stopwatch()
        subprocess.run([*argv, "--config", config.name], check=True)
        return watch.read()


CLIENTS: dict[str, Callable[[Job, str, int], str]] = {
    "boto3": by_boto3,
    "obstore": by_obstore,
    "curl": by_curl,
}


if __name__ == "__main__":
    print(CLIENTS[sys.argv[1]](json.load(sys.stdin), sys.argv[2], int(sys.argv[3])), flush=True)
    os._exit(0)  # obstore's threads may abort an interpreter that ends while they release a stream
