"""The options of the GCS backend, with the names that Google's tools and gcsfs give them.

Credentials that are not given are found as Google's tools find them: the application default credentials,
which are a file that the environment names, a login of gcloud, or the account of the machine. A wrong value
raises `Misuse` with the option's name. Invariant: credentials never cross a network unencrypted (`http://`),
except on loopback.
"""

from __future__ import annotations

import os
import re
from os.path import isfile
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import urlsplit

from offload_cloud.options import Endpoint, Pairs, Proxy, StoreOptions, Verify
from pydantic import AfterValidator, Field, SecretStr, model_validator

from offload.ground.outside import json_outside

MODES: Final = frozenset({"google_default", "cloud", "cache", "anon"})
"""The ways to find credentials that gcsfs knows by name, except those that ask a person."""

EMULATOR: Final = "STORAGE_EMULATOR_HOST"
"""The variable that names an emulator, with or without a scheme, to Google's clients, gcsfs and us."""

_KMS_KEY: Final = r"^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
METADATA_SIZE_BYTES_MAX: Final = 8192
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise ValueError("a name holds only letters, digits, dots, dashes and underscores")
        if not value.isprintable():
            raise ValueError("a value holds only printable characters")
    size_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if size_bytes > METADATA_SIZE_BYTES_MAX:
        raise ValueError(f"names and values are {size_bytes} bytes; GCS takes {METADATA_SIZE_BYTES_MAX}")
    return metadata


def _token(token: SecretStr) -> SecretStr:
    """Refuse a value that would be sent as a token by mistake: the path of a missing file, broken JSON."""
    said = token.get_secret_value()
    if said.lstrip().startswith("{"):
        try:
            json_outside(said)
        except ValueError:
            raise ValueError("begins like the JSON of a key, but is not valid JSON") from None
    elif said not in MODES and ("/" in said or said.endswith(".json")) and not isfile(said):
        raise ValueError("looks like the path of a key file, but there is no such file")
    elif said in {"browser", "token", ""}:
        raise ValueError(f"use a key file, its JSON, an access token, or one of {', '.join(sorted(MODES))}")
    return token


class GcsOptions(StoreOptions):
    """The options of the GCS backend, as text from the command line or as values from Python."""

    backend: ClassVar = "gcs"

    endpoint_url: Endpoint | None = None
    """The URL of a server other than Google's: an emulator, or an endpoint in a private network."""

    project: str | None = None
    """The project that the credentials must belong to. Others are refused."""

    anonymous: bool = False
    """Send no credentials: for public buckets and emulators."""

    token: Annotated[SecretStr, AfterValidator(_token)] | None = None
    """A key file, its JSON, an access token, or the name of a way to find credentials (`MODES`)."""

    user_project: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.:-]+$")
    """The project that pays for requests, if the bucket asks for one."""

    kms_key_name: str | None = Field(default=None, pattern=_KMS_KEY)
    """The customer-managed key of every object, commits too."""

    storage_class: str | None = Field(default=None, pattern=r"^[A-Z_]+$")
    """The storage class of fragments. Manifests and anchors stay in the bucket's own class."""

    metadata: Annotated[Pairs, AfterValidator(_metadata)] = {}
    """Metadata of fragments, for people who inspect the bucket."""

    verify: Verify = True
    proxy: Proxy | None = None
    connect_timeout_seconds: float = Field(default=10.0, gt=0)
    read_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long no byte may move, in either direction, before an attempt is cancelled."""

    connections_max: int = Field(default=32, ge=1, le=1024)

    @property
    def endpoint(self) -> str:
        """The server: that of the options, else the emulator of the environment, else Google's service."""
        given = self.endpoint_url or _emulator()
        universe = os.environ.get("GOOGLE_CLOUD_UNIVERSE_DOMAIN") or "googleapis.com"
        return given.rstrip("/") if given else f"https://storage.{universe}"

    @property
    def is_anonymous(self) -> bool:
        """True if requests carry no credentials, as by default to an emulator of the environment."""
        if self.anonymous or (self.token is not None and self.token.get_secret_value() == "anon"):
            return True
        return self.token is None and self.endpoint_url is None and _emulator() is not None

    @property
    def is_google(self) -> bool:
        """True for the service itself, whose promises are known."""
        return self.endpoint_url is None and _emulator() is None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.anonymous and self.token is not None:
            raise ValueError("option 'anonymous' sends no credentials: remove 'token'")
        address = urlsplit(self.endpoint)
        if address.scheme == "http" and not self.is_anonymous and address.hostname not in LOOPBACK:
            raise ValueError(
                "credentials would cross the network unencrypted: use https:// in option 'endpoint_url', or "
                "anonymous=true for an emulator"
            )
        return self


def _emulator() -> str | None:
    said = os.environ.get(EMULATOR, "")
    if said in {"", "default"}:
        return None
    return said if said.startswith(("http://", "https://")) else f"http://{said}"
