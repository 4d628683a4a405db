"""The layer `protocol`: rivals, crashes, lost and late requests, adoption, sweeps, random walks of changes.

`ProtocolConformance` is for stores. It runs the tier that this project makes of any store on the author's
store, with a `FaultyStore` between the two, so that a fault hits exactly the intended request. A failure is
a fault of the store: the tier's own behaviour under such faults has tests of its own. `WalkConformance` is
the part for any offloader. It uses the contract alone.

The whole layer makes some thousands of small requests.
"""

from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
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
    """The clauses that every store of a tier must pass. Subclass it as the package's docstring shows."""

    def open_offloader(self) -> LedgerOffloader:
        """Return the tier as users open it."""
        return self.open_tier(self.open_store(), env=Env(), options=TierOptions())
