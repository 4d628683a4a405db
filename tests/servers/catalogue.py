"""Every server that the tests know: one entry each, with its pinned version and its purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from servers import starts
from servers.places import PLACES, Place
from servers.processes import end_of
from servers.recipes import DebianPackages, GoProgram, Included, NpmPackage, PypiPackage, Recipe
from servers.rgw import ceph_gateway
from servers.scratch import scratch_folder

LOGS: Final = {".log", ".out"}
"""The suffixes of logs in scratch folders."""

Protocol = Literal["s3", "gcs", "azure"]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that can be run on loopback, and the weight of a test that passes on it."""

    name: str
    protocol: Protocol
    kind: Literal["fake", "emulator", "real server"]
    """A fake imitates replies; an emulator is its vendor's own substitute; a real server stores
    users' data.
    """

    recipe: Recipe
    start: starts.Start
    purpose: str

    honours_create: bool = True
    """False if a create overwrites an existing object. Commits to such a server must be refused."""

    def missing(self) -> str | None:
        """Return why it cannot be run on this machine, and what to do; None if it can."""
        return self.recipe.missing()

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Start it on a free port of loopback. On exit it has ended and its files are deleted."""
        with (
            scratch_folder(self.name) as scratch,
            self.start(self.recipe.folder, scratch) as endpoint,
        ):
            yield Running(server=self, endpoint=endpoint, version=self.recipe.version, scratch=scratch)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running server."""

    server: Server
    endpoint: str
    version: str
    scratch: Path

    def place(self) -> Place:
        """Make a new, empty bucket or container. A failure is reported with the last output of the server."""
        try:
            return PLACES[self.server.protocol](self.endpoint)
        except Exception as exc:
            for log in sorted(path for path in self.scratch.iterdir() if path.suffix in LOGS):
                exc.add_note(f"{self.server.name}: {log.name}: {end_of(log)}")
            raise


SERVERS: Final[tuple[Server, ...]] = (
    Server(
        name="minio",
        protocol="s3",
        kind="real server",
        recipe=GoProgram("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c"),
        start=starts.minio,
        purpose="S3 as MinIO speaks it",
    ),
    Server(
        name="rgw",
        protocol="s3",
        kind="real server",
        recipe=DebianPackages("rgw", ("radosgw", "ceph-mon", "ceph-osd", "ceph-base", "ceph-common")),
        start=ceph_gateway,
        purpose="S3 as Ceph's object gateway speaks it",
    ),
    Server(
        name="moto",
        protocol="s3",
        kind="fake",
        recipe=Included("moto"),
        start=starts.moto,
        purpose="S3 without installing anything; a lock of ours makes its creates atomic",
    ),
    Server(
        name="fake-gcs-server",
        protocol="gcs",
        kind="fake",
        recipe=GoProgram("github.com/fsouza/fake-gcs-server", "v1.56.1"),
        start=starts.fake_gcs_server,
        purpose="the JSON API of GCS",
    ),
    Server(
        name="gcp-storage-emulator",
        protocol="gcs",
        kind="fake",
        honours_create=False,
        recipe=PypiPackage("gcp-storage-emulator", "2026.7.19"),
        start=starts.gcp_storage_emulator,
        purpose="a store that ignores preconditions, and must be refused",
    ),
    Server(
        name="azurite",
        protocol="azure",
        kind="emulator",
        recipe=NpmPackage("azurite", "3.35.0"),
        start=starts.azurite,
        purpose="Azure Blob Storage, by Microsoft's own emulator",
    ),
)


def server(name: str) -> Server:
    """Return the server of this name."""
    return {each.name: each for each in SERVERS}[name]
