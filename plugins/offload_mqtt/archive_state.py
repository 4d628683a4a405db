"""What an archive of an MQTT broker knows of its session there: `archive.json` in its folder.

    {"client_id": "offload0123456789abcdef", "filters": ["site/+/#"]}

The broker keeps messages under the client id, so a folder keeps the id for life. `filters` are those that it
has subscribed to: one that is wanted no more is ended, or the broker would go on sending its messages.

Invariant: the file is replaced whole, and is durable before the session that it names exists.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from offload.ground.errors import Corrupt, OffloadError
from offload.ground.outside import json_outside, read_outside
from offload.local.files import explained, shown_path
from offload.log.disk import Disk

STATE_NAME: Final = "archive.json"


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The content of the file. Empty if there is none."""

    client_id: str = ""
    filters: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the state of an archive. Raises `Corrupt` if the file is damaged."""
        path = folder / STATE_NAME
        try:
            with explained("read", path):
                raw = read_outside(path)
        except OffloadError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return cls()
            raise
        try:
            found = json_outside(raw)
            client_id, filters = found["client_id"], found["filters"]
            if not isinstance(client_id, str) or not all(isinstance(each, str) for each in filters):
                raise TypeError("it has other types")
        except (ValueError, TypeError, KeyError) as exc:
            raise Corrupt(
                "state of the archive", shown_path(path), expected="a client id and filters", found=raw[:80]
            ) from exc
        return cls(client_id, tuple(filters))

    def save(self, folder: Path, disk: Disk) -> None:
        """Replace the file, durably."""
        path = folder / STATE_NAME
        new = path.with_suffix(".new")
        with explained("write", path):
            descriptor = disk.create(new)
            try:
                disk.write(descriptor, 0, [json.dumps(asdict(self)).encode()])
                disk.sync(descriptor)
            finally:
                os.close(descriptor)
            disk.replace(new, path)
            disk.sync_folder(folder)
