"""The keys of Pulsar's objects, and the metadata that Pulsar keeps with each.

| object | key |
|---|---|
| V1 data | `<uuid>-ledger-<ledger id>` |
| V1 index | `<uuid>-ledger-<ledger id>-index` |
| V2 data | `<uuid>` |
| V2 index | `<uuid>-index` |

The UUID names the attempt. Keys have no prefix and no name of a topic: the topic is in the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from offload.ground.errors import Corrupt

__all__ = ["BrokerNames", "PulsarKey", "check_version", "lowered"]

_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KEY: Final = re.compile(rf"(?P<uid>{_UUID})(?:-ledger-(?P<ledger>0|[1-9][0-9]{{0,18}}))?(?P<index>-index)?")
LEDGER_ID_MAX: Final = 2**63 - 1
FORMAT_VERSION: Final = "1"

VERSION_NAME: Final = "s3managedledgeroffloaderformatversion"
SOFTWARE_NAME: Final = "s3managedledgeroffloadersoftwareversion"
COMMIT_NAME: Final = "s3managedledgeroffloadersoftwaregitsha"
CLUSTER_NAME: Final = "pulsarclustername"
ROLE_NAME: Final = "role"
LEDGER_NAME: Final = "managedledgername"

METADATA_NAMES: Final = (
    (VERSION_NAME, "`1`", "every object; a reader refuses any other"),
    (SOFTWARE_NAME, "text", "the version of the program that wrote the object"),
    (COMMIT_NAME, "text", "the commit of that program"),
    (CLUSTER_NAME, "text", "the cluster of the broker"),
    (ROLE_NAME, "`data` or `index`", "V1 only"),
    (
        LEDGER_NAME,
        "text",
        "V1 only; the topic partition, such as `public/default/persistent/orders-partition-0`",
    ),
)
"""The names in lower case, as stores keep them. They say `s3` on every store."""


@dataclass(frozen=True, slots=True)
class PulsarKey:
    """The key of one object of an attempt. `ledger_id` is None in V2."""

    uid: UUID
    ledger_id: int | None = None
    is_index: bool = False

    def __str__(self) -> str:
        """Return the key."""
        ledger = "" if self.ledger_id is None else f"-ledger-{self.ledger_id}"
        return f"{self.uid}{ledger}{'-index' if self.is_index else ''}"

    @classmethod
    def parse(cls, key: str) -> PulsarKey | None:
        """Undo `str`. Return None for any other key: it is an object of a stranger."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        ledger_id = None if found["ledger"] is None else int(found["ledger"])
        if ledger_id is not None and ledger_id > LEDGER_ID_MAX:
            return None
        return cls(UUID(found["uid"]), ledger_id, found["index"] is not None)

    @property
    def index(self) -> PulsarKey:
        """The key of the index object of the same attempt."""
        return replace(self, is_index=True)

    @property
    def data(self) -> PulsarKey:
        """The key of the data object of the same attempt."""
        return replace(self, is_index=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNames:
    """What the metadata of written objects says of their origin. Empty values are left out."""

    managed_ledger: str
    cluster: str = ""
    software_version: str = ""
    software_commit: str = ""

    def metadata(self, key: PulsarKey) -> dict[str, str]:
        """Return the metadata of the object under `key`."""
        values = {
            VERSION_NAME: FORMAT_VERSION,
            SOFTWARE_NAME: self.software_version,
            COMMIT_NAME: self.software_commit,
            CLUSTER_NAME: self.cluster,
        }
        if key.ledger_id is not None:
            values |= {ROLE_NAME: "index" if key.is_index else "data", LEDGER_NAME: self.managed_ledger}
        return {name: value for name, value in values.items() if value}


def lowered(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata with the names of this module: stores and tools that copy objects change their case."""
    return {name.lower(): value for name, value in metadata.items()}


def check_version(metadata: Mapping[str, str], *, where: str) -> None:
    """Raise `Corrupt` if the metadata has no version, or one that Pulsar's readers refuse."""
    found = lowered(metadata).get(VERSION_NAME)
    if found != FORMAT_VERSION:
        raise Corrupt(f"metadata {VERSION_NAME}", where, expected=FORMAT_VERSION, found=found)
