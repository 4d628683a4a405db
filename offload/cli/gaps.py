"""`offload gaps`: list the offsets that a tier lacks between the parts of its streams."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.arguments import OnlyStream, Options, Tier
from offload.cli.kit.gaps import gap_as_json, gaps_text, records_text
from offload.cli.kit.names import known_name
from offload.cli.kit.output import print_error, print_json, print_table
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue
from offload.ground.errors import OffloadError, StreamDeleted
from offload.model.gaps import StreamGap, lost_records
from offload.model.own_names import labels_of
from offload.parts.whole_stream import WholeStream, grouped


def gaps(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each gap.")] = False,
) -> int:
    """List the records that the source deleted before TIER had them. Reads no data.

    A gap is between two parts of a stream. The exit code is 1 if records are lost, and 0 if none are.
    """
    state: CommandContext = context.obj

    async def main() -> tuple[list[StreamGap], list[OffloadError]]:
        async with state.opened_to_read(tier, option) as catalogue:
            if stream is None:
                return await _all_gaps(catalogue)
            return await WholeStream(catalogue, await known_name(catalogue, stream)).gaps(), []

    found, errors = run_async(main)
    if json:
        for gap in found:
            print_json(gap_as_json(gap))
    elif found:
        heads = ("stream", "part", "from offset", "to offset", "lost records")
        labels = labels_of(gap.stream for gap in found)
        print_table(heads, [(labels[gap.stream], *_numbers(gap)) for gap in found])
        print(gaps_text(found))
    else:
        print("no gap")
    for error in errors:
        print_error(error)
    return 1 if errors or lost_records(found) else 0


async def _all_gaps(catalogue: Catalogue) -> tuple[list[StreamGap], list[OffloadError]]:
    """Return the gaps of all streams, and an error for each stream of which they are not known."""
    found: list[StreamGap] = []
    errors: list[OffloadError] = []
    for each in await grouped(catalogue, damaged=errors.append):
        if (await each.parts())[1:]:
            try:
                found += await each.gaps()
            except StreamDeleted:
                continue
            except OffloadError as error:  # one stream must not hide the others
                errors.append(error)
    return found, errors


def _numbers(gap: StreamGap) -> tuple[object, ...]:
    return gap.part, gap.from_offset, gap.to_offset, records_text(gap)
