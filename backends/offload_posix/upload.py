"""A multipart upload into one staged file. Each part is written at its final position.

Part n begins at (n - 1) times the common size. That size is the size of part 1, or of the lower one of any
two parts, which is not the last. Until then at most one part is held in memory. One file for each part would
have to be copied at the end; this file is only renamed.

Invariant: the file that is published holds exactly the parts, or `complete` raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from offload.contracts.store import Upload
from offload.ground.errors import Misuse
from offload_posix.failures import explained
from offload_posix.pool import Pool
from offload_posix.staging import Staged

FILE_SIZE_BYTES_MAX: Final = 2**63 - 1
"""Positions in files have 63 bits, on every system. A file system may have a lower limit of its own."""


class PosixUpload(Upload):
    """An upload whose parts go into `staged`; `publish` gives the file its name."""

    __slots__ = ("_held", "_key", "_over", "_place", "_pool", "_publish", "_sizes", "_staged", "_written")

    def __init__(
        self, key: str, place: str, staged: Staged, pool: Pool, publish: Callable[[], Awaitable[None]]
    ) -> None:
        self._key = key
        self._place = place
        self._staged = staged
        self._pool = pool
        self._publish = publish
        self._sizes: dict[int, int] = {}
        self._written: set[int] = set()
        self._held: tuple[int, bytes] | None = None
        self._over = False

    async def put_part(self, number: int, data: bytes) -> None:
        """Write the part, or hold it until its position is known."""
        self._check_running()
        if number < 1 or not data:
            raise Misuse(f"part {number} of {self._key!r}: numbers begin at 1, and no part is empty")
        if number * len(data) > FILE_SIZE_BYTES_MAX:  # before it counts as a part
            raise Misuse(f"part {number} of {self._key!r} would begin behind the end of the longest file")
        self._note(number, len(data))
        if number > 1 and len(self._sizes) == 1:  # it may be the last part, which is smaller
            self._held = number, data
            return
        await self._write(number, data)
        if self._held is not None:
            await self._write(*self._held)  # at worst twice, if parts arrive at the same time
            self._held = None

    async def complete(self) -> None:
        """Check that no part is missing, and publish the file."""
        self._check_running()
        numbers = range(1, len(self._sizes) + 1)
        if not self._sizes or self._written != set(numbers):
            raise Misuse(f"the upload of {self._key!r} lacks a part: it has {sorted(self._written)}")
        if any(self._sizes[number] != self._sizes[1] for number in numbers[:-1]):
            raise Misuse(f"the parts of {self._key!r} differ in size, and not only the last")
        await self._publish()
        self._over = True  # only now: if publishing failed, `abort` or another `complete` may follow

    async def abort(self) -> None:
        """Remove the staged file."""
        self._over = True
        self._held = None
        await self._pool.finish(self._staged.discard)

    def _note(self, number: int, size: int) -> None:
        """Record the size of a part. Raises `Misuse` if the part cannot have that size."""
        known = self._sizes.setdefault(number, size)
        common = self._sizes[min(self._sizes)]
        if known != size or max(self._sizes.values()) > common:
            if known == size:  # a refused part must not count, or it would be missing for ever
                del self._sizes[number]
            raise Misuse(
                f"part {number} of {self._key!r} has {size} bytes: "
                f"every part has one size, the last may be smaller, and a repeated one is the same"
            )

    async def _write(self, number: int, data: bytes) -> None:
        at = (number - 1) * self._sizes[min(self._sizes)]
        with explained("writing", self._place):
            await self._pool.finish(self._staged.write, data, at)
        self._written.add(number)

    def _check_running(self) -> None:
        if self._over:
            raise Misuse(f"the upload of {self._key!r} is over")
