"""Raw clients that move the same objects, each in a process of its own, so that it can be measured.

    python benchmarks/raw_clients.py CLIENT put|get AT_ONCE < task.json

The task has the `protocol`, the `options` of a place, its `bucket`, and `objects` (a file and a key each).
Nothing is checked except by the client itself, and bytes that are read are dropped. No client signs a payload
by choice: boto3 does so on plain HTTP, and rclone sends an MD5 of each object. The program prints the seconds
and the CPU seconds of the transfer alone: without the start of the interpreter, but with that of curl and
rclone.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stopwatch import Stopwatch

Task = dict[str, Any]
Done = dict[str, float]


def by_boto3(task: Task, verb: str, at_once: int) -> Done:
    """Move the objects in threads, one request for each; a read uses a buffer of 1 MiB."""
    client = _boto3_client(task, at_once)

    def put(item: tuple[str, str]) -> None:
        with Path(item[0]).open("rb") as file:
            client.put_object(Bucket=task["bucket"], Key=item[1], Body=file)

    def get(item: tuple[str, str]) -> None:
        body = client.get_object(Bucket=task["bucket"], Key=item[1])["Body"]
        while body.read(2**20):
            pass

    watch = Stopwatch()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(put if verb == "put" else get, task["objects"]))
    return watch.read()


def _boto3_client(task: Task, at_once: int) -> Any:
    """Return a client with as many connections as threads."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=task["options"]["endpoint_url"],
        region_name=task["options"]["region"],
        aws_access_key_id=task["options"]["key"],
        aws_secret_access_key=task["options"]["secret"],
        config=Config(max_pool_connections=at_once, s3={"addressing_style": "path"}),
    )


def by_obstore(task: Task, verb: str, at_once: int) -> Done:
    """Move the objects by obstore's asynchronous calls, one request for each."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        task["bucket"],
        endpoint=task["options"]["endpoint_url"],
        region=task["options"]["region"],
        access_key_id=task["options"]["key"],
        secret_access_key=task["options"]["secret"],
        virtual_hosted_style_request=False,
        unsigned_payload=True,
        client_options={"allow_http": True},
    )

    async def put(path: str, key: str) -> None:
        data = await asyncio.to_thread(Path(path).read_bytes)
        await obstore.put_async(store, key, data, use_multipart=False)

    async def get(path: str, key: str) -> None:
        async for _ in (await obstore.get_async(store, key)).stream(2**20):
            pass

    async def main() -> Done:
        turns = asyncio.Semaphore(at_once)

        async def one(path: str, key: str) -> None:
            async with turns:
                await (put if verb == "put" else get)(path, key)

        watch = Stopwatch()
        await asyncio.gather(*(one(path, key) for path, key in task["objects"]))
        return watch.read()

    return asyncio.run(main())


def by_curl(task: Task, verb: str, at_once: int) -> Done:
    """Move the objects by one curl process, in parallel, with URLs that are signed before the start."""
    url_of, lines = CURL_URLS[task["protocol"]](task, verb)
    for path, key in task["objects"]:
        lines += [f'url = "{url_of(key)}"']
        lines += [f'upload-file = "{path}"' if verb == "put" else 'output = "/dev/null"']
    with tempfile.NamedTemporaryFile("w", suffix=".curl") as config:
        config.write("\n".join(lines))
        config.flush()
        argv = ["curl", "-sSf", "--parallel", "--parallel-immediate", "--parallel-max", str(at_once)]
        watch = Stopwatch()
        # fake-gcs-server answers a put with the metadata of the object.
        subprocess.run([*argv, "--config", config.name], check=True, stdout=subprocess.DEVNULL)
        return watch.read()


Urls = tuple[Callable[[str], str], list[str]]
"""A function that returns the URL of a key, and lines of a configuration of curl for all of them."""


def _s3_urls(task: Task, verb: str) -> Urls:
    client = _boto3_client(task, 1)

    def url_of(key: str) -> str:
        where = {"Bucket": task["bucket"], "Key": key}
        return str(client.generate_presigned_url(f"{verb}_object", Params=where, ExpiresIn=3600))

    return url_of, []


def _gcs_urls(task: Task, verb: str) -> Urls:
    """Return the URLs of a server without logins."""
    path = f"/storage/v1/b/{task['bucket']}/o"
    endpoint = task["options"]["endpoint_url"]
    if verb == "get":
        return lambda key: f"{endpoint}{path}/{quote(key, safe='')}?alt=media", []
    upload = f"{endpoint}/upload{path}?uploadType=media&name="
    return lambda key: upload + quote(key, safe=""), ["request = POST"]


def _azure_urls(task: Task, verb: str) -> Urls:
    from azure.storage.blob import BlobServiceClient, generate_container_sas

    service = BlobServiceClient.from_connection_string(task["options"]["connection_string"])
    signed = generate_container_sas(
        service.account_name,
        task["bucket"],
        account_key=service.credential.account_key,
        permission="rcw",
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    container = f"{service.url.rstrip('/')}/{task['bucket']}"
    lines = ['header = "x-ms-blob-type: BlockBlob"'] if verb == "put" else []
    return lambda key: f"{container}/{key}?{signed}", lines


CURL_URLS: dict[str, Callable[[Task, str], Urls]] = {
    "s3": _s3_urls,
    "gcs": _gcs_urls,
    "azure": _azure_urls,
}


def by_rclone(task: Task, verb: str, at_once: int) -> Done:
    """Copy the folder of the objects by one rclone, or print them to /dev/null by as many as `at_once`.

    One `rclone cat` fetches one object after another. `rclone copy` would have to write files.
    """
    options, folder = task["options"], task["objects"][0][1].rpartition("/")[0]
    login = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": options["endpoint_url"],
        "REGION": options["region"],
        "ACCESS_KEY_ID": options["key"],
        "SECRET_ACCESS_KEY": options["secret"],
    }
    env = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}  # 1.60 fails with it
    env |= {"RCLONE_CONFIG": "", **{f"RCLONE_CONFIG_RAW_{name}": value for name, value in login.items()}}
    target = f"raw:{task['bucket']}/{folder}"
    flags = ["--no-traverse", "--multi-thread-streams=0", "--ignore-checksum", "--s3-disable-checksum"]
    flags += ["--s3-no-head", "--s3-no-head-object", "--s3-no-check-bucket", "--s3-upload-cutoff=1Gi"]
    with tempfile.TemporaryDirectory() as scratch:
        if verb == "put":
            for path, key in task["objects"]:
                Path(scratch, key.rpartition("/")[2]).symlink_to(path)
            how = ["--copy-links", "--ignore-times", f"--transfers={at_once}"]
            commands = [["rclone", "copy", scratch, target, *flags, *how]]
        else:
            names = [key.rpartition("/")[2] for _, key in task["objects"]]
            lists = [Path(scratch, str(number)) for number in range(min(at_once, len(names)))]
            for number, path in enumerate(lists):
                path.write_text("\n".join(names[number :: len(lists)]))
            commands = [["rclone", "cat", target, *flags, "--files-from", str(path)] for path in lists]
        watch = Stopwatch()
        running = [subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) for argv in commands]
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit("rclone failed")
        return watch.read()


CLIENTS: dict[str, Callable[[Task, str, int], Done]] = {
    "curl": by_curl,
    "boto3": by_boto3,
    "obstore": by_obstore,
    "rclone": by_rclone,
}


if __name__ == "__main__":
    print(json.dumps(CLIENTS[sys.argv[1]](json.load(sys.stdin), sys.argv[2], int(sys.argv[3]))), flush=True)
    os._exit(0)  # obstore's threads may abort an interpreter that ends while they release a stream
