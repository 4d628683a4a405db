"""Stores whose declaration and behaviour do not fit, in each direction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final

from contract.bugs import Bug, breaks
from offload_conformance.declared import NOT_YET, SUPPORTED, UNSUPPORTED, Declared, since

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, Upload, check_key
from offload.errors import Misuse
from offload.store.memory import MemoryStore

CAPABILITY_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=CAPABILITY_BUGS)


class _WithoutUploads(MemoryStore):
    """Refuses uploads as documented, and says so."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        raise Misuse("no uploads in parts here")


# What the author means, against the store's own word


@bug("capabilities_are_those_stated")
class IsMeantToCreate(MemoryStore):
    """Declares that it has no atomic create, which its author says is supported.

    A backend that looks at its server's headers, and finds an older protocol than the one it can speak.
    """

    declared = Declared(atomic_create=SUPPORTED)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)


@bug("capabilities_are_those_stated")
class PromisesAheadOfItsTime(MemoryStore):
    """Declares a capability that its author says is not implemented yet.

    `Capabilities` copied from another backend.
    """

    declared = Declared(multipart=NOT_YET)


@bug("capabilities_are_those_stated")
class ForgetsOldServers(MemoryStore):
    """Declares what only newer servers can, whatever server it meets.

    A constant, where the version of the server decides.
    """

    declared = Declared(strong_listing=since("2.3"), server_version="2.1.9")


@bug("capabilities_are_those_stated")
class StatesOtherLimits(MemoryStore):
    """Has other limits than its plugin declares.

    A limit that was changed in the store's module, and stands in the plugin's once more.
    """

    declared = Capabilities(
        atomic_create=True, strong_listing=True, multipart=True, durable=False, one_process=True, parts_max=99
    )


# What is meant, against what is found


@bug("capabilities_are_as_meant")
class SaysThatItCreates(MemoryStore):
    """Declares an atomic create, and overwrites.

    Servers that speak S3's protocol, answer 200 to `If-None-Match: *`, and replace the object.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("capabilities_are_as_meant")
class HidesThatItCreates(MemoryStore):
    """Creates as it should, and declares that it cannot.

    A server that learned it in a newer version; the tier is refused without need.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)


@bug("capabilities_are_as_meant")
class FailsToCreate(MemoryStore):
    """Declares no atomic create, and raises an error of its own where it is asked for one.

    `raise NotImplementedError` left in a backend: retries and commands know no such error.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        raise NotImplementedError


@bug("capabilities_are_as_meant")
class UploadsByNow(MemoryStore):
    """Takes uploads, which its author says are not implemented yet.

    The declaration was not changed along with the code.
    """

    declared = Declared(multipart=NOT_YET)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("capabilities_are_as_meant")
class UploadsOnOldServers(MemoryStore):
    """Takes uploads on a server that is older than those which are said to support them.

    A version that was taken from release notes, and the feature was there before.
    """

    declared = Declared(multipart=since("2.3"), server_version="v2.2.17")

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("capabilities_are_as_meant")
class RefusesOnNewServers(_WithoutUploads):
    """Refuses uploads on a server of a version that is said to support them.

    A feature that a server's operator must switch on, and did not.
    """

    declared = Declared(multipart=since("2.3"), server_version="2.10")


@bug("capabilities_are_as_meant")
class LeavesUploadsOpen(MemoryStore):
    """Declares no uploads, and fails with an error of its own instead of refusing them.

    A method that was left out where the SDK has none, so that Python says what is missing.
    """

    declared = Declared(multipart=UNSUPPORTED)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)

    async def start_upload(self, key: str) -> Upload:
        raise AttributeError("this client has no upload")


@bug("capabilities_are_as_meant")
class KeepsNoChecksum(MemoryStore):
    """Declares that it keeps a CRC-32C, and keeps none.

    An older server behind an SDK that sends one: it is ignored.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, server_checksum="crc32c")


@bug("capabilities_are_as_meant")
class ListsLate(MemoryStore):
    """Declares strong listings, and lists what was there at the last look.

    Listings from a replica or a cache, as object stores had them until 2020.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        seen, self.seen = getattr(self, "seen", {}), dict(self.objects)
        for key in sorted(key for key in seen if key.startswith(prefix) and key > after):
            yield Listed(key, len(seen[key]))
