"""`offload sync`: bring a tier up to date with a broker's local data."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from offload.cli.arguments import Options, Tier
from offload.cli.output import counted, one_line, print_error, print_json, print_note, size_text, stderr
from offload.cli.state import State, Usage, run_async
from offload.events import Event, FragmentUploaded
from offload.tier.object_store_offloader import TierOptions
from offload.tier.place import TierPlan
from offload.tier.sync import StreamReport
from offload.tier.sync import sync as sync_all

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
AtOnce = Annotated[
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
    at_once: AtOnce = UPLOADS_MAX,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy what is new from SOURCE to TIER. Running it again copies only what came since."""
    state: State = context.obj
    how = TierOptions(uploads_max=at_once)
    plan = TierPlan(commit_store=commit_store, hashed_keys=hashed_keys)
    parts = _parts(stream or [], continue_as)
    command = ["offload", "sync", source, tier, *_shown(option or [])]

    async def main() -> bool:
        good = True
        with _progress() as advance:
            opened = state.source(source)
            async with state.tier(
                tier, option, how=how, plan=plan, emit=_listener(state, advance)
            ) as offloader:
                async for report in sync_all(
                    opened, offloader, only=stream or [], continue_as=parts, extra_metadata=_metadata()
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


def _listener(state: State, advance: Callable[[int, str], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, FragmentUploaded):
            advance(event.entry.stored_size_bytes, event.stream)
        state.plugins.emit(event)

    return listen


def _progress() -> AbstractContextManager[Callable[[int, str], None]]:
    """Where stderr is a terminal, a live line of what was uploaded; elsewhere silence."""
    return _Bar() if stderr().is_terminal else nullcontext(lambda size_bytes, stream: None)


class _Bar(AbstractContextManager[Callable[[int, str], None]]):
    def __init__(self) -> None:
        # The description holds a stream's name, in which brackets are no markup.
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TextColumn("{task.fields[size]}"))
        self._progress = Progress(
            *columns, TransferSpeedColumn(), TimeElapsedColumn(), console=stderr(), transient=True
        )
        self._task = self._progress.add_task("uploading", total=None, size="0 B")

    def __enter__(self) -> Callable[[int, str], None]:
        self._progress.start()
        return self._advance

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def _advance(self, size_bytes: int, stream: str) -> None:
        self._progress.advance(self._task, size_bytes)
        done = self._progress.tasks[0].completed
        self._progress.update(
            self._task, description=f"uploading {one_line(stream)}", size=size_text(int(done))
        )
