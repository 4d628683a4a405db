"""Every deliberately broken offloader, in the order of the page that lists them."""

from __future__ import annotations

from typing import Final

from contract.beside_offloader_bugs import BESIDE_OFFLOADER_BUGS
from contract.bugs import Bug
from contract.offloader_bugs import OFFLOADER_BUGS
from contract.part_record_bugs import PART_RECORD_BUGS
from contract.question_bugs import QUESTION_BUGS

ALL_OFFLOADER_BUGS: Final[list[Bug]] = [
    *OFFLOADER_BUGS,
    *PART_RECORD_BUGS,
    *QUESTION_BUGS,
    *BESIDE_OFFLOADER_BUGS,
]
