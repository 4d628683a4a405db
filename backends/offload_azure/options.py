"""The options of the Azure backend, with the names that adlfs and Azure's own tools give them.

Options that are not given are found as adlfs finds them (`account`). A wrong value, and two values that
contradict each other, raise `Misuse` with the option's name.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, ClassVar, Final, Literal, Self

from offload_cloud.options import Endpoint, Pairs, Proxy, StoreOptions, Verify
from pydantic import AfterValidator, Field, SecretStr, model_validator

TAGS_MAX: Final = 10
METADATA_SIZE_BYTES_MAX: Final = 8 * 2**10
PART_SIZE_BYTES_MAX: Final = 4000 * 2**20
CPK_SIZE_BYTES: Final = 32
WAYS: Final = ("connection_string", "account_key", "sas_token", "client_secret", "anonymous")
"""The ways to authenticate. At most one of them may be given, and it overrides the environment."""

_TAG: Final = re.compile(r"[A-Za-z0-9 +\-./:=_]*")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _base64(secret: SecretStr) -> SecretStr:
    _decoded(secret)
    return secret


def _cpk(secret: SecretStr) -> SecretStr:
    if len(_decoded(secret)) != CPK_SIZE_BYTES:
        raise ValueError("a key is 32 bytes in base64: `openssl rand -base64 32` makes one")
    return secret


def _decoded(secret: SecretStr) -> bytes:
    try:
        return base64.b64decode(secret.get_secret_value(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a key is written in base64; is this one complete?") from None


def _sas(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if "sig=" not in text or "://" in text:
        raise ValueError("a token looks like sv=...&sig=..., without the URL before it")
    return secret


def _host(host: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]+)?", host):
        raise ValueError("a host is a name without https:// and without a path")
    return host


def _tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > TAGS_MAX:
        raise ValueError(f"a blob has at most {TAGS_MAX} tags, these are {len(tags)}")
    for name, value in tags.items():
        if not (1 <= len(name) <= 128 and len(value) <= 256):
            raise ValueError("a tag's name has 1 to 128 characters, and its value at most 256")
        if not (_TAG.fullmatch(name) and _TAG.fullmatch(value)):
            raise ValueError("a tag holds only letters, digits, spaces and + - . / : = _")
    return tags


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise ValueError("a name holds only letters, digits and underscores, and begins with no digit")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ValueError("a value is printable ASCII, with no space around it")
    size_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    if size_bytes > METADATA_SIZE_BYTES_MAX:
        raise ValueError(f"names and values are {size_bytes} bytes; Azure takes {METADATA_SIZE_BYTES_MAX}")
    return metadata


class AzureOptions(StoreOptions):
    """The options of the Azure backend, as text from the command line or as values from Python."""

    backend: ClassVar = "azure"

    account_name: str | None = Field(default=None, pattern=r"^[a-z0-9]{3,24}$")
    account_key: Annotated[SecretStr, AfterValidator(_base64)] | None = None
    sas_token: Annotated[SecretStr, AfterValidator(_sas)] | None = None
    connection_string: SecretStr | None = None
    tenant_id: str | None = None
    client_id: str | None = None
    """The id of a service principal, with `client_secret`; alone, of a user-assigned managed identity."""

    client_secret: SecretStr | None = None
    anonymous: bool = False
    """Send no credentials: for reading public containers."""

    account_host: Annotated[str, AfterValidator(_host)] | None = None
    """A host other than `<account_name>.blob.core.windows.net`: another cloud, a private name."""

    endpoint_url: Endpoint | None = None
    """The whole URL of another server, such as an emulator."""

    api_version: str | None = Field(default=None, pattern=r"^\d{4}-\d\d-\d\d$")
    """The version of the protocol to speak, for a server that is older than the client."""

    hierarchical_namespace: bool = False
    """True: the account has one. It lists in another order, so listings are gathered and sorted here."""

    verify: Verify = True
    proxy: Proxy | None = None
    connect_timeout_seconds: float = Field(default=10.0, gt=0)
    read_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long no byte may move, in either direction, before an attempt is cancelled."""

    connections_max: int = Field(default=32, ge=1, le=1024)
    encryption_scope: str | None = Field(default=None, min_length=3, max_length=63)
    """The account's name of a customer-managed key, which encrypts every object."""

    cpk_key: Annotated[SecretStr, AfterValidator(_cpk)] | None = None
    """The caller's own key, 32 bytes in base64. Every read needs it again."""

    access_tier: Literal["Hot", "Cool", "Cold"] | None = None
    """The access tier of fragments. Archive is not allowed: archived objects cannot be read."""

    tags: Annotated[Pairs, AfterValidator(_tags)] = {}
    """Tags of fragments, for lifecycle rules and searches."""

    metadata: Annotated[Pairs, AfterValidator(_metadata)] = {}
    """Metadata of fragments, for people who inspect the container."""

    part_size_bytes: int = Field(default=16 * 2**20, ge=2**20, le=PART_SIZE_BYTES_MAX)

    @property
    def way(self) -> str | None:
        """The way to authenticate that these options name; None leaves it to the environment."""
        return next((way for way in WAYS if getattr(self, way)), None)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        ways = [way for way in WAYS if getattr(self, way)]
        if len(ways) > 1:
            raise ValueError(f"options {ways[0]!r} and {ways[1]!r} exclude each other: give one of them")
        if self.client_secret is not None and not (self.tenant_id and self.client_id):
            raise ValueError("option 'client_secret' needs 'tenant_id' and 'client_id'")
        if self.tenant_id is not None and self.client_secret is None:
            raise ValueError("option 'tenant_id' needs 'client_id' and 'client_secret'")
        if self.client_id is not None and self.way not in (None, "client_secret"):
            raise ValueError(f"options 'client_id' and {self.way!r} exclude each other: give one of them")
        if self.account_host is not None and self.endpoint_url is not None:
            raise ValueError("options 'account_host' and 'endpoint_url' exclude each other: give one of them")
        if self.connection_string is not None and (self.account_host or self.endpoint_url):
            raise ValueError("option 'connection_string' has the account's address: remove the endpoint")
        if self.cpk_key is not None and self.encryption_scope is not None:
            raise ValueError("options 'cpk_key' and 'encryption_scope' are two encryptions: give one of them")
        return self
