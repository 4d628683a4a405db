"""`offload conformance`: hold the backend that serves a URL against the contract, clause by clause.

Knows pytest only where a run begins, so that reports can be compared, and the help be read, without it.
"""

from __future__ import annotations

import json as json_module
import secrets
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import one_line, print_json, print_note, print_table
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext
from offload.contracts.opening import RequestLimits
from offload.contracts.plugin import Backend
from offload.errors import Misuse
from offload.extras import missing_text
from offload.session import backend_of
from offload_conformance import report as reports
from offload_conformance.badge import svg

LEFT_SHOWN_MAX: Final = 10


def conformance(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A folder, or a URL that a backend knows. It may hold other things."
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="The backend, where another serves the URL's scheme.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the backend; repeatable."),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="A layer, a clause, or a pattern as store/list*; repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Random seed.")] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="SERVER", help="What the store is, for the report: MinIO 2026-02-12."),
    ] = None,
    server_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Its version, for what is supported since one.")
    ] = None,
    upload_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Of the upload in many parts: 5GiB; 0 is as small as can be.")
    ] = "0",
    listing_keys: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Keys of the longest listing; 0: 10,050, or 1,100 if creating is slow."
        ),
    ] = 0,
    deadline: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="Fail a clause whose case takes longer; more for a slow store."
        ),
    ] = 120,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as JUnit's XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as Markdown.")] = None,
    badge: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a badge: FILE.svg a picture, else an endpoint of shields.io."
        ),
    ] = None,
    performance: Annotated[
        bool, typer.Option("--performance", help="Measure the store afterwards; no part of the verdict.")
    ] = False,
    performance_only: Annotated[
        bool, typer.Option("--performance-only", help="Measure the store, and ask no clause.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Instead: what changed since a report."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
) -> int:
    """Hold the backend that serves URL against the contract, clause by clause.

    Runs in a folder of its own below URL, and removes what it wrote. Ends with 0 where no required clause
    failed, else with 1; after Ctrl-C with 130, and the report is written all the same.
    """
    if (url is None) == (compare is None):
        raise Usage("give either a URL or --compare OLD NEW")
    if compare is not None:
        return _compare(*compare, json=json)
    assert url is not None
    outputs = {"report": report, "junit": junit, "markdown": markdown, "badge": badge}
    _check_folders(outputs)
    given = seed if seed is not None else secrets.randbelow(2**32)
    again = _again(url, backend, option, given)
    if performance_only and (select or junit or badge):
        raise Usage("--performance-only asks no clause: it goes with none of --select, --junit and --badge")
    about = {
        "server": server,
        "server_version": server_version,
        "upload_size_bytes": parse_size(upload_size, option="--upload-size"),
        "listing_keys": listing_keys,
        "clause_seconds_max": deadline,
        "ask": not performance_only,
        "measure": performance or performance_only,
    }
    document = _run(context.obj, url, backend, option or [], select or [], given, about)
    _write(document, outputs)
    if json:
        print_json(document, indent=2)
    else:
        _show(document, again)
    if document["interrupted"]:
        _show_interruption(document)
        raise KeyboardInterrupt("the clauses that ended are reported, and another run asks all of them again")
    return 0 if performance_only or reports.verdict(document) else 1


def _run(
    state: CommandContext,
    url: str,
    name: str | None,
    options: list[str],
    select: list[str],
    seed: int,
    about: dict[str, Any],
) -> dict[str, Any]:
    """The document of one run."""
    for needed in ("pytest", "hypothesis"):
        if find_spec(needed) is None:
            raise Misuse(missing_text("'conformance'", needed, "ledger-offload[conformance]"))
    from offload_conformance import running

    given = state.options(options)
    if given.commits or given.limits != RequestLimits():
        raise Usage("options of a commit store and limits are none of the backend's, and are not tested here")
    backend, plugin = _backend(state, url, name)
    return running.run(
        backend=backend,
        plugin=plugin,
        url=url,
        options=given.data,
        select=select,
        seed=seed,
        **about,
    )


def _backend(state: CommandContext, url: str, name: str | None) -> Any:
    """The backend that was named, or serves the scheme; and the plugin that declares it."""
    try:
        found = state.plugins.by_name("backend", name) if name is not None else backend_of(url, state.plugins)
    except Misuse as exc:
        raise Usage(str(exc)) from exc
    assert isinstance(found, Backend)
    plugin = next(each.plugin for each in state.plugins.declared if each.declaration is found)
    return found, plugin


def _check_folders(outputs: dict[str, Path | None]) -> None:
    """Known before the run, rather than after it."""
    for name, path in outputs.items():
        if path is not None and not path.parent.is_dir():
            raise Usage(f"--{name}: there is no folder {path.parent}")


def _write(document: dict[str, Any], outputs: dict[str, Path | None]) -> None:
    made = {
        "report": lambda: _json(document),
        "junit": lambda: reports.junit(document),
        "markdown": lambda: reports.markdown(document).encode(errors="backslashreplace"),
        "badge": lambda: _badge(document, outputs["badge"]),
    }
    for name, path in outputs.items():
        if path is not None:
            path.write_bytes(made[name]())


def _badge(document: dict[str, Any], path: Path | None) -> bytes:
    assert path is not None
    return svg(document) if path.suffix.lower() == ".svg" else _json(reports.badge(document))


def _json(document: dict[str, Any]) -> bytes:
    return (json_module.dumps(document, indent=2) + "\n").encode()


def _show(document: dict[str, Any], again: str) -> None:
    for clause in document["clauses"]:
        if clause["outcome"] == "failed":
            print(f"FAILED {clause['id']}: {one_line(clause['text'])}" + _advice(clause))
            print(f"  {_short(clause['message'])}; again: {again} --select {clause['id']}")
    if any(clause["message"] != "not selected" for clause in document["clauses"]):
        print_table(
            ("layer", "passed", "failed", "not run", "retries"),
            [(layer, *found.values()) for layer, found in reports.by_layer(document)],
        )
    _show_reasons(document)
    for clause, how in reports.limits(document):
        print_note(f"{clause}: {one_line(how)}")
    for heads, rows in reports.performance_tables(document):
        print_table(heads, rows)
    left = [*document["left"].items()]
    for key, reason in left[:LEFT_SHOWN_MAX]:
        print_note(f"left in the store: {key}: {reason}")
    if len(left) > LEFT_SHOWN_MAX:
        print_note(f"left in the store: {len(left) - LEFT_SHOWN_MAX} more, which the report names")


def _show_reasons(document: dict[str, Any]) -> None:
    """Print why clauses that were selected were not asked."""
    for reason, clauses in reports.reasons(document):
        if reason != "not selected" and not document["interrupted"]:
            names = f"{clauses[0]} was" if len(clauses) == 1 else f"{len(clauses)} clauses were"
            print_note(f"{names} not asked to the end: {one_line(reason)}")


def _show_interruption(document: dict[str, Any]) -> None:
    """Print in which clause Ctrl-C ended the run, and how many clauses were left."""
    unasked = [each for each in document["clauses"] if each["outcome"] == "not_run"]
    for clause in unasked:
        if clause["message"].startswith("Ctrl-C"):
            print_note(f"{clause['id']}: {clause['message']}")
    selected = sum(each["message"] != "not selected" for each in unasked)
    print_note(f"{selected} of {len(document['clauses'])} clauses were not asked to their end")


def _advice(clause: dict[str, Any]) -> str:
    return " (advisory: no part of the verdict)" if clause["advisory"] else ""


def _short(message: str) -> str:
    text = one_line(" ".join(message.split()))
    return text if len(text) <= 240 else text[:240] + "…"


def _again(url: str, backend: str | None, options: list[str] | None, seed: int) -> str:
    """The command that runs the same; values of options may be secret, and are left out."""
    words = ["offload conformance", quote(url)]
    words += ["--backend", quote(backend)] if backend else []
    words += [f"-o {option.partition('=')[0]}=…" for option in options or []]
    return " ".join([*words, "--seed", str(seed)])


def _compare(old: Path, new: Path, *, json: bool) -> int:
    found = reports.compare(reports.read(old), reports.read(new))
    if json:
        print_json(found, indent=2)
    else:
        for change, clauses in found.items():
            for clause in clauses:
                print(f"{change}: {one_line(clause)}")
        print_note("nothing changed") if not any(found.values()) else None
    return 1 if found["newly fails"] else 0
