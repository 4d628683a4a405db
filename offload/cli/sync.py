"""`offload sync`: bring a tier up to date with a broker's local data."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated

import typer

from offload.cli.kit.advising import Advice, shown_pairs
from offload.cli.kit.arguments import (
    Compress,
    Encrypt,
    Keys,
    Options,
    SourceOptionPairs,
    Tier,
    compression_of,
)
from offload.cli.kit.output import (
    counted,
    one_line,
    print_error,
    print_json,
    print_note,
    print_notes,
    print_sentence,
    size_text,
)
from offload.cli.kit.progress import CommandProgress, Show, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.events import CopyBegun, Event, FragmentUploaded, ManifestCommitted, PartBegun
from offload.contracts.source import Source
from offload.copy.sync import StreamReport, name_notes
from offload.copy.sync import sync as sync_all
from offload.native.offloader import TierOptions
from offload.native.place import TierPlan

SourceUrl = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The broker's data, for example rabbitmq:///var/lib/…/stream"),
]
Streams = Annotated[
    list[str] | None, typer.Option("--stream", metavar="STREAM", help="Only this stream. May be repeated.")
]
CommitStore = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Keep roots and anchors on this other store. Needed if TIER's own store cannot create an object "
        "only if it is absent. Give it once, when the tier is made: the tier remembers it.",
    ),
]
HashedKeys = Annotated[
    bool,
    typer.Option(
        "--hashed-keys",
        help="When the tier is made: spread its keys over sixteen folders, so that no range of a bucket "
        "gets most of the requests.",
    ),
]
NewPart = Annotated[
    bool,
    typer.Option(
        "--new-part",
        help="Continue a stream in a new part if SOURCE does not continue it: after a gap, or if SOURCE has "
        "another history. TIER keeps its data. Later syncs need no option to find the part.",
    ),
]
UPLOADS_MAX = TierOptions().uploads_max
UploadsAtOnce = Annotated[
    int,
    typer.Option(
        "--at-once",
        metavar="N",
        min=1,
        max=64,
        help="Upload this many fragments at once: 64 MiB of memory each, if the store takes objects whole.",
    ),
]


def sync(
    context: typer.Context,
    source: SourceUrl,
    tier: Tier,
    stream: Streams = None,
    new_part: NewPart = False,
    commit_store: CommitStore = "",
    hashed_keys: HashedKeys = False,
    compress: Compress = None,
    at_once: UploadsAtOnce = UPLOADS_MAX,
    encrypt: Encrypt = None,
    keys: Keys = None,
    option: Options = None,
    source_option: SourceOptionPairs = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy new data from SOURCE to TIER. A later run copies only what came since."""
    state: CommandContext = context.obj.with_keys(keys, encrypt)
    how, plan = asked_of(at_once, commit_store, compress, hashed_keys=hashed_keys, encrypt=encrypt)
    command = ["offload", "sync", source, tier, *_shown(option or [], compress, keys, encrypt)]
    command += shown_pairs("--source-option", source_option or []) + ["--new-part"] * new_part

    async def main() -> list[StreamReport]:
        with progress(json=json) as show:
            opened, listener = state.source(source, source_option), _Listener(state.plugins.emit, show)
            async with state.tier(tier, option, how=how, plan=plan, emit=listener) as offloader:
                print_notes(await name_notes(opened, offloader))
                syncing = sync_all(
                    opened,
                    offloader,
                    only=stream or [],
                    new_part=new_part,
                    extra_metadata=_metadata(),
                    emit=listener,
                )
                reports = await _told(syncing, command, json=json)
            _tell_notes(opened, reports, has_keys=keys is not None, encrypt=encrypt is not None)
            return reports

    return 1 if any(report.error is not None for report in run_async(main)) else 0


async def _told(
    syncing: AsyncGenerator[StreamReport, None], command: list[str], *, json: bool
) -> list[StreamReport]:
    """Print each report as soon as it is there. Return all of them."""
    reports = list[StreamReport]()
    async with aclosing(syncing):
        async for report in syncing:
            _show(report, command, json=json)
            reports.append(report)
    return reports


def asked_of(
    at_once: int,
    commit_store: str,
    compress: str | None,
    *,
    hashed_keys: bool,
    encrypt: str | None = None,
) -> tuple[TierOptions, TierPlan]:
    """Return the options of this run, and the layout of the tier if this run makes it."""
    compression = compression_of(compress)
    plan = TierPlan(commit_store=commit_store, hashed_keys=hashed_keys, compression=compression)
    return TierOptions(uploads_max=at_once, compression=compression, encrypt=encrypt), plan


def _shown(
    options: list[str], compress: str | None, keys: str | None = None, encrypt: str | None = None
) -> list[str]:
    """Return the options as arguments to print, without values that may be secret: the line may be logged."""
    named = {"--compress": compress, "--keys": keys, "--encrypt": encrypt}
    given = [word for name, value in named.items() if value is not None for word in (name, value)]
    return given + shown_pairs("-o", options)


def _metadata() -> dict[str, str]:
    return {"written_by": f"ledger-offload {version('ledger-offload')}"}


def _tell_notes(source: Source, reports: list[StreamReport], *, has_keys: bool, encrypt: bool) -> None:
    print_notes(source.notes)
    if reports and all(report.manifest is None and report.error is None for report in reports):
        print_note("no stream has messages yet, so nothing was written; run it again when there are some")
    _tell_clear(reports, has_keys=has_keys, encrypt=encrypt)


def _tell_clear(reports: list[StreamReport], *, has_keys: bool, encrypt: bool) -> None:
    """Print a note for each stream in the clear, if this run or the other streams expect encryption."""
    newest = {report.stream: _newest_is_encrypted(report) for report in reports}
    if not (has_keys or any(newest.values())):
        return
    for report in reports:
        if newest[report.stream] is not False:
            continue
        if encrypt and report.error is None:  # it has nothing new, or that would be encrypted
            why = "--encrypt encrypts new data only; `offload copy` to an empty place encrypts all of it"
            print_note(f"{one_line(report.stream)}: stays in the clear: {why}")
        elif report.uploaded_bytes:
            print_note(f"{one_line(report.stream)}: stored in the clear, because --encrypt was not given")


def _newest_is_encrypted(report: StreamReport) -> bool | None:
    """Return whether the newest fragment is encrypted. None if the manifest's root does not say it."""
    entries = None if report.manifest is None else report.manifest.entries
    if entries is None or not len(entries) or entries["kind"][-1] != 0:
        return None
    return bool(entries["encrypted"][-1])


def _show(report: StreamReport, command: list[str], *, json: bool) -> None:
    if json:
        print_json(report.as_json())
    elif report.error is None and report.manifest is not None:
        committed = report.manifest
        print_sentence(
            f"{report.stream}: {counted(committed.messages, 'message')} in offsets "
            f"[{committed.first_offset}, {committed.next_offset}), version {committed.version}; "
            + (f"uploaded {size_text(report.uploaded_bytes)}" if report.uploaded_bytes else "nothing new")
        )
    elif report.error is None:
        print(f"{one_line(report.stream)}: empty, nothing to copy")
    if report.error is not None:
        print_error(report.error, advice=_advice(report, command))


def _advice(report: StreamReport, command: list[str]) -> str:
    """Return what to run, and what to read. A command that was given already is not shown again."""
    if not report.can_go_on or "--new-part" in command:
        if report.error is None or report.can_go_on or "offload rebuild" in str(report.error):
            return ""  # or the error names the command itself
        source, tier, *words = command[2:]
        options = _of_tier(words)
        advice = Advice(source=source, tier=tier, options=options, check=["offload", "check", tier, *options])
        return advice.of(report.part.name, report.error)
    going_on = shlex.join([*command, "--stream", report.part.first, "--new-part"])
    # The old stream, or the target of another restore, would be archived a second time.
    check = "; first check that SOURCE is the restored stream that it continues" if report.part.behind else ""
    return f"{check}; to keep what is there and begin a new part: {going_on}"


def _of_tier(words: list[str]) -> list[str]:
    """Return those of the options that other commands of the tier take too."""
    pairs = pairwise(words)
    return [word for flag, value in pairs if flag == "-o" for word in (flag, value)]


class _Listener:
    """Passes the events of a sync to plugins and to the progress bar."""

    def __init__(self, emit: Callable[[Event], None], show: Show) -> None:
        self._emit, self._show = emit, show
        self._copies: dict[str, tuple[int, int]] = {}
        """The first offset of each copy, and its records until now."""
        self._total = self._done = self._size_bytes = 0

    def __call__(self, event: Event) -> None:
        match event:
            case PartBegun(stream=stream, part=part, first_offset=first, ended_offset=ended):
                ends = f"the part before ends at {ended}"
                print_note(f"{one_line(stream)}: part {part} begins at offset {first}; {ends}")
            case CopyBegun(stream=stream, first_offset=first, next_offset=following):
                self._copies[stream] = first, 0
                self._total += following - first
            case FragmentUploaded(stream=stream, entry=entry) if stream in self._copies:
                _, done = self._copies[stream]
                self._advance(stream, done + entry.records)
                self._size_bytes += entry.stored_size_bytes
            case ManifestCommitted(manifest=manifest) if manifest.stream in self._copies:
                # It may include fragments that an earlier run uploaded.
                first, done = self._copies[manifest.stream]
                self._advance(manifest.stream, max(done, manifest.next_offset - first))
        names = [*self._copies] if len(self._copies) < 2 else [counted(len(self._copies), "stream")]
        self._show(
            CommandProgress(
                what="uploading",
                note=" " + "".join(names),
                done=self._done,
                total=self._total,
                size_bytes=self._size_bytes,
            )
        )
        self._emit(event)

    def _advance(self, stream: str, done: int) -> None:
        first, before = self._copies[stream]
        self._copies[stream] = first, done
        self._done += done - before
