"""The capabilities of a store, declared as data. The conformance suite tests them both ways.

A capability that is declared present must work, and one that is declared absent must fail with the documented
error. A number is a limit that the store really has. `None` means that it has no limit that we could reach.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

__all__ = ["CREATE_SIZE_BYTES_LEAST", "KEY_PART_SIZE_BYTES_MAX", "KEY_SIZE_BYTES_MAX", "Capabilities"]


KEY_SIZE_BYTES_MAX: Final = 1024
"""The longest key in UTF-8 on any store: the limit of S3, GCS and Azure."""

KEY_PART_SIZE_BYTES_MAX: Final = 255
"""The longest part of a key in UTF-8 on any store: the limit of file systems."""

CREATE_SIZE_BYTES_LEAST: Final = 2**20
"""The size that every store creates in one request. A full root has some 400 KB, and at most 860 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The declaration of one store."""

    atomic_create: bool
    """Create-if-absent has exactly one winner. Without it no manifest may be committed here."""

    create_is_probed: bool = False
    """The server decides whether create is atomic, so it is tested before the first commit."""

    strong_listing: bool
    """A listing shows every write and delete that returned before it began."""

    multipart: bool
    """`start_upload` works. If absent, it raises `Misuse`."""

    part_size_bytes_min: int = 1
    """The smallest size of a part other than the last one."""

    part_size_bytes_max: int | None = None
    """The largest size of a part. A larger one is `Misuse`, at the latest in `complete`."""

    parts_max: int | None = None
    """The largest number of a part. A larger one is `Misuse`, at the latest in `complete`."""

    put_size_bytes_max: int | None = None
    """The largest object that `put` takes. A larger one is `Misuse`, before any of it is read."""

    unsized_put: bool = False
    """`put` takes a body whose size is known only at its end (`Body.is_bound`).

    If absent, compressed fragments are gathered in memory or in a temporary file before they are put.
    """

    create_size_bytes_max: int | None = None
    """The largest object that `create` accepts, at least `CREATE_SIZE_BYTES_LEAST`.

    A larger one is `Misuse`.
    """

    delete_batch_max: int | None = None
    """The number of keys that one request deletes. `delete` itself accepts any number."""

    server_checksum: str | None = None
    """The checksum that the store keeps of an object and compares when it is written, such as `crc32c`."""

    durable: bool = True
    """A write whose call has returned survives a power cut."""

    one_process: bool = False
    """Only the process that wrote an object sees it. Such a store is for tests, and holds no tier."""

    key_size_bytes_max: int = KEY_SIZE_BYTES_MAX
    """The longest key in UTF-8. A longer one is `Misuse`. Never more than `KEY_SIZE_BYTES_MAX`."""

    keys_refused: str | None = None
    """A regular expression. A key in which it matches is `Misuse`. None: all keys are accepted."""

    metadata_size_bytes_max: int = 0
    """The most metadata of one object, as `object_metadata.metadata_size` counts. More is `Misuse`.

    0: the store keeps none.
    """

    def behind(self, prefix: str) -> Capabilities:
        """Return these capabilities with keys that are shorter by `prefix`, which precedes each key."""
        return replace(self, key_size_bytes_max=self.key_size_bytes_max - len(prefix.encode()))

    def as_dict(self) -> dict[str, object]:
        """Return the capabilities by name, for `--json` and reports."""
        return asdict(self)
