"""No log, error, `repr`, event, metric or object shows a message of an encrypted stream, or one of its keys.

The tests know all secrets: the messages, the master key, and the keys that the program draws. They write,
read and verify a tier, damage it, let the key service fail, and then search all that was shown or stored.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import pickle
import shutil
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from command_line import offload
from made_fragments import Draft
from offload_keys import LocalKeys
from osiris_writer import TIMESTAMP_MS, write_stream

from offload import (
    Compression,
    Denied,
    NoSuchKey,
    OffloadError,
    Plugins,
    Session,
    StreamReader,
    Throttled,
    TierOptions,
    TryAgain,
)
from offload.copy.sync import sync
from offload.formats.chunk_writer import build_chunk
from offload.ground.env import Env
from offload.upkeep.verify.tier import verify

MASTER: Final = hashlib.sha256(b"master").digest()
MESSAGES: Final = [
    b'{"iban":"DE%s","text":"%s"}' % (hashlib.sha256(b"%d" % number).hexdigest().encode(), b"salary " * 60)
    for number in range(600)
]
CHUNKS: Final = [
    build_chunk(MESSAGES[at : at + 10], offset=at, timestamp_ms=TIMESTAMP_MS + at, epoch=1)
    for at in range(0, len(MESSAGES), 10)
]
PIECE_SIZE_BYTES: Final = 8
"""So many bytes of a secret in a row are a leak."""


def spellings(secret: bytes) -> Iterator[bytes]:
    """Yield each piece of a secret as a program could show it."""
    pieces = [secret[at : at + PIECE_SIZE_BYTES] for at in range(0, len(secret), PIECE_SIZE_BYTES)]
    for piece in pieces[: len(secret) // PIECE_SIZE_BYTES]:
        yield from (piece, piece.hex().encode(), piece.hex().upper().encode(), repr(piece)[2:-1].encode())
    for shift in range(3):  # a base64 text depends on where in it the secret begins
        text = base64.b64encode(bytes(shift) + secret)[4:-4]
        yield from (text[at : at + 12] for at in range(0, len(text) - 11, 12))


class Secrets:
    """All secrets of a test. As a source of random bytes, it notes what it returns."""

    def __init__(self) -> None:
        self.drawn: list[bytes] = []

    def token(self, size_bytes: int) -> bytes:
        self.drawn.append(hashlib.sha256(b"drawn %d" % len(self.drawn)).digest()[:size_bytes])
        return self.drawn[-1]

    def found_in(self, shown: bytes) -> list[bytes]:
        texts = [MESSAGES[0], MESSAGES[305], MESSAGES[-1], MASTER, *self.drawn]
        return [spelling for text in texts for spelling in spellings(text) if spelling in shown]


class Shown:
    """All that a program showed: texts of errors with their causes, events, and what else a test adds."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.errors = 0

    def add(self, thing: object) -> None:
        self.parts += [repr(thing).encode(), str(thing).encode()]
        with suppress(TypeError, AttributeError, pickle.PicklingError):  # it holds a key, or a file
            self.parts.append(pickle.dumps(thing))

    async def outcome(self, work: Awaitable[object]) -> None:
        try:
            self.add(await work)
        except OffloadError as error:
            self.errors += 1
            self.add(error)
            self.parts.append("".join(traceback.format_exception(error)).encode())


@dataclass
class World:
    """A tier in a folder, a source with the messages, and a key service in files."""

    folder: Path
    secrets: Secrets
    shown: Shown = field(default_factory=Shown)
    plugins: Plugins = field(default_factory=Plugins.find)

    @property
    def tier(self) -> Path:
        return self.folder / "tier"

    def session(self, keys: str | None = "keys") -> Session:
        url = None if keys is None else f"keyfile:{self.folder / keys}"
        return Session(keys=url, plugins=self.plugins, emit=self.shown.add)

    async def sync(self, codec: str) -> None:
        options = TierOptions(encrypt="main", compression=Compression.parse(codec))
        async with self.session() as session:
            source = session.source(f"rabbitmq://{self.folder / 'orders'}")
            async with session.tier(str(self.tier), options=options) as offloader:
                async for report in sync(source, offloader, emit=session.emit):
                    self.shown.add(report)
                    if report.error is not None:
                        raise report.error

    async def read(self, keys: str | None = "keys") -> None:
        async with self.session(keys) as session, session.tier(str(self.tier)) as offloader:
            reader = await StreamReader.open(offloader, "orders", emit=session.emit)
            async for _ in reader.messages(0):
                pass
            for thing in (session, session.metrics, offloader, vars(offloader), reader):
                self.shown.add(thing)

    async def verify(self, keys: str | None = "keys") -> None:
        async with self.session(keys) as session, session.tier(str(self.tier)) as offloader:
            report = await verify(offloader)
            for thing in (report, *report.damages, *report.unchecked.values()):
                self.shown.add(thing)
            if report.damages:
                raise report.damages[0]

    async def use(self, *services: str | None) -> None:
        """Read and verify with each of these key services, and note how it ends."""
        for keys in services:
            await self.shown.outcome(self.read(keys))
            await self.shown.outcome(self.verify(keys))

    def leaks(self) -> list[bytes]:
        """Return the secrets in all that was shown, and in all objects."""
        objects = [path.read_bytes() for path in self.tier.rglob("*") if path.is_file()]
        return self.secrets.found_in(b"\n".join([*self.shown.parts, *objects]))


def damages(tier: Path) -> Iterator[Callable[[], object]]:
    """Yield damages, each as a function: accidents, and changes by somebody who makes the checksums right."""
    [fragment] = tier.rglob("*.fragment")
    raw = fragment.read_bytes()
    for at in (0, len(raw) // 2, -300, -1):
        yield partial(fragment.write_bytes, flipped(raw, at))
    yield partial(fragment.write_bytes, raw[:-1])
    yield fragment.unlink
    for name in ("index", "checksums", "blocks", "description", "key", "seal"):
        draft = Draft.of(raw)
        draft.section(name).body = flipped(draft.section(name).body, 0)
        yield partial(fragment.write_bytes, draft.sealed())
    draft = Draft.of(raw)
    draft.data = flipped(draft.data, 300)
    yield partial(fragment.write_bytes, draft.sealed())
    for path in (max(tier.rglob("root.*")), tier / "tier.anchor", tier / "orders" / "stream.anchor"):
        yield partial(path.write_bytes, flipped(path.read_bytes(), 40))
    one, two = tier.rglob("keys/*")
    yield lambda: [path.write_bytes(flipped(path.read_bytes(), -60)) for path in (one, two)]
    yield partial(shutil.rmtree, one.parent)


def flipped(raw: bytes, at: int) -> bytes:
    """Return bytes with one bit flipped."""
    changed = bytearray(raw)
    changed[at] ^= 1
    return bytes(changed)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with a log at the level DEBUG, and with a master key and a wrong one for the same label."""
    for folder, key in (("keys", MASTER), ("wrong", hashlib.sha256(b"wrong").digest())):
        (tmp_path / folder).mkdir(mode=0o700)
        (tmp_path / folder / "main").touch(mode=0o600)
        (tmp_path / folder / "main").write_bytes(base64.b64encode(key))
    write_stream(tmp_path / "orders", CHUNKS)
    found = World(tmp_path, Secrets())
    monkeypatch.setattr("offload.opening.session.Env", partial(Env, secret=found.secrets.token))
    return found


@pytest.mark.parametrize("spelling", [bytes, bytes.hex, base64.b64encode, repr, lambda raw: b"x" + raw[:90]])
def test_the_search_finds_each_spelling_of_a_secret(spelling: Callable[[bytes], object]) -> None:
    secrets = Secrets()
    for secret in (MESSAGES[0], MASTER, secrets.token(32)):
        shown = spelling(secret)

        assert secrets.found_in(shown if isinstance(shown, bytes) else str(shown).encode())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_nothing_shows_a_message_or_a_key(world: World, codec: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.run(world.sync(codec))
    asyncio.run(world.use("keys", "wrong", None))

    assert len(world.secrets.drawn) == 3  # a key that tries the master key, a stream's, and a fragment's
    assert world.shown.errors == 2  # a read with the wrong key, and one without; verify reports them
    assert "FragmentUploaded" in caplog.text
    world.shown.add(caplog.text)
    assert world.leaks() == []


def test_no_damage_makes_a_message_or_a_key_visible(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        await world.sync("zstd")
        shutil.copytree(world.tier, world.folder / "sound")
        for damage in [*damages(world.tier)]:
            damage()
            before = world.shown.errors
            await world.use("keys")
            assert world.shown.errors > before
            shutil.rmtree(world.tier)
            shutil.copytree(world.folder / "sound", world.tier)

    caplog.set_level(logging.DEBUG)
    asyncio.run(scenario())

    world.shown.add(caplog.text)
    assert world.leaks() == []


@pytest.mark.parametrize("kind", [Denied, TryAgain, NoSuchKey, Throttled])
@pytest.mark.parametrize("call", ["wrap", "unwrap"])
def test_an_error_of_a_key_service_is_shown_without_its_cause(
    world: World, kind: type[OffloadError], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cause is an error of an SDK, which may show the request or the reply."""

    async def fail(self: LocalKeys, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        try:
            raise ValueError(f"invalid: {key!r} and {MASTER!r}")
        except ValueError as error:
            raise kind("the service says no") from error

    monkeypatch.setattr(LocalKeys, call, fail)
    asyncio.run(world.shown.outcome(world.sync("zstd")))

    assert world.shown.errors == 1
    assert b"stream 'orders': the service says no" in b"".join(world.shown.parts)
    assert world.leaks() == []


def test_no_command_prints_a_message_or_a_key_unless_it_is_asked_to_read(world: World) -> None:
    keys = ("--keys", f"keyfile:{world.folder / 'keys'}")
    source, wrong = f"rabbitmq://{world.folder / 'orders'}", ("--keys", f"keyfile:{world.folder / 'wrong'}")
    for command in (
        ("sync", source, world.tier, *keys, "--encrypt", "main", "--compress", "zstd"),
        ("ls", world.tier, "--json"),
        ("inspect", world.tier, "orders", "--verbose"),
        ("verify", world.tier, *keys, "--json"),
        ("compact", world.tier, *keys),
        ("copy", world.tier, world.folder / "copied", *keys, "--encrypt", "main"),
    ):
        ran = offload("--debug", *command)
        assert ran.code == 0, ran.stderr
        world.shown.add(ran.text + ran.stderr)
    for read_keys in (keys, wrong, ()):
        ran = offload("read", world.tier, "orders", "--decode", "amqp", *read_keys)
        world.shown.add(ran.stderr)
        with suppress(OffloadError):
            world.shown.add(offload("--debug", "verify", world.tier, *read_keys).stderr)

    assert world.leaks() == []
