"""Bugs of declarations: what a store declares and what it does differ, in each direction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, Upload, check_key
from offload.ground.errors import Misuse
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import bug
from offload_conformance.declared import NOT_YET, SUPPORTED, UNSUPPORTED, Declared, since


class _WithoutUploads(MemoryStore):
    """Refuses uploads as documented, and declares it."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        raise Misuse("no uploads in parts here")


@bug("store/capabilities_are_those_stated")
class IsMeantToCreate(MemoryStore):
    """Declares that it has no atomic create, although its author says that it is supported.

    A backend reads its server's headers, and finds an older protocol than the one in use.
    """

    declared = Declared(atomic_create=SUPPORTED)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)


@bug("store/capabilities_are_those_stated")
class PromisesAheadOfItsTime(MemoryStore):
    """Declares a capability that its author says is not implemented yet.

    `Capabilities` were copied from another backend.
    """

    declared = Declared(multipart=NOT_YET)


@bug("store/capabilities_are_those_stated")
class ForgetsOldServers(MemoryStore):
    """Declares a capability of newer servers for any server.

    The declaration is a constant, but the version of the server decides.
    """

    declared = Declared(strong_listing=since("2.3"), server_version="2.1.9")


@bug("store/capabilities_are_those_stated")
class StatesOtherLimits(MemoryStore):
    """Has other limits than its plugin declares.

    A limit was changed in the store's module, and the plugin's module has a second copy.
    """

    declared = Capabilities(
        atomic_create=True, strong_listing=True, multipart=True, durable=False, one_process=True, parts_max=99
    )


@bug("store/capabilities_are_as_meant")
class SaysThatItCreates(MemoryStore):
    """Declares an atomic create, and overwrites.

    Servers with S3's protocol answer 200 to `If-None-Match: *`, and replace the object.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("store/capabilities_are_as_meant")
class HidesThatItCreates(MemoryStore):
    """Creates correctly, and declares that it cannot.

    A newer version of the server can do it; the tier is refused without need.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)


@bug("store/capabilities_are_as_meant")
class FailsToCreate(MemoryStore):
    """Declares no atomic create, and raises its own error for a create.

    `raise NotImplementedError` was left in a backend; retries and commands do not know this error.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        raise NotImplementedError


@bug("store/capabilities_are_as_meant")
class UploadsByNow(MemoryStore):
    """Accepts uploads, although its author says that they are not implemented yet.

    The declaration was not changed together with the code.
    """

    declared = Declared(multipart=NOT_YET)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("store/capabilities_are_as_meant")
class UploadsOnOldServers(MemoryStore):
    """Accepts uploads on a server that is older than the declared version.

    The version was taken from release notes, but the feature existed before.
    """

    declared = Declared(multipart=since("2.3"), server_version="v2.2.17")

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("store/capabilities_are_as_meant")
class RefusesOnNewServers(_WithoutUploads):
    """Refuses uploads on a server of a version that is declared to support them.

    The server's operator has to switch the feature on, and did not.
    """

    declared = Declared(multipart=since("2.3"), server_version="2.10")


@bug("store/capabilities_are_as_meant")
class LeavesUploadsOpen(MemoryStore):
    """Declares no uploads, and fails with its own error instead of refusing them.

    The method was left out because the SDK has none, so Python raises the error.
    """

    declared = Declared(multipart=UNSUPPORTED)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)

    async def start_upload(self, key: str) -> Upload:
        raise AttributeError("this client has no upload")


@bug("store/capabilities_are_as_meant")
class KeepsNoChecksum(MemoryStore):
    """Declares that it keeps a CRC-32C, and keeps none.

    The SDK sends a checksum, and an older server ignores it.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, server_checksum="crc32c")


@bug("store/capabilities_are_as_meant")
class ListsLate(MemoryStore):
    """Declares strong listings, and shows the state of the previous listing.

    Listings come from a replica or a cache, as in object stores until 2020.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        seen, self.seen = getattr(self, "seen", {}), dict(self.objects)
        for key in sorted(key for key in seen if key.startswith(prefix) and key > after):
            yield Listed(key, len(seen[key]))
