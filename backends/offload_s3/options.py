"""The options of the S3 backend, with the names that S3's own tools give them.

What is not given is found as AWS' tools find it: environment, shared configuration, profile, the
role of the machine. A value that is wrong raises `Misuse` with the option's name.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from offload_cloud.options import StoreOptions
from pydantic import Field, SecretStr


class S3Options(StoreOptions):
    """Every option, as text from the command line or as a value from Python."""

    backend: ClassVar = "s3"

    endpoint_url: str | None = Field(default=None, pattern=r"^https?://")
    """Another server than AWS': MinIO, Ceph, and so on."""

    region: str | None = None
    profile: str | None = None
    key: SecretStr | None = None
    secret: SecretStr | None = None
    token: SecretStr | None = None
    anonymous: bool = False
    """Send no credentials: for reading public buckets."""

    addressing: Literal["auto", "path", "virtual"] = "auto"
    requester_pays: bool = False
    verify: bool | str = True
    """Check TLS certificates; a path names a file of certificate authorities."""

    proxy: str | None = Field(default=None, pattern=r"^https?://")
    connect_timeout_seconds: float = Field(default=10.0, gt=0)
    read_timeout_seconds: float = Field(default=60.0, gt=0)
    connections_max: int = Field(default=32, ge=1, le=1024)
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_kms_key_id: str | None = None
    sse_c_key: SecretStr | None = None
    """A key of the caller's own, 32 bytes in base64, needed again for every read."""

    storage_class: str | None = None
    """Of fragments. Manifests and anchors stay in the bucket's standard class."""

    part_size_bytes: int = Field(default=16 * 2**20, ge=5 * 2**20, le=5 * 2**30)
