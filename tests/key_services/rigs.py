"""The key services that the contract suite runs on: how each is opened, counted and broken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pytest
from key_services.imitations import (
    TOKEN,
    GoogleKms,
    Imitation,
    KeyVault,
    KmsBefore,
    Plain,
    StaticToken,
    Transit,
)
from offload_keys.awskms import AwsKeys
from offload_keys.azurekeyvault import AzureKeys
from offload_keys.gcpkms import GoogleKeys
from offload_keys.local import open_files
from offload_keys.remote import RemoteKeys
from offload_keys.vault import VaultKeys
from servers.session import Session
from wire import wire

from offload.contracts.keys import KeyService
from offload.ground.env import Env

T = TypeVar("T")

RING: Final = "projects/p/locations/l/keyRings/r"


async def at_once(seconds: float) -> None:
    """Sleep for no time."""


ENV: Final = Env(sleep=at_once)


@dataclass(frozen=True)
class Rig:
    """A key service and what is behind it."""

    open: Callable[[], KeyService]
    imitation: Imitation | None
    """What answers; None for a folder and for a server that cannot be broken."""

    kept_days: float
    """How long the service keeps a destroyed key."""

    def ask(self, call: Callable[[KeyService], Awaitable[T]], deadline_seconds: float | None = None) -> T:
        """Return what `call` returns for a new client of the service."""

        async def run() -> T:
            service = self.open()
            if deadline_seconds is not None:
                assert isinstance(service, RemoteKeys)
                service.deadline_seconds = deadline_seconds
            try:
                return await call(service)
            finally:
                await service.aclose()

        return asyncio.run(run())


@contextmanager
def folder(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    place.chmod(0o700)
    yield Rig(lambda: open_files(f"keyfile:{place}"), None, 0)


@contextmanager
def aws(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    patch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    patch.setenv("AWS_SECRET_ACCESS_KEY", TOKEN)
    before = KmsBefore(servers.running("moto").endpoint)
    with wire(before.answer) as server:
        url = f"awskms:?region=eu-west-1&days=9&endpoint={server.url}"
        yield Rig(lambda: AwsKeys(url, env=ENV), before, 9)


@contextmanager
def google(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    imitation = GoogleKms()
    with imitation.serving() as address:
        yield Rig(lambda: GoogleKeys(f"gcpkms:{RING}?endpoint={address}", env=ENV), imitation, 30)


@contextmanager
def azure(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    imitation = KeyVault()
    with wire(imitation.answer) as server:

        def opened() -> AzureKeys:
            url, transport = "azurekeyvault:https://fake.vault.azure.net", Plain(server.url)
            return AzureKeys(url, env=ENV, credential=StaticToken(), transport=transport)

        yield Rig(opened, imitation, 90)


@contextmanager
def vault(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    patch.setenv("VAULT_TOKEN", TOKEN)
    imitation = Transit()
    with wire(imitation.answer) as server:
        yield Rig(lambda: VaultKeys(f"vault:{server.url}/transit", env=ENV), imitation, 0)


@contextmanager
def engine(place: Path, patch: pytest.MonkeyPatch, servers: Session) -> Iterator[Rig]:
    from servers.transit import running_engine

    patch.setenv("BAO_TOKEN", TOKEN)
    with running_engine(place, TOKEN) as address:
        yield Rig(lambda: VaultKeys(f"vault:{address}/transit", env=ENV), None, 0)
