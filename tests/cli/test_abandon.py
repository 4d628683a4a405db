"""`offload abandon`: it lists the jobs of dead processes and gives up one by name, and nothing else."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from command_line import offload, sync
from offload_conformance import ledger_of
from osiris_writer import simple_chunks, write_stream

from offload import Blocking
from offload.write.job import Job


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    write_stream(tmp_path / "orders", simple_chunks(3), segment_chunks=1)
    sync(tmp_path / "orders", tmp_path / "tier")
    return tmp_path / "tier"


def left_by_a_dead_job(url: Path) -> UUID:
    """Return two attempts, of which one has uploaded."""
    with Blocking(str(url)) as tier:

        async def work() -> UUID:
            job = await Job.begin(tier.offloader, "orders")
            manifest, (attempt, _) = await job.prepare([9, 12])
            ledger = ledger_of(3, first_offset=9)
            await tier.offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})
            return job.uid

        return tier.run(work())


def test_abandon_lists_the_jobs_that_run(tier: Path) -> None:
    assert offload("abandon", tier, "orders").lines == ["orders: no job is running"]
    job = left_by_a_dead_job(tier)

    assert offload("abandon", tier, "orders").lines == [f"{job}  2 attempts"]
    [said] = offload("abandon", tier, "orders", "--json").objects
    assert said == {"stream": "orders", "jobs": [{"job": str(job), "attempts": 2}]}
    assert sum(f"job {job}" in line for line in offload("inspect", tier, "orders").lines) == 2


def test_the_sweep_deletes_what_an_abandoned_job_uploaded(tier: Path) -> None:
    job, other = left_by_a_dead_job(tier), left_by_a_dead_job(tier)
    uploaded = {*tier.glob("*/data/**/*.fragment")}

    ran = offload("abandon", tier, "orders", job)

    text = f"orders: discarded job {job} with 2 attempts; `offload sweep` frees its space"
    assert (ran.code, ran.lines) == (0, [text])
    assert offload("abandon", tier, "orders").lines == [f"{other}  2 attempts"]
    assert offload("sweep", tier, "--grace", "0s").code == 0
    gone = uploaded - {*tier.glob("*/data/**/*.fragment")}
    assert len(gone) == 1, "that of the job, and not that of the one that may live"


def test_abandoning_a_job_that_does_not_run_is_an_error(tier: Path) -> None:
    job = uuid4()
    ran = offload("abandon", tier, "orders", job)
    assert (ran.code, ran.error) == (
        1,
        f"offload: stream 'orders' has no running job {job}; leave out JOB to list its jobs",
    )
    assert offload("abandon", tier, "orders", "no-uuid").code == 2
