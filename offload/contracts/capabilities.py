"""What a store can do, declared as data and asserted both ways by the conformance suite.

A capability that is declared must work; one that is declared absent must fail with the documented
error. A number is a limit that the store really has, `None` that it has none we would meet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

__all__ = ["CREATE_SIZE_BYTES_LEAST", "KEY_SIZE_BYTES_MAX", "Capabilities"]


KEY_SIZE_BYTES_MAX: Final = 1024
"""Of a key in UTF-8, on every store: the limit of S3, GCS and Azure."""

CREATE_SIZE_BYTES_LEAST: Final = 2**20
"""What every store creates in one request. A full root has some 400 KB, and 860 KB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The declaration of one store."""

    atomic_create: bool
    """Create-if-absent has exactly one winner. Without it no manifest may be committed here."""

    create_is_probed: bool = False
    """Whether create is atomic depends on the server: it is tried out before the first commit."""

    strong_listing: bool
    """A listing shows every write and delete that returned before it began."""

    multipart: bool
    """`start_upload` works. Where absent it raises `Misuse`."""

    part_size_bytes_min: int = 1
    """The least size of a part, the last one excepted."""

    part_size_bytes_max: int | None = None
    parts_max: int | None = None

    put_size_bytes_max: int | None = None
    """The largest object that a single `put` takes."""

    create_size_bytes_max: int | None = None
    """The largest object that `create` takes; more is `Misuse`. No less than `CREATE_SIZE_BYTES_LEAST`."""

    delete_batch_max: int | None = None
    """How many keys one request deletes. `delete` itself takes any number."""

    server_checksum: str | None = None
    """The checksum that the store keeps of an object and compares on the way in, such as `crc32c`."""

    durable: bool = True
    """What a call has returned survives a power cut."""

    one_process: bool = False
    """Only the process that wrote an object sees it: such a store is for tests, and holds no tier."""

    key_size_bytes_max: int = KEY_SIZE_BYTES_MAX
    """The longest key in UTF-8. A longer one is `Misuse`. Never more than `KEY_SIZE_BYTES_MAX`."""

    keys_refused: str | None = None
    """A regular expression: a key in which it is found is `Misuse` here. None: all keys are taken."""

    def behind(self, prefix: str) -> Capabilities:
        """Return those of a store that sets `prefix` before each key: it takes its share of a key's bytes."""
        return replace(self, key_size_bytes_max=self.key_size_bytes_max - len(prefix.encode()))

    def as_dict(self) -> dict[str, object]:
        """For `--json` and reports."""
        return asdict(self)
