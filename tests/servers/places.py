"""New buckets and containers for tests, which other clients than the backend's own can inspect."""

from __future__ import annotations

import functools
import json
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from typing import Any, Final
from uuid import uuid4

REGION: Final = "us-east-1"
ACCESS_KEY: Final = "tier-access-key"
SECRET_KEY: Final = "tier-secret-key"
"""The only S3 user of every server that has users; moto accepts any."""

AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The development account of every Azurite; Azurite's documentation publishes its key."""

TIMEOUT_SECONDS: Final = 30


class Place(ABC):
    """A new, empty bucket or container on a running server.

    `url` and `options` lead the backend there. The methods share no code with the backend, so they also
    find a mistake that its reads and writes have in common.
    """

    scheme: str
    options: dict[str, str]

    def __init__(self) -> None:
        self.name = f"tier-{uuid4()}"

    @property
    def url(self) -> str:
        """Return the tier argument for the command line."""
        return f"{self.scheme}://{self.name}"

    @abstractmethod
    def keys(self) -> set[str]:
        """Return the names of all objects."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the bytes of an object. Raises the client's own error if there is none."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""


class S3Place(Place):
    """A place that boto3 inspects."""

    scheme = "s3"

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.options = {
            "endpoint_url": endpoint,
            "region": REGION,
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
        }
        self.boto = _boto(endpoint)
        self.boto.create_bucket(Bucket=self.name)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which an SDK finds the server, for a process that is given the URL alone."""
        return {
            "AWS_ENDPOINT_URL_S3": self.options["endpoint_url"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }

    def keys(self) -> set[str]:
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {row["Key"] for page in pages for row in page.get("Contents", ())}

    def get(self, key: str) -> bytes:
        data: bytes = self.boto.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def put(self, key: str, data: bytes) -> None:
        self.boto.put_object(Bucket=self.name, Key=key, Body=data)


class GcsPlace(Place):
    """A place that the JSON API over urllib inspects."""

    scheme = "gs"

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.options = {"endpoint_url": endpoint, "anonymous": "true", "project": "test"}
        self._objects = f"/storage/v1/b/{self.name}/o"
        bucket = json.dumps({"name": self.name}).encode()
        self._ask("POST", "/storage/v1/b?project=test", bucket, "application/json")

    def keys(self) -> set[str]:
        found: set[str] = set()
        page = {"nextPageToken": ""}
        while "nextPageToken" in page:
            page = json.loads(self._ask("GET", f"{self._objects}?pageToken={_quoted(page['nextPageToken'])}"))
            found |= {row["name"] for row in page.get("items", ())}
        return found

    def get(self, key: str) -> bytes:
        return self._ask("GET", f"{self._objects}/{_quoted(key)}?alt=media")

    def put(self, key: str, data: bytes) -> None:
        where = f"/upload{self._objects}?uploadType=media&name={_quoted(key)}"
        self._ask("POST", where, data, "application/octet-stream")

    def _ask(self, method: str, path: str, data: bytes | None = None, content_type: str = "") -> bytes:
        request = urllib.request.Request(
            self.options["endpoint_url"] + path,
            data=data,
            headers={"Content-Type": content_type} if content_type else {},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            body: bytes = reply.read()
        return body


class AzurePlace(Place):
    """A place that the synchronous client of Azure's SDK inspects."""

    scheme = "az"

    def __init__(self, endpoint: str) -> None:
        from azure.storage.blob import ContainerClient

        super().__init__()
        self.options = {
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};"
            f"AccountKey={AZURE_KEY};BlobEndpoint={endpoint}/{AZURE_ACCOUNT};"
        }
        self._client = ContainerClient.from_connection_string(self.options["connection_string"], self.name)
        self._client.create_container()

    def keys(self) -> set[str]:
        return set(self._client.list_blob_names())

    def get(self, key: str) -> bytes:
        data: bytes = self._client.download_blob(key).readall()
        return data

    def put(self, key: str, data: bytes) -> None:
        self._client.upload_blob(key, data, overwrite=True)


PLACES: Final[dict[str, type[S3Place | GcsPlace | AzurePlace]]] = {
    "s3": S3Place,
    "gcs": GcsPlace,
    "azure": AzurePlace,
}


@functools.cache
def _boto(endpoint: str) -> Any:
    """Return one client for all places of a server, because making one takes longer than its requests."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            connect_timeout=TIMEOUT_SECONDS,
            read_timeout=TIMEOUT_SECONDS,
            retries={"total_max_attempts": 2},  # a server that hangs is noticed within seconds
            s3={"addressing_style": "path"},
        ),
    )


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
