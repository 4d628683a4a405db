"""Every clause of `ObjectStore`, as a test: one file for each family of clauses.

Where a clause says what others see, the test opens a second client of the same place; where it says
what is stored, `keys_in_store` looks by other means, so that reads and writes that share one mistake
are still found out. The tests write a few megabytes in all, unless the least part size is larger.
"""

from offload_conformance.store.base import level
from offload_conformance.store.capabilities import CapabilityClauses
from offload_conformance.store.creates import CreateClauses
from offload_conformance.store.deletions import DeletionClauses
from offload_conformance.store.errors import ErrorClauses
from offload_conformance.store.keys import KeyClauses
from offload_conformance.store.listings import ListingClauses
from offload_conformance.store.manners import StoreMannerClauses
from offload_conformance.store.model import ModelClauses
from offload_conformance.store.parts import PartsClauses
from offload_conformance.store.puts import PutClauses
from offload_conformance.store.reads import StoreReadClauses

__all__ = ["StoreConformance", "level"]


class StoreConformance(
    ModelClauses,
    PutClauses,
    CreateClauses,
    ListingClauses,
    StoreReadClauses,
    DeletionClauses,
    KeyClauses,
    PartsClauses,
    ErrorClauses,
    StoreMannerClauses,
    CapabilityClauses,
):
    """What every store must pass. Subclass it as the package's docstring shows."""
