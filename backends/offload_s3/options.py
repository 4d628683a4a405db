"""The options of the S3 backend, with the names that S3's own tools give them.

Options that are not given are found as AWS' tools find them: environment, shared configuration, profile,
the role of the machine. A wrong value raises `Misuse` with the option's name.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, ClassVar, Final, Literal, Self

from offload_cloud.options import Endpoint, Pairs, Proxy, StoreOptions, Verify
from pydantic import AfterValidator, Field, SecretStr, model_validator

TAGS_MAX: Final = 10
METADATA_SIZE_BYTES_MAX: Final = 2048
_TAG: Final = re.compile(r"[\w +\-=.:/@]*")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")


def _tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > TAGS_MAX:
        raise ValueError(f"an object has at most {TAGS_MAX} tags, these are {len(tags)}")
    for name, value in tags.items():
        if not (1 <= len(name) <= 128 and len(value) <= 256 and not name.startswith("aws:")):
            raise ValueError(
                "a tag's name has 1 to 128 characters, not aws: first, and its value at most 256"
            )
        if not (_TAG.fullmatch(name) and _TAG.fullmatch(value)):
            raise ValueError("a tag holds only letters, digits, spaces and + - = . _ : / @")
    return tags


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise ValueError("a name holds only lower-case letters, digits, dots, dashes and underscores")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ValueError("a value is printable ASCII, with no space around it")
    size_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    if size_bytes > METADATA_SIZE_BYTES_MAX:
        raise ValueError(f"names and values are {size_bytes} bytes; S3 takes {METADATA_SIZE_BYTES_MAX}")
    return metadata


def _customer_key(key: SecretStr) -> SecretStr:
    try:
        size = len(base64.b64decode(key.get_secret_value(), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if size != 32:
        raise ValueError("a key is 32 bytes in base64: `openssl rand -base64 32` makes one")
    return key


class S3Options(StoreOptions):
    """The options of the S3 backend, as text from the command line or as values from Python."""

    backend: ClassVar = "s3"

    endpoint_url: Endpoint | None = None
    """The URL of a server other than AWS: MinIO, Ceph, and so on."""

    region: str | None = None
    profile: str | None = None
    key: SecretStr | None = None
    secret: SecretStr | None = None
    token: SecretStr | None = None
    anonymous: bool = False
    """Send no credentials: for reading public buckets."""

    addressing: Literal["auto", "path", "virtual"] = "auto"
    requester_pays: bool = False
    verify: Verify = True
    proxy: Proxy | None = None
    connect_timeout_seconds: float = Field(default=10.0, gt=0)
    read_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long no byte may move, in either direction, before an attempt is cancelled."""

    connections_max: int = Field(default=32, ge=1, le=1024)
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """The encryption of every object, commits too: a bucket may refuse unencrypted ones."""

    sse_kms_key_id: str | None = None
    sse_bucket_key: bool | None = None
    """True: the bucket has a key of its own between KMS and the objects, which saves requests to KMS."""

    sse_c_key: Annotated[SecretStr, AfterValidator(_customer_key)] | None = None
    """The caller's own key, 32 bytes in base64. Every read needs it again."""

    storage_class: str | None = Field(default=None, pattern=r"^[A-Z_]+$")
    """The storage class of fragments. Manifests and anchors stay in the bucket's standard class."""

    tags: Annotated[Pairs, AfterValidator(_tags)] = {}
    """Tags of fragments, for lifecycle rules and bills."""

    metadata: Annotated[Pairs, AfterValidator(_metadata)] = {}
    """Metadata of fragments, for people who inspect the bucket."""

    part_size_bytes: int = Field(default=16 * 2**20, ge=5 * 2**20, le=5 * 2**30)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.key is None) != (self.secret is None):
            raise ValueError("options 'key' and 'secret' belong together: give both, or neither")
        if self.token is not None and self.key is None:
            raise ValueError("option 'token' needs 'key' and 'secret'")
        if self.anonymous and self.key is not None:
            raise ValueError("option 'anonymous' sends no credentials: remove 'key' and 'secret'")
        if self.sse_c_key is not None and (self.sse or self.sse_kms_key_id):
            raise ValueError("option 'sse_c_key' is an encryption by itself: remove 'sse'")
        by_kms = self.sse in {"aws:kms", "aws:kms:dsse"}
        if (self.sse_kms_key_id or self.sse_bucket_key is not None) and not by_kms:
            raise ValueError("options 'sse_kms_key_id' and 'sse_bucket_key' need sse=aws:kms")
        return self
