"""Every clause of `LedgerOffloader`, as a test, and those of its handles: one file for each family.

Nothing is asked of a backend but the contract. Where a clause says what others see, the test opens a
second offloader on the same place; where it says what is stored, `keys_in_store` looks by other means.
They store a few megabytes in all.
"""

from offload_conformance.end_to_end import EndToEndConformance
from offload_conformance.offloader.attempts import AttemptClauses
from offload_conformance.offloader.commits import CommitClauses
from offload_conformance.offloader.copies import CopyClauses
from offload_conformance.offloader.fencing import FencingClauses
from offload_conformance.offloader.in_store import InStoreClauses
from offload_conformance.offloader.leftovers import LeftoverClauses
from offload_conformance.offloader.manifests import ManifestClauses
from offload_conformance.offloader.manners import OffloaderMannerClauses
from offload_conformance.offloader.names import NameClauses
from offload_conformance.offloader.numbers import NumberClauses
from offload_conformance.offloader.reads import OffloaderReadClauses
from offload_conformance.offloader.sources import SourceClauses
from offload_conformance.offloader.views import ViewClauses

__all__ = ["OffloaderConformance"]


class OffloaderConformance(
    SourceClauses,
    AttemptClauses,
    InStoreClauses,
    LeftoverClauses,
    OffloaderReadClauses,
    ViewClauses,
    CommitClauses,
    CopyClauses,
    ManifestClauses,
    FencingClauses,
    NumberClauses,
    NameClauses,
    EndToEndConformance,
    OffloaderMannerClauses,
):
    """What every offloader must pass. Subclass it as the package's docstring shows."""
