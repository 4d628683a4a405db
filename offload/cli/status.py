"""`offload status`: how far a tier is behind a source, and the questions of an incident."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.kit.advising import Advice
from offload.cli.kit.arguments import Keys, Options, SourceOptionPairs
from offload.cli.kit.ending import Usage
from offload.cli.kit.gaps import gaps_text
from offload.cli.kit.output import (
    counted,
    one_line,
    print_error,
    print_json,
    print_sentence,
    print_table,
    size_text,
)
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.run import ConfigOrSource, OnTier, advice_of, configuration_of
from offload.ground.errors import Misuse, NotOffloaded, OffloadError
from offload.model.own_names import labels_of, with_own_names

if TYPE_CHECKING:
    from offload.cli.questions import Answer
    from offload.contracts.offloader import LedgerOffloader
    from offload.service.client import AskedProcess
    from offload.service.config import RunConfig
    from offload.service.preview import StreamPreview

WithUnused = Annotated[
    bool,
    typer.Option(
        "--unused", help="Also list all objects of TIER, and add up the size of those that a sweep deletes."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unused:
    """The bytes of unused objects by stream, and why they are not known for others."""

    bytes: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unlisted: str = ""
    """Why it is not known for any stream."""

    def of(self, stream: str) -> tuple[int | None, str | None]:
        """Return the bytes of a stream, or None and the reason."""
        reason = self.unlisted or self.unknown.get(stream)
        return (None, reason) if reason else (self.bytes.get(stream, 0), None)

    def why(self) -> str:
        """Return why something is not known. Empty if all is known."""
        return self.unlisted or next(iter(self.unknown.values()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    streams: list[StreamPreview]
    left_out: int
    process: AskedProcess
    unused: _Unused | None
    """None if nobody asked."""


def status(
    context: typer.Context,
    source: ConfigOrSource,
    tier: OnTier = None,
    unused: WithUnused = False,
    keys: Keys = None,
    option: Options = None,
    source_option: SourceOptionPairs = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Show how far TIER is behind SOURCE, and answer what an incident asks. Changes nothing."""
    state: CommandContext = context.obj
    pairs = {"options": option, "source_options": source_option}
    config = configuration_of(source, tier, keys, {}, pairs)
    state.with_keys(config.keys).is_quiet = json
    seen = run_async(lambda: _seen(state, config, with_unused=unused))
    answers = _answers([source] if tier is None else [source, tier], config, seen)
    (_print_json if json else _show)(config, seen, answers)
    return _errors(seen, advice_of(config, source, tier, is_running=False))


def _errors(seen: _Seen, advice: Advice) -> int:
    """Print each error once, and return the exit code: 1 if anything is not known."""
    of_errors: dict[str, list[StreamPreview]] = {}
    for each in seen.streams:
        if each.error is not None:
            of_errors.setdefault(str(each.error), []).append(each)
    for same in of_errors.values():
        more = f" (and {counted(len(same) - 1, 'more stream')})" if same[1:] else ""
        said = advice.of(same[0].stream, same[0].error)
        print_error(OffloadError(f"{with_own_names(same[0].problem)}{more}"), advice=said)
    unused = "" if seen.unused is None else seen.unused.why()
    if unused:
        print_error(OffloadError(f"the unused objects are not known: {unused}"))
    return 1 if of_errors or unused or not all(each.is_known for each in seen.streams) else 0


async def _seen(state: CommandContext, config: RunConfig, *, with_unused: bool) -> _Seen:
    from offload.cli.ctl import door_near
    from offload.cli.run_check import previews_of  # needs the extra `run`, which `configuration_of` asks for
    from offload.service.assembly import open_service
    from offload.service.client import ask_process

    try:
        opened = open_service(state.session, config, state.session.emit)
    except Misuse as error:
        raise Usage(str(error)) from error
    found = await opened.source.streams()
    streams = [each for each in found if config.of(each.name).follow]
    seen, process = await asyncio.gather(
        previews_of(opened, streams), ask_process(config.address, door_near(config))
    )
    unused = await _unused(state, opened.tier, seen) if with_unused else None
    return _Seen(streams=seen, left_out=len(found) - len(streams), process=process, unused=unused)


async def _unused(state: CommandContext, tier: LedgerOffloader, seen: list[StreamPreview]) -> _Unused:
    from offload.parts.whole_stream import with_parts
    from offload.upkeep.sweep.tier import sweep

    if unanswered := [each.error for each in seen if each.is_unanswered]:
        return _Unused(unlisted=str(unanswered[0]))
    try:
        rows = {row.stream: row for row in (await sweep(tier, dry_run=True, env=state.session.env)).streams}
        names = {each.stream: await with_parts(tier, [each.stream]) for each in seen}
    except NotOffloaded:  # nothing was ever copied
        return _Unused()
    except OffloadError as error:
        return _Unused(unlisted=str(error))
    found, unknown = dict[str, int](), dict[str, str]()
    for stream, parts in names.items():
        of_parts = [rows[part] for part in parts if part in rows]  # a stream that the tier lacks has none
        found[stream] = sum(row.waits.bytes.total() + row.deleted.bytes.total() for row in of_parts)
        if errors := [error for row in of_parts for error in row.errors]:
            unknown[stream] = str(errors[0])  # it ended the look at a part, so the counts are not all
    return _Unused(bytes=found, unknown=unknown)


def _answers(arguments: Sequence[str], config: RunConfig, seen: _Seen) -> list[Answer]:
    from offload.cli.questions import Incident
    from offload.service.costs import cost_of

    return Incident(
        arguments=arguments,
        tier=config.tier,
        streams=seen.streams,
        left_out=seen.left_out,
        process=seen.process,
        cost=cost_of(config, seen.streams),
    ).answers()


def _show(config: RunConfig, seen: _Seen, answers: list[Answer]) -> None:
    from offload.cli.run_check import PREVIEW_DROP, PREVIEW_HEADS, cost_text, preview_row
    from offload.service.costs import cost_of

    labels = labels_of(each.stream for each in seen.streams)
    rows = [
        [*preview_row(each, labels), size_text(each.stored_size_bytes) if each.is_known else "not known"]
        for each in seen.streams
    ]
    heads = [*PREVIEW_HEADS, "stored"]
    if seen.process.status is not None:
        heads.append("process")
        for row, each in zip(rows, seen.streams, strict=True):
            row.append(seen.process.states.get(each.stream, "-"))
    if seen.unused is not None:
        heads.append("unused")
        for row, each in zip(rows, seen.streams, strict=True):
            size_bytes, _ = seen.unused.of(each.stream)
            row.append("not known" if size_bytes is None else size_text(size_bytes))
    print_table(heads, rows, drop=PREVIEW_DROP)
    print_sentence(_summary(config, seen))
    for each in seen.streams:
        if each.begins_part:
            print_sentence(f"{labels[each.stream]}: the source does not continue it, so a new part begins")
        if each.gaps:
            command = shlex.join(["offload", "gaps", config.tier, each.stream])
            print_sentence(f"{labels[each.stream]}: {gaps_text(each.gaps)}:", command)
    for line in cost_text(cost_of(config, seen.streams)).splitlines():
        print_sentence(line)
    for said in answers:
        print_sentence(f"{said.question} {with_own_names(said.text)}")
        print(one_line(f"    {said.command}"))


def _summary(config: RunConfig, seen: _Seen) -> str:
    from offload.cli.questions import reason_of

    behind = sum(each.lag_records > 0 for each in seen.streams)
    unknown = [each.unknown_because for each in seen.streams if not each.is_known]
    streams = counted(len(seen.streams), "stream")
    if not unknown:
        return f"{streams}, {behind} behind {config.source}"
    because = f"because {reason_of(unknown)}"
    if len(unknown) == len(seen.streams):
        return f"{streams}; not known how far behind {config.source}, {because}"
    return f"{streams}, {behind} behind {config.source}; not known for {len(unknown)}, {because}"


def _unused_as_json(unused: _Unused | None, stream: str) -> dict[str, object]:
    if unused is None:
        return {}
    size_bytes, reason = unused.of(stream)
    return {"unused_bytes": size_bytes, "unused_unknown": reason}


def _print_json(config: RunConfig, seen: _Seen, answers: list[Answer]) -> None:
    from offload.cli.run_check import cost_as_json
    from offload.service.costs import cost_of, work_as_json
    from offload.service.preview import as_json

    cost = cost_of(config, seen.streams)
    print_json(
        {
            "source": config.source,
            "tier": config.tier,
            "streams": [
                as_json(each) | work_as_json(each, config) | _unused_as_json(seen.unused, each.stream)
                for each in seen.streams
            ],
            **cost_as_json(cost),
            "questions": [asdict(each) for each in answers],
            "process": seen.process.status,
        },
        indent=2,
    )
