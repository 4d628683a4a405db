"""Tests of sessions with a key service: they open it once, and tiers share the keys that they unwrap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from offload_conformance.ledgers import ledger_of
from offload_keys import LocalKeys
from session_backends import plugins as other_plugins

from offload import (
    Blocking,
    Corrupt,
    Denied,
    LedgerOffloader,
    Misuse,
    Session,
    StreamReader,
    StreamWriter,
    TierOptions,
    open_tier,
)
from offload.model.labels import MasterKey
from offload.native.offloader import ObjectStoreOffloader

MASTER = "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0="
ENCRYPT = TierOptions(encrypt="main")


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_MAIN", MASTER)


async def append(session: Session, tier: Path, options: TierOptions | None = None) -> None:
    async with session.tier(str(tier), options=options) as offloader:
        await append_to(offloader)


async def append_to(offloader: LedgerOffloader) -> StreamWriter:
    writer = await StreamWriter.claim(offloader, "orders")
    await writer.offload([ledger_of(10, first_offset=writer.manifest.next_offset)])
    return writer


async def read(session: Session, tier: Path, options: TierOptions | None = None) -> int:
    async with session.tier(str(tier), options=options) as offloader:
        reader = await StreamReader.open(offloader, "orders")
        return sum([len(batch.bodies) async for batch in reader.messages(0)])


def test_a_session_with_keys_writes_and_reads_an_encrypted_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Session(keys="keyenv:") as session:
            await append(session, tmp_path, ENCRYPT)
        async with Session(keys="KEYENV://") as session:
            await append(session, tmp_path)
            assert await read(session, tmp_path) == 20

    asyncio.run(scenario())
    assert not any(b"." * 8 in path.read_bytes() for path in tmp_path.rglob("*.fragment"))


def test_a_tier_of_encrypted_fragments_only_reads_and_writes_no_plain_one(tmp_path: Path) -> None:
    strict = TierOptions(encrypted_only=True)

    async def scenario() -> None:
        async with Session(keys="keyenv:") as session:
            await append(session, tmp_path)
            with pytest.raises(Denied, match="no key to encrypt it; name a master key with --encrypt"):
                await append(session, tmp_path, strict)
            with pytest.raises(Corrupt, match="expected encrypted, found in the clear") as caught:
                await read(session, tmp_path, strict)
            assert await read(session, tmp_path) == 10
            assert caught.value.stream == "orders"

    asyncio.run(scenario())


def test_the_tiers_of_a_session_unwrap_a_key_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, unwrap = [], LocalKeys.unwrap

    async def counted(self: LocalKeys, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        calls.append(label)
        return await unwrap(self, label, wrapped, context)

    monkeypatch.setattr(LocalKeys, "unwrap", counted)

    async def scenario() -> None:
        async with Session(keys="keyenv:") as session:
            await append(session, tmp_path, ENCRYPT)
            assert [await read(session, tmp_path) for _ in range(3)] == [10] * 3

    asyncio.run(scenario())
    assert calls == ["main"] * 2  # a key that tries the master key before the tier is made, and the stream's


def test_open_tier_takes_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_tier(str(tmp_path), keys="keyenv:", options=ENCRYPT) as tier:
            assert isinstance(tier, ObjectStoreOffloader)
            assert tier.ring is not None
            assert tier.ring.new == MasterKey("main")

    asyncio.run(scenario())


def test_the_blocking_facade_takes_keys(tmp_path: Path) -> None:
    with Blocking(str(tmp_path), keys="keyenv:", options=ENCRYPT) as tier:
        opened = tier.catalogue
        assert isinstance(opened, ObjectStoreOffloader)
        assert opened.ring is not None


async def in_a_session(tier: str) -> None:
    async with Session(keys="keyenv:") as session, session.tier(tier), session.tier(tier):
        await session.aclose()


async def with_a_service_of_its_own(tier: str) -> None:
    async with Session() as session, session.tier(tier, keys="keyenv:") as opened:
        await opened.aclose()


async def left_open_in_a_session(tier: str) -> None:
    async with Session() as session:
        session.tier(tier, keys="keyenv:", options=ENCRYPT)


async def alone(tier: str) -> None:
    async with open_tier(tier, keys="keyenv:") as opened:
        await opened.aclose()


async def blocking(tier: str) -> None:
    with Blocking(tier, keys="keyenv:") as opened:
        opened.close()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[LocalKeys]:
    """The key services in the order in which they are closed."""
    found: list[LocalKeys] = []

    async def close(self: LocalKeys) -> None:
        found.append(self)

    monkeypatch.setattr(LocalKeys, "aclose", close)
    return found


@pytest.mark.parametrize(
    "use", [in_a_session, with_a_service_of_its_own, left_open_in_a_session, alone, blocking]
)
def test_a_key_service_is_closed_once(
    tmp_path: Path, closed: list[LocalKeys], use: Callable[[str], Coroutine[Any, Any, None]]
) -> None:
    asyncio.run(use(str(tmp_path)))

    assert len(closed) == 1


def test_a_tier_that_is_closed_leaves_the_sessions_key_service_open(
    tmp_path: Path, closed: list[LocalKeys]
) -> None:
    async def scenario() -> None:
        async with Session(keys="keyenv:") as session:
            async with session.tier(str(tmp_path)), session.tier(str(tmp_path), keys="keyenv:"):
                pass
            assert len(closed) == 1
        assert len(closed) == 2

    asyncio.run(scenario())


def test_a_tier_may_have_another_key_service_than_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "keys"
    other.mkdir(mode=0o700)
    (other / "main").touch(mode=0o600)
    (other / "main").write_text(MASTER.replace("b", "c"))

    async def scenario() -> None:
        async with Session(keys="keyenv:") as session:
            await append(session, tmp_path / "tier", ENCRYPT)
            options, keys = TierOptions(encrypt="main"), f"keyfile:{other}"
            async with session.tier(str(tmp_path / "tier"), keys=keys, options=options) as tier:
                with pytest.raises(Denied, match="did not wrap this key"):
                    await append_to(tier)
            assert await read(session, tmp_path / "tier") == 10

    asyncio.run(scenario())


def test_a_forked_process_does_not_use_the_keys_of_its_parent_process(
    tmp_path: Path, closed: list[LocalKeys]
) -> None:
    async def scenario() -> None:
        async with open_tier(str(tmp_path), keys="keyenv:", options=ENCRYPT) as tier:
            writer = await append_to(tier)
            assert isinstance(tier, ObjectStoreOffloader)
            assert tier.ring is not None
            tier.ring._pid += 1  # the state that a child process finds
            with pytest.raises(Misuse, match="the keys of streams do not survive a fork"):
                await writer.offload([ledger_of(10, first_offset=10)])
            reader = await StreamReader.open(tier, "orders")
            with pytest.raises(Misuse, match="the keys of streams do not survive a fork"):
                [_ async for _ in reader.messages(0)]
            await tier.ring.aclose()
            assert not closed
            tier.ring._pid -= 1

    asyncio.run(scenario())


@pytest.mark.parametrize("options", [ENCRYPT, TierOptions(encrypted_only=True)])
def test_encryption_without_a_key_service_is_refused(tmp_path: Path, options: TierOptions) -> None:
    with pytest.raises(Misuse, match="encryption needs a key service"):
        open_tier(str(tmp_path), options=options)


def test_a_label_that_could_be_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="is no label of a key"):
        open_tier(str(tmp_path), keys="keyenv:", options=TierOptions(encrypt="../x"))


@pytest.mark.parametrize("url", ["", "keys", "/etc/keys", "nosuch:x", "s3://bucket"])
def test_keys_that_no_plugin_serves_are_refused(url: str) -> None:
    with pytest.raises(Misuse, match="key service"):
        Session(keys=url)


@pytest.mark.parametrize(
    "url",
    ["vault:https://root:secret@host/x", "vault:secret@host", "keyfile://secret@/etc", "x://a:secret@b"],
)
def test_a_login_in_the_url_of_a_key_service_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Misuse, match="has no login") as caught:
        Session(keys=url)
    assert "secret" not in str(caught.value)


def test_an_at_sign_in_the_path_of_a_key_file_is_no_login() -> None:
    Session(keys="keyfile:/etc/keys@work")


def test_encryption_is_refused_for_a_backend_that_opens_tiers_by_itself() -> None:
    with pytest.raises(Misuse, match="cannot honour encrypt"):
        open_tier("own://x", plugins=other_plugins(), options=ENCRYPT)


def test_a_key_service_is_refused_for_a_tier_that_its_backend_opens_by_itself() -> None:
    with pytest.raises(Misuse, match="cannot honour keys"):
        open_tier("own://x", plugins=other_plugins(), keys="keyenv:")
