"""The address of a tier: all that the driver and its tasks need to open it. Imports no Spark.

Invariant: an address is plain values without a key. It may be in a plan, a pickle or an event log. Each
process that opens the tier asks the key service itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offload.ground.urls import refuse_login
from offload.model.compression import Compression
from offload.model.labels import MasterKey
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.opening.blocking import Blocking

KEYS_VARIABLE: Final = "OFFLOAD_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAddress:
    """A tier by URL and options, its key service, and how to write it."""

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    keys: str = ""
    """The URL of the key service. Empty: that of `OFFLOAD_KEYS`, in each process that opens the tier."""
    encrypt: str = ""
    """The master key for streams that have no key yet. Empty: such a stream is not encrypted."""
    encrypted_only: bool = False
    """Refuse plain fragments."""
    compression: Compression | None = None
    """The compression of new fragments. None: the tier's default. A tier that is made has it as default."""
    fragment_size_bytes: int = TierOptions().fragment_size_bytes

    def __post_init__(self) -> None:
        """Raise `Misuse` for a login in the URL of the key service, and for a wrong label."""
        refuse_login(self.keys)
        if self.encrypt:
            MasterKey.parse(self.encrypt)

    @property
    def service(self) -> str | None:
        """The URL of the key service for this process."""
        return self.keys or os.environ.get(KEYS_VARIABLE) or None

    def opened(self) -> Blocking:
        """Open the tier in this process. Raises as `Blocking` does."""
        return Blocking(
            self.url,
            storage_options=dict(self.storage_options),
            # Made here and not pickled: the default number of threads is that of the executor's machine.
            options=TierOptions(
                fragment_size_bytes=self.fragment_size_bytes,
                compression=self.compression,
                encrypt=self.encrypt or None,
                encrypted_only=self.encrypted_only,
            ),
            plan=TierPlan(compression=self.compression),
            keys=self.service,
        )
