"""The options of the S3 backend, with the names that S3's own tools give them.

What is not given is found as AWS' tools find it: environment, shared configuration, profile, the
role of the machine. A value that is wrong raises `Misuse` with the option's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from offload.errors import Misuse


class S3Options(BaseModel):
    """Every option, as text from the command line or as a value from Python."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> S3Options:
        """Check options. Raises `Misuse` that names each wrong one; secrets are never repeated."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as exc:
            wrong = "; ".join(f"option {'.'.join(map(str, e['loc']))!r}: {e['msg']}" for e in exc.errors())
            raise Misuse(f"s3: {wrong}") from None
