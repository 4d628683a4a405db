"""Every deliberately broken store, in the order of the page that lists them."""

from __future__ import annotations

from typing import Final

from contract.beside_bugs import BESIDE_BUGS
from contract.breadth_bugs import BREADTH_BUGS
from contract.bugs import Bug
from contract.capability_bugs import CAPABILITY_BUGS
from contract.edge_bugs import EDGE_BUGS
from contract.error_bugs import ERROR_BUGS
from contract.key_bugs import KEY_BUGS
from contract.kind_bugs import KIND_BUGS
from contract.metadata_bugs import METADATA_BUGS
from contract.part_bugs import PART_BUGS
from contract.process_bugs import PROCESS_BUGS
from contract.store_bugs import STORE_BUGS

ALL_STORE_BUGS: Final[list[Bug]] = [
    *STORE_BUGS,
    *KEY_BUGS,
    *PROCESS_BUGS,
    *PART_BUGS,
    *ERROR_BUGS,
    *CAPABILITY_BUGS,
    *BREADTH_BUGS,
    *METADATA_BUGS,
    *EDGE_BUGS,
    *KIND_BUGS,
    *BESIDE_BUGS,
]
