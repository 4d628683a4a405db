"""A tier on a server of each cloud service, which the environment leads to."""

from __future__ import annotations

import os

import pytest
from servers import Place
from servers.places import S3Place


def environment_of(place: Place) -> dict[str, str]:
    """Return the variables by which the service's own tools find the place."""
    options = place.options
    match place.scheme:
        case "s3":
            return {
                "AWS_ACCESS_KEY_ID": options["key"],
                "AWS_SECRET_ACCESS_KEY": options["secret"],
                "AWS_DEFAULT_REGION": options["region"],
                "AWS_ENDPOINT_URL_S3": options["endpoint_url"],
            }
        case "gs":
            return {"STORAGE_EMULATOR_HOST": options["endpoint_url"]}
        case _:
            return {"AZURE_STORAGE_CONNECTION_STRING": options["connection_string"]}


class CloudTier:
    """A prefix in a new bucket or container, and another client that inspects it."""

    def __init__(self, place: Place, patch: pytest.MonkeyPatch) -> None:
        """Lead the environment to `place`."""
        self.place, self.url = place, f"{place.url}/some/tier"
        for name in [name for name in os.environ if name.startswith("AZURE_")]:
            patch.delenv(name)
        for name, value in environment_of(place).items():
            patch.setenv(name, value)

    def objects(self) -> dict[str, str | bytes]:
        """Return what changes if an object is written again, by key. Only S3 can tell that of equal bytes."""
        if isinstance(self.place, S3Place):
            pages = self.place.boto.get_paginator("list_objects_v2").paginate(Bucket=self.place.name)
            rows = [row for page in pages for row in page.get("Contents", ())]
            return {row["Key"]: f"{row['ETag']} {row['LastModified']}" for row in rows}
        return {key: self.place.get(key) for key in sorted(self.place.keys())}
