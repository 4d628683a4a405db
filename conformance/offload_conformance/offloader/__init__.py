"""The clauses of `LedgerOffloader` and of its handles: one test for each, and one file for each family.

The clauses use only the contract of the backend. A clause about what other clients see opens a second
offloader on the same place. A clause about what is stored looks with `keys_in_store`, past the offloader. All
tests together store a few megabytes.
"""

from offload_conformance.end_to_end import EndToEndConformance
from offload_conformance.offloader.attempts import AttemptClauses
from offload_conformance.offloader.coded import CodedClauses
from offload_conformance.offloader.commits import CommitClauses
from offload_conformance.offloader.copies import CopyClauses
from offload_conformance.offloader.damage import DamageClauses
from offload_conformance.offloader.doors import DoorClauses
from offload_conformance.offloader.fencing import FencingClauses
from offload_conformance.offloader.in_store import InStoreClauses
from offload_conformance.offloader.kinds import KindClauses
from offload_conformance.offloader.leftovers import LeftoverClauses
from offload_conformance.offloader.lines import LineClauses
from offload_conformance.offloader.manifests import ManifestClauses
from offload_conformance.offloader.manners import OffloaderMannerClauses
from offload_conformance.offloader.many import ManyClauses
from offload_conformance.offloader.names import NameClauses
from offload_conformance.offloader.numbers import NumberClauses
from offload_conformance.offloader.parts import PartClauses
from offload_conformance.offloader.reads import OffloaderReadClauses
from offload_conformance.offloader.sources import SourceClauses
from offload_conformance.offloader.states import StateClauses
from offload_conformance.offloader.views import ViewClauses

__all__ = ["OffloaderConformance"]


class OffloaderConformance(
    SourceClauses,
    AttemptClauses,
    KindClauses,
    InStoreClauses,
    LeftoverClauses,
    OffloaderReadClauses,
    DoorClauses,
    DamageClauses,
    CodedClauses,
    ViewClauses,
    StateClauses,
    CommitClauses,
    CopyClauses,
    ManifestClauses,
    LineClauses,
    FencingClauses,
    NumberClauses,
    ManyClauses,
    NameClauses,
    PartClauses,
    EndToEndConformance,
    OffloaderMannerClauses,
):
    """The clauses that every offloader must pass. Subclass it as the package's docstring shows."""
