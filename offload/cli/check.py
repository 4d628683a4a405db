"""`offload check`: test the store behind a place with these credentials, and suggest fixes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import Keys, Options, Tier
from offload.cli.kit.output import one_line, print_json
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import NotOffloaded
from offload.ground.urls import folder_named
from offload.opening.backends import backend_of
from offload.opening.given_options import GivenOptions
from offload.upkeep.check import CheckFinding, CheckReport, CheckVerdict, check_master_key
from offload.upkeep.check import check as check_store

CheckedKey = Annotated[
    str | None,
    typer.Option(
        "--encrypt",
        metavar="LABEL",
        help="Also test if this master key of the key service wraps and unwraps. Needs --keys.",
    ),
]
MARKS: Final = {CheckVerdict.WORKS: "ok", CheckVerdict.FAILS: "FAILS", CheckVerdict.NOT_TRIED: "-"}


def check(
    context: typer.Context,
    tier: Tier,
    encrypt: CheckedKey = None,
    keys: Keys = None,
    option: Options = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Test reading alone. Put and delete nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Test the store behind TIER: permissions, conditional writes, listing. Suggest fixes for failures."""
    state: CommandContext = context.obj.with_keys(keys, encrypt)
    given = state.options(option)

    async def main() -> tuple[list[CheckReport], CheckFinding | None]:
        reports = await check_stores(state, tier, given, cleanup, read_only=read_only, json=json)
        return reports, None if encrypt is None else await _checked_key(state, encrypt, json=json)

    with ExitStack() as cleanup:
        reports, key = run_async(main)
    advice = _advice(state, tier)
    summary = {what: _all_can(reports, what) for what in ("read", "write", "commit")}
    if json:
        stores = [{"url": r.url, "findings": [f.as_json() for f in r.findings]} for r in reports]
        document = {"stores": stores, "can": summary, "advice": advice}
        print_json(document | ({} if key is None else {"key": key.as_json()}), indent=2)
    else:
        _show_summary(summary, advice, read_only=read_only)
    works = key is None or key.verdict is not CheckVerdict.FAILS
    return 0 if works and summary["read"] and (read_only or summary["commit"]) else 1


async def check_stores(
    state: CommandContext,
    tier: str,
    given: GivenOptions,
    cleanup: ExitStack,
    *,
    read_only: bool,
    json: bool,
) -> list[CheckReport]:
    """Check the store of a tier, and its commit store if it has one. Findings are printed unless `json`.

    `cleanup` removes the folders that the check made. Close it when the session has ended: a store of the
    session refuses every request without the folder that it saw.
    """
    report = await _checked(state, tier, given, cleanup, read_only=read_only, json=json)
    if not report.commit_store:
        return [report]
    commits = GivenOptions(data=given.commits, commits={}, limits=given.limits)
    second = await _checked(state, report.commit_store, commits, cleanup, read_only=read_only, json=json)
    return [report, second]


def summary_of(reports: list[CheckReport]) -> dict[str, bool]:
    """Return whether the stores can `read`, `write` and `commit`."""
    return {what: _all_can(reports, what) for what in ("read", "write", "commit")}


def stores_as_json(reports: list[CheckReport]) -> list[dict[str, Any]]:
    """Return the findings for JSON output."""
    return [{"url": r.url, "findings": [f.as_json() for f in r.findings]} for r in reports]


async def _checked(
    state: CommandContext,
    url: str,
    given: GivenOptions,
    cleanup: ExitStack,
    *,
    read_only: bool,
    json: bool,
) -> CheckReport:
    store = state.bare_store(url, given.data, given.limits)
    _refuse_file(store.url)
    if not json:
        print(one_line(store.url))
    cleanup.enter_context(_no_new_folders(store.url))
    try:
        tell = (lambda finding: None) if json else _show
        return await check_store(store, writing=not read_only, tell=tell)
    finally:
        await store.aclose()


async def _checked_key(state: CommandContext, label: str, *, json: bool) -> CheckFinding:
    assert state.keys is not None, "`with_keys` refuses a label without a key service"
    async with state.key_service(state.keys) as service:
        finding = await check_master_key(service, label)
    if not json:
        print(one_line(state.keys))
        _show(finding)
    return finding


def _refuse_file(url: str) -> None:
    """Raise `NotOffloaded` if the place is a file: each trial would fail in a way of its own."""
    if (folder := folder_named(url)) is not None and folder.is_file():
        raise NotOffloaded(f"{url} is a file, and a tier is a folder: name another place")


@contextmanager
def _no_new_folders(url: str) -> Iterator[None]:
    """Remove the folders that a check makes in a place that does not exist yet.

    Stores other than folders have none. A folder that is not empty stays: somebody uses it meanwhile.
    """
    root = folder_named(url)
    if root is None:
        yield
        return
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
    """Return whether all stores can do `what`. If there is a commit store, only that one must commit."""
    data, *commits = reports
    if commits and what == "commit":
        return data.can("write") and commits[0].can("commit")
    return all(report.can(what) for report in reports)


def _advice(state: CommandContext, url: str) -> list[str]:
    backend = backend_of(url, state.plugins)
    note = backend.contract_note()
    return [*backend.advice, *([note] if note else [])]


def _show_summary(summary: dict[str, bool], advice: list[str], *, read_only: bool) -> None:
    # Without a store that can be read, nothing else was tried. That shows nothing.
    is_tried = not read_only and summary["read"]
    words = {True: "yes", False: "NO" if is_tried else "not tried"}
    print(
        f"reading: {'yes' if summary['read'] else 'NO'}; writing: {words[summary['write']]}; "
        f"committing: {words[summary['commit']]}"
    )
    for line in advice:
        print(f"advice: {line}")
