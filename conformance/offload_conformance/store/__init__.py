"""The clauses of `ObjectStore`: one test for each clause, and one file for each family of clauses.

A clause about what other clients see opens a second client of the same place. A clause about what is
stored looks with `keys_in_store`, so that one mistake shared by reads and writes is still found. All
tests together write a few megabytes, or more if the store's smallest part is larger.
"""

from offload_conformance.store.base import level
from offload_conformance.store.capabilities import CapabilityClauses
from offload_conformance.store.creates import CreateClauses
from offload_conformance.store.deletions import DeletionClauses
from offload_conformance.store.errors import ErrorClauses
from offload_conformance.store.keys import KeyClauses
from offload_conformance.store.listings import ListingClauses
from offload_conformance.store.manners import StoreMannerClauses
from offload_conformance.store.metadata import MetadataClauses
from offload_conformance.store.model import ModelClauses
from offload_conformance.store.parts import UploadPartClauses
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
    MetadataClauses,
    UploadPartClauses,
    ErrorClauses,
    StoreMannerClauses,
    CapabilityClauses,
):
    """The clauses that every store must pass. Subclass it as the package's docstring shows."""
