"""`offload abandon`: the jobs that run on a stream, and giving one up that will not end.

A job that was killed leaves attempts that run, and a sweep keeps what a running attempt uploaded. Dropping
them is safe at any time: a job that lives after all is refused at its commit, and nothing of it is in.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated
from uuid import UUID

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.output import counted, one_line, print_json
from offload.cli.kit.state import CommandContext, run_async
from offload.errors import NotOffloaded
from offload.model.manifest import AttemptKind, Manifest
from offload.streams.job import Job, attempts_of


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
            found = await offloader.load_manifest(stream)
            if job is not None:
                if not attempts_of(found, job):
                    raise NotOffloaded(f"stream {stream!r} runs nothing of job {job}")
                await (await Job.begin(offloader, stream, uid=job)).abort()
            return found

    running = jobs_of(run_async(main))
    if json:
        gone = {} if job is None else {"abandoned": str(job)}
        rows = [{"job": str(each), "attempts": count} for each, count in running.items()]
        print_json({"stream": stream, "jobs": rows, **gone})
    elif job is not None:
        given_up = f"job {job} given up, {counted(running[job], 'attempt')}"
        print(f"{one_line(stream)}: {given_up}; `offload sweep` frees their space")
    else:
        for each, count in running.items():
            print(f"{each}  {counted(count, 'attempt')}")
        if not running:
            print(f"{one_line(stream)}: no job runs")


def jobs_of(manifest: Manifest) -> Counter[UUID]:
    """The jobs that run, and how many attempts each has."""
    return Counter(running.writer for running in manifest.running if running.kind is not AttemptKind.STREAM)
