"""`offload abandon`: list the running jobs of a stream, and discard one that will never end.

A job that was killed leaves running attempts, and a sweep keeps what a running attempt uploaded. Dropping the
attempts is safe at any time: if the job is alive after all, its commit is refused, and none of its data is
committed.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated
from uuid import UUID

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import NotOffloaded
from offload.model.manifest import AttemptKind, Manifest
from offload.write.job import Job, attempts_of


def abandon(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    job: Annotated[
        UUID | None,
        typer.Argument(metavar="JOB", help="The job to discard. Without it, running jobs are listed."),
    ] = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Discard an unfinished job of STREAM. `offload sweep` frees what it uploaded.

    To resume a killed back-fill or write, run the same command again instead.
    """
    state: CommandContext = context.obj

    async def main() -> Manifest:
        async with state.tier(tier, option) as offloader:
            named = await known_name(offloader, stream)
            found = await offloader.load_manifest(named)
            if job is not None:
                if not attempts_of(found, job):
                    raise NotOffloaded(
                        f"stream {stream!r} has no running job {job}; leave out JOB to list its jobs"
                    )
                await (await Job.begin(offloader, named, uid=job)).abort()
            return found

    running = jobs_of(run_async(main))
    if json:
        gone = {} if job is None else {"abandoned": str(job)}
        rows = [{"job": str(each), "attempts": count} for each, count in running.items()]
        print_json({"stream": stream, "jobs": rows, **gone})
    else:
        _show(stream, running, job)


def _show(stream: str, running: Counter[UUID], discarded: UUID | None) -> None:
    if discarded is not None:
        what = f"discarded job {discarded} with {counted(running[discarded], 'attempt')}"
        print(f"{one_line(stream)}: {what}; `offload sweep` frees its space")
        return
    for each, count in running.items():
        print(f"{each}  {counted(count, 'attempt')}")
    if not running:
        print(f"{one_line(stream)}: no job is running")


def jobs_of(manifest: Manifest) -> Counter[UUID]:
    """Return the running jobs, with the number of attempts of each."""
    return Counter(running.writer for running in manifest.running if running.kind is not AttemptKind.STREAM)
