"""`offload status`: how far a tier is behind a source, and the questions of an incident."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from offload.cli.kit.arguments import Keys, Options, SourceOptionPairs
from offload.cli.kit.ending import Usage
from offload.cli.kit.gaps import gaps_text
from offload.cli.kit.output import counted, one_line, print_error, print_json, print_table, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.run import ConfigOrSource, OnTier, configuration_of
from offload.errors import Misuse, NotOffloaded, OffloadError

if TYPE_CHECKING:
    from offload.cli.questions import Answer
    from offload.service.asking import AskedProcess
    from offload.service.config import RunConfig
    from offload.service.preview import StreamPreview

WithUnused = Annotated[
    bool,
    typer.Option(
        "--unused", help="Also list all objects of TIER, and add up the size of those that a sweep deletes."
    ),
]
Unused: TypeAlias = "dict[str, int] | None"
"""The bytes of unused objects by stream. None if nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    streams: list[StreamPreview]
    left_out: int
    process: AskedProcess
    waste: Unused


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
    for each in seen.streams:
        if each.error is not None:
            print_error(OffloadError(each.problem))
    return 1 if any(each.error for each in seen.streams) else 0


async def _seen(state: CommandContext, config: RunConfig, *, with_unused: bool) -> _Seen:
    from offload.cli.ctl import door_near
    from offload.cli.run_check import previews_of  # needs the extra `run`, which `configuration_of` asks for
    from offload.service.asking import ask_process
    from offload.service.assembly import open_service
    from offload.upkeep.sweep.tier import sweep

    try:
        opened = open_service(state.session, config, state.session.emit)
    except Misuse as error:
        raise Usage(str(error)) from error
    found = await opened.source.streams()
    streams = [each for each in found if config.of(each.name).follow]
    seen = await previews_of(opened, streams)
    waste: Unused = None
    if with_unused:
        try:
            report = await sweep(opened.tier, dry_run=True, env=state.session.env)
        except NotOffloaded:  # nothing was ever copied
            waste = {}
        else:
            rows = report.streams
            waste = {row.stream: row.waits.bytes.total() + row.deleted.bytes.total() for row in rows}
    process = await ask_process(config.address, door_near(config))
    return _Seen(streams=seen, left_out=len(found) - len(streams), process=process, waste=waste)


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
    from offload.cli.run_check import PREVIEW_HEADS, cost_text, preview_row
    from offload.service.costs import cost_of

    rows = [
        [*preview_row(each), size_text(each.stored_size_bytes) if each.is_known else "not known"]
        for each in seen.streams
    ]
    heads = [*PREVIEW_HEADS, "stored"]
    if seen.process.status is not None:
        heads.append("process")
        for row, each in zip(rows, seen.streams, strict=True):
            row.append(seen.process.states.get(each.stream, "-"))
    if seen.waste is not None:
        heads.append("unused")
        for row, each in zip(rows, seen.streams, strict=True):
            row.append(size_text(seen.waste.get(each.stream, 0)))
    print_table(heads, rows)
    behind = sum(each.lag_records > 0 for each in seen.streams)
    unknown = sum(not each.is_known for each in seen.streams)
    beyond = f"; not known for {counted(unknown, 'stream')}" if unknown else ""
    print(one_line(f"{counted(len(seen.streams), 'stream')}, {behind} behind {config.source}{beyond}"))
    for each in seen.streams:
        if each.begins_part:
            print(one_line(f"{each.stream}: the source does not continue it, so it goes on in a new part"))
        if each.gaps:
            command = shlex.join(["offload", "gaps", config.tier, each.stream])
            print(one_line(f"{each.stream}: {gaps_text(each.gaps)}: {command}"))
    print(cost_text(cost_of(config, seen.streams)))
    for said in answers:
        print(one_line(f"{said.question} {said.answer}"))
        print(one_line(f"    {said.command}"))


def _print_json(config: RunConfig, seen: _Seen, answers: list[Answer]) -> None:
    from offload.cli.run_check import cost_as_json
    from offload.service.costs import cost_of, work_as_json
    from offload.service.preview import as_json

    cost = cost_of(config, seen.streams)
    unused = seen.waste or {}
    print_json(
        {
            "source": config.source,
            "tier": config.tier,
            "streams": [
                as_json(each)
                | work_as_json(each, config)
                | ({} if seen.waste is None else {"unused_bytes": unused.get(each.stream, 0)})
                for each in seen.streams
            ],
            "cost_per_month": None if cost is None else cost_as_json(cost),
            "questions": [asdict(each) for each in answers],
            "process": seen.process.status,
        },
        indent=2,
    )
