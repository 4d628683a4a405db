"""Run many histories, or replay one.

    PYTHONPATH=tests python -m simulation --seeds 0:1000000 --processes 8
    PYTHONPATH=tests python -m simulation --seed 4711 --trace
    PYTHONPATH=tests python -m simulation --seeds 0:100 --mutant "lookup: by first times"
    PYTHONPATH=tests python -m simulation --seeds 0:2000 --mutants
    PYTHONPATH=tests python -m simulation --seeds 0:2000 --owners

Exits with 1 if a history broke an invariant, and prints its seed and step. `docs/testing.md` has more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

import pytest
from mutants import MUTANTS, OWNERS, SIMULATED, live_through

from simulation.history import simulate
from simulation.world import Broken, Figures

BATCH = 50


def main() -> int:
    """Run the histories that the arguments select, and return the exit code."""
    asked = _arguments()
    owned = asked.owners or asked.mutant in OWNERS
    if asked.seed is not None:
        return _replay(asked.seed, asked.mutant, owned=owned, trace=asked.trace)
    first, _, end = asked.seeds.partition(":")
    seeds = range(int(first), int(end))
    if asked.mutants:
        return _find(seeds, asked.processes, owned=owned)
    began, figures, broken = time.monotonic(), Figures(), 0
    for part, failures in _parts(seeds, asked.mutant, asked.processes, owned=owned):
        figures.add(part)
        broken += len(failures)
        for failure in failures:
            print(f"\r{failure}", flush=True)
        print(f"\r{figures.seeds + broken} of {len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _tell(figures, broken, time.monotonic() - began)
    return 1 if broken else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description="Deterministic simulation of a tier."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds",
        default="0:1000",
        metavar="FIRST:END",
        help="range of seeds, END excluded (default: %(default)s)",
    )
    which.add_argument("--seed", type=int, help="seed of one history to replay")
    parser.add_argument("--trace", action="store_true", help="print every turn of the replayed history")
    parser.add_argument(
        "--processes",
        type=int,
        default=multiprocessing.cpu_count(),
        help="number of processes (default: number of CPUs)",
    )
    parser.add_argument(
        "--mutants", action="store_true", help="print the first seed that finds each planted bug"
    )
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant this bug")
    parser.add_argument(
        "--owners", action="store_true", help="run histories of two managed ledgers that own one stream"
    )
    return parser.parse_args()


def _replay(seed: int, mutant: str | None, *, owned: bool, trace: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        if mutant is not None:
            MUTANTS[mutant].take_out(patch)
        try:
            figures = simulate(seed, owned=owned, tell=print if trace else None)
        except AssertionError as broken:
            print(broken)
            return 1
    _tell(figures, 0, 0.0)
    return 0


def _find(seeds: range, processes: int, *, owned: bool) -> int:
    names = [name for name in SIMULATED if (name in OWNERS) == owned]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, seed, how in pool.imap(_first, [(name, seeds) for name in names]):
            print(f"{name!r}: {seed},  # {how}", flush=True)
    return 0


def _first(job: tuple[str, range]) -> tuple[str, int | None, str]:
    name, seeds = job
    with pytest.MonkeyPatch.context() as patch:
        for seed in seeds:
            try:
                live_through(name, [seed], patch)
            except Broken as broken:
                return name, seed, str(broken).partition(": ")[2]
    return name, None, "not found"


def _parts(
    seeds: range, mutant: str | None, processes: int, *, owned: bool
) -> Iterator[tuple[Figures, list[str]]]:
    jobs = ((seeds[start : start + BATCH], mutant, owned) for start in range(0, len(seeds), BATCH))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_run, jobs)


def _run(job: tuple[range, str | None, bool]) -> tuple[Figures, list[str]]:
    seeds, mutant, owned = job
    figures, failures = Figures(), []
    with pytest.MonkeyPatch.context() as patch:
        if mutant is not None:
            MUTANTS[mutant].take_out(patch)
        for seed in seeds:
            try:
                figures.add(simulate(seed, owned=owned))
            except Broken as broken:
                failures.append(str(broken))
    return figures, failures


def _tell(figures: Figures, broken: int, seconds: float) -> None:
    print(f"{figures.seeds} histories held, {broken} did not; {figures.steps} steps in {seconds:.0f} s")
    for what, number in sorted(figures.counts.items()):
        print(f"  {number:>9}  {what}")
