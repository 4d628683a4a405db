"""`offload check`: what works at a place with these credentials, what does not, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.output import one_line, print_json
from offload.cli.kit.state import CommandContext, run_async
from offload.session import GivenOptions, backend_of
from offload.upkeep.check import CheckFinding, CheckReport, CheckVerdict
from offload.upkeep.check import check as check_store
from offload.urls import FILE_SCHEME, scheme_of

MARKS: Final = {CheckVerdict.WORKS: "ok", CheckVerdict.FAILS: "FAILS", CheckVerdict.NOT_TRIED: "-"}


def check(
    context: typer.Context,
    tier: Tier,
    option: Options = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Put and delete nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Test the store behind TIER: permissions, conditional writes, listing. Suggest fixes for failures."""
    state: CommandContext = context.obj
    given = state.options(option)

    async def main() -> list[CheckReport]:
        report = await _checked(state, tier, given, read_only=read_only, json=json)
        if not report.commit_store:
            return [report]
        commits = GivenOptions(data=given.commits, commits={}, limits=given.limits)
        return [report, await _checked(state, report.commit_store, commits, read_only=read_only, json=json)]

    reports = run_async(main)
    advice = _advice(state, tier)
    summary = {what: _all_can(reports, what) for what in ("read", "write", "commit")}
    if json:
        stores = [{"url": r.url, "findings": [f.as_json() for f in r.findings]} for r in reports]
        print_json({"stores": stores, "can": summary, "advice": advice}, indent=2)
    else:
        _show_summary(summary, advice, read_only=read_only)
    return 0 if summary["read"] and (read_only or summary["commit"]) else 1


async def _checked(
    state: CommandContext, url: str, given: GivenOptions, *, read_only: bool, json: bool
) -> CheckReport:
    store = state.bare_store(url, given.data, given.limits)
    if not json:
        print(one_line(store.url))
    with _no_new_folders(store.url):
        try:
            tell = (lambda finding: None) if json else _show
            return await check_store(store, writing=not read_only, tell=tell)
        finally:
            await store.aclose()


@contextmanager
def _no_new_folders(url: str) -> Iterator[None]:
    """Remove the folders that a check makes in a place that does not exist yet. Other stores have none.

    One that holds anything stays: somebody began to use it meanwhile.
    """
    if scheme_of(url) != FILE_SCHEME:
        yield
        return
    root = Path(unquote(url.removeprefix("file://")))
    made = [each for each in (root / ".staging", root, *root.parents) if not each.exists()]
    try:
        yield
    finally:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _show(finding: CheckFinding) -> None:
    print(f"  {MARKS[finding.verdict]:<6}{finding.name:<18}{one_line(finding.says)}", flush=True)


def _all_can(reports: list[CheckReport], what: str) -> bool:
    """A tier with a commit store commits there; its data store need only be written."""
    data, *commits = reports
    if commits and what == "commit":
        return data.can("write") and commits[0].can("commit")
    return all(report.can(what) for report in reports)


def _advice(state: CommandContext, url: str) -> list[str]:
    backend = backend_of(url, state.plugins)
    note = backend.contract_note()
    return [*backend.advice, *([note] if note else [])]


def _show_summary(summary: dict[str, bool], advice: list[str], *, read_only: bool) -> None:
    words = {True: "yes", False: "not tried" if read_only else "NO"}
    print(
        f"reading: {'yes' if summary['read'] else 'NO'}; writing: {words[summary['write']]}; "
        f"committing: {words[summary['commit']]}"
    )
    for line in advice:
        print(f"advice: {line}")
