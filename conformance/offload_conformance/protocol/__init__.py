"""The layer of the protocol: rivals, crashes, lost and late requests, adoption, sweeps, walks of changes.

`ProtocolConformance` is for stores: the tier that this project makes of any store runs on the author's, with
a `FaultyStore` between them, so that a fault befalls exactly the request that is meant. What is found is a
fault of the store: what the tier itself does under such faults is tested where it is written.
`WalkConformance` is the part of it that any offloader is asked, by its contract alone.

All of it makes some thousands of small requests.
"""

from offload.contracts.offloader import LedgerOffloader
from offload.env import Env
from offload.native.offloader import TierOptions
from offload_conformance.protocol.crashes import CrashClauses
from offload_conformance.protocol.reads import ProtocolReadClauses
from offload_conformance.protocol.replies import ReplyClauses
from offload_conformance.protocol.rivals import RivalClauses
from offload_conformance.protocol.sweeps import SweepClauses
from offload_conformance.protocol.walk import WalkConformance

__all__ = ["ProtocolConformance", "WalkConformance"]


class ProtocolConformance(
    CrashClauses,
    ReplyClauses,
    RivalClauses,
    SweepClauses,
    ProtocolReadClauses,
    WalkConformance,
):
    """What every store must pass as the store of a tier. Subclass it as the package's docstring shows."""

    def open_offloader(self) -> LedgerOffloader:
        """The tier as users open it."""
        return self.open_tier(self.open_store(), env=Env(), options=TierOptions())
