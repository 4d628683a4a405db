"""`offload sync`: bring a tier up to date with a broker's local data."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_error, print_json, print_note, size_text
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.events import CopyBegun, Event, FragmentUploaded, ManifestCommitted
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan
from offload.streams.sync import StreamReport
from offload.streams.sync import sync as sync_all

SECRETS: Final = {"key", "secret", "token", "password", "string", "proxy"}
"""Words in the names of options whose values may be secret."""

SourceUrl = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The broker's data, for example rabbitmq:///var/lib/…/stream"),
]
Streams = Annotated[
    list[str] | None, typer.Option("--stream", metavar="STREAM", help="Only this stream; may be repeated.")
]
CommitStore = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Keep roots and anchors on this other store, for a TIER on a store that cannot create only "
        "if absent. Needed once, when the tier is made; the tier remembers it.",
    ),
]
HashedKeys = Annotated[
    bool,
    typer.Option(
        "--hashed-keys",
        help="Make the tier with its keys spread over sixteen folders, against hot ranges of a bucket.",
    ),
]
ContinueAs = Annotated[
    str | None,
    typer.Option(
        metavar="NEW",
        help="Sync the one --stream to TIER under this new name, after a sync that stopped because SOURCE "
        "does not continue it. What TIER holds under the old name stays. Repeat it with every later sync.",
    ),
]
UPLOADS_MAX = TierOptions().uploads_max
UploadsAtOnce = Annotated[
    int,
    typer.Option("--at-once", metavar="N", min=1, max=64, help="Fragments uploaded at once, of some 64 MiB."),
]


def sync(
    context: typer.Context,
    source: SourceUrl,
    tier: Tier,
    stream: Streams = None,
    continue_as: ContinueAs = None,
    commit_store: CommitStore = "",
    hashed_keys: HashedKeys = False,
    at_once: UploadsAtOnce = UPLOADS_MAX,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy what is new from SOURCE to TIER. Running it again copies only what came since."""
    state: CommandContext = context.obj
    how = TierOptions(uploads_max=at_once)
    plan = TierPlan(commit_store=commit_store, hashed_keys=hashed_keys)
    parts = _parts(stream or [], continue_as)
    command = ["offload", "sync", source, tier, *_shown(option or [])]

    async def main() -> bool:
        good = True
        with progress(json=json) as show:
            opened, listener = state.source(source), _Listener(state.plugins.emit, show)
            async with state.tier(tier, option, how=how, plan=plan, emit=listener) as offloader:
                async for report in sync_all(
                    opened,
                    offloader,
                    only=stream or [],
                    continue_as=parts,
                    extra_metadata=_metadata(),
                    emit=listener,
                ):
                    _show(report, command, json=json)
                    good &= report.error is None
            for note in opened.notes:
                print_note(note)
        return good

    return 0 if run_async(main) else 1


def _parts(streams: list[str], continue_as: str | None) -> dict[str, str]:
    if continue_as is None:
        return {}
    if len(streams) != 1:
        raise Usage("--continue-as needs one --stream: the one that goes on under the new name")
    return {streams[0]: continue_as}


def _shown(options: list[str]) -> list[str]:
    """The options as arguments, for a line that may end in a log: without what may be secret."""
    pairs = [option.partition("=") for option in options]
    return [
        word
        for name, _, value in pairs
        for word in ("-o", f"{name}={'...' if SECRETS & set(name.split('_')) else value}")
    ]


def _metadata() -> dict[str, str]:
    return {"written_by": f"ledger-offload {version('ledger-offload')}"}


def _show(report: StreamReport, command: list[str], *, json: bool) -> None:
    if json:
        print_json(report.as_json())
    elif report.error is None and report.manifest is not None:
        committed = report.manifest
        print(
            f"{one_line(report.stream)}: {counted(committed.messages, 'message')} in offsets "
            f"[{committed.first_offset}, {committed.next_offset}), version {committed.version}; "
            + (f"uploaded {size_text(report.uploaded_bytes)}" if report.uploaded_bytes else "nothing new")
        )
    elif report.error is None:
        print(f"{one_line(report.stream)}: empty, nothing to copy")
    if report.error is not None:
        print_error(report.error, advice=_advice(report, command))


def _advice(report: StreamReport, command: list[str]) -> str:
    """The command that goes on where the source does not continue the stream."""
    if report.continue_as is None:
        return ""
    going_on = shlex.join([*command, "--stream", report.source_stream, "--continue-as", report.continue_as])
    return f"; to keep that archive and go on under a new name: {going_on}"


class _Listener:
    """Hears what a sync does, for plugins and for the bar."""

    def __init__(self, emit: Callable[[Event], None], show: Show) -> None:
        self._emit, self._show = emit, show
        self._stream, self._first, self._total = "", 0, 0
        self._done = self._size_bytes = 0

    def __call__(self, event: Event) -> None:
        match event:
            case CopyBegun(stream=stream, first_offset=first, next_offset=following):
                self._stream, self._first, self._total, self._done = stream, first, following - first, 0
            case FragmentUploaded(entry=entry):
                self._done += entry.records
                self._size_bytes += entry.stored_size_bytes
            case ManifestCommitted(manifest=manifest):  # also adopts what an earlier run uploaded
                self._done = max(self._done, manifest.next_offset - self._first)
        what = f"uploading {self._stream}"
        self._show(
            CommandProgress(what=what, done=self._done, total=self._total, size_bytes=self._size_bytes)
        )
        self._emit(event)
