"""`offload demo`: copy, read, verify and damage a sample in a few seconds.

A RabbitMQ broker wrote the sample. It comes from the first source plugin that has one; the tier is a folder.
"""

from __future__ import annotations

import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from offload.cli.kit.output import counted, error_line, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.plugin import SourceType
from offload.copy.sync import sync
from offload.ground.errors import Corrupt, NotOffloaded
from offload.model.manifest import Manifest
from offload.model.position import AtOffset, AtTime, iso_of
from offload.read.reader import Messages, StreamReader
from offload.upkeep.verify.tier import verify


def demo(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="Make the tier here and keep it. Default: a temporary folder."),
    ] = None,
) -> None:
    """Offload a small RabbitMQ stream to a folder, read it back, and find a damaged byte."""
    state: CommandContext = context.obj
    if folder is not None:
        if folder.exists() and any(folder.iterdir()):
            raise NotOffloaded(f"{folder} is not empty; name a new folder for the demo")
        run_async(lambda: _Demo(state, folder).run())
        return
    with tempfile.TemporaryDirectory(prefix="offload-demo-") as temporary:
        run_async(lambda: _Demo(state, Path(temporary) / "tier").run())


class _Demo:
    def __init__(self, state: CommandContext, folder: Path) -> None:
        self._state, self._folder = state, folder
        self._step = 0

    async def run(self) -> None:
        source = self._sample()
        async with self._state.tier(str(self._folder)) as offloader:
            stream = await self._offload(source, offloader)
            manifest = await self._list(offloader, stream)
            await self._read(offloader, stream, manifest)
            await self._verify(offloader)
            await self._damage(offloader)
        print("\nDone. Next: offload sync rabbitmq://PATH-TO-STREAMS TIER, then offload --help")

    def _sample(self) -> str:
        for declared in self._state.plugins.of_kind("source"):
            declaration = declared.declaration
            if isinstance(declaration, SourceType) and declaration.sample:
                return f"{declaration.schemes[0]}://{declaration.load(declaration.sample)()}"
        raise NotOffloaded("no source plugin ships a sample; `offload plugins` shows which are installed")

    def _say(self, text: str) -> None:
        self._step += 1
        print(f"\n{self._step}. {text}")

    async def _offload(self, source: str, offloader: LedgerOffloader) -> str:
        self._say("A RabbitMQ broker wrote a small stream to disk. We copy it to a tier, here a folder:")
        print(f"   {source}\n   -> {offloader.url}")
        opened = self._state.source(source)
        async for report in sync(opened, offloader):
            if report.error is not None:
                raise report.error
            print(f"   {report.stream}: {report.uploaded_bytes} bytes in, checked chunk by chunk, committed")
            stream = report.stream
        return stream

    async def _list(self, offloader: LedgerOffloader, stream: str) -> Manifest:
        self._say("The tier describes itself. Neither the broker nor the source is needed any more:")
        manifest = await offloader.load_manifest(stream)
        covered = f"[{manifest.first_offset}, {manifest.next_offset})"
        size = size_text(manifest.stored_size_bytes)
        print(f"   {stream}: {counted(manifest.messages, 'message')} in offsets {covered}, {size}")
        return manifest

    async def _read(self, offloader: LedgerOffloader, stream: str, manifest: Manifest) -> None:
        reader = StreamReader(offloader, manifest)
        middle = (manifest.first_offset + manifest.next_offset) // 2
        self._say(f"It reads back from any offset, say {middle} ...")
        first = await self._first(reader, await reader.offset_of(AtOffset(middle)))
        time_ms = first.timestamp_ms + 1
        self._say(f"... and from any time, say {iso_of(time_ms)}, a millisecond later:")
        await self._first(reader, await reader.offset_of(AtTime(time_ms)))

    async def _first(self, reader: StreamReader, offset: int) -> Messages:
        async with aclosing(reader.messages(offset)) as batches:
            batch = await anext(batches)
        [decoded] = self._state.decoder("amqp").decode(batch.bodies[:1])
        print(f"   offset {batch.offset} at {iso_of(batch.timestamp_ms)}: {decoded.value.decode()[:60]}...")
        return batch

    async def _verify(self, offloader: LedgerOffloader) -> None:
        self._say("Verify checks every object against its checksums and the manifest:")
        report = await verify(offloader)
        print(f"   {counted(report.objects, 'object')}, {report.bytes} bytes, {len(report.damages)} damaged")

    async def _damage(self, offloader: LedgerOffloader) -> None:
        self._say("One bit of a fragment flips, as disks do:")
        victim = max(self._folder.rglob("*.fragment"))
        raw = bytearray(victim.read_bytes())
        raw[len(raw) // 4] ^= 1
        victim.write_bytes(raw)
        report = await verify(offloader)
        for damage in report.damages:
            print(f"   found: {error_line(damage)}")
        raw[len(raw) // 4] ^= 1
        victim.write_bytes(raw)
        if not report.damages:
            raise Corrupt("the demo's own damage", str(victim), expected="found", found="missed")
        print("   (the bit is restored)")
