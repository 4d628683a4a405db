"""`offload conformance`: test the backend that serves a URL against the contract, clause by clause.

Imports pytest only when a run begins, so that the help and `--compare` work without it.
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
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload.opening.backends import backend_of
from offload_conformance import report as reports
from offload_conformance.badge import svg

LEFT_SHOWN_MAX: Final = 10


def conformance(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A folder, or the URL of a backend. Existing data is not touched."
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Use this backend, not the one for the URL's scheme.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="An option of the backend. May be repeated."
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Run only this layer, clause or pattern (store/list*). May be repeated."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=2**32 - 1, help="Random seed. Default: a new one for each run."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="SERVER", help="Name of the server, for the report: 'MinIO'."),
    ] = None,
    server_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version of the server, for capabilities declared as 'since 2.3'."
        ),
    ] = None,
    upload_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Size of the upload in many parts, up to 5GiB. 0 means the smallest that the store allows.",
        ),
    ] = "0",
    listing_keys: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Keys in the longest listing. 0 means 10,050, or 1,100 on a slow store."
        ),
    ] = 0,
    deadline: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="Time limit of each case of a clause. Raise it for a slow store."
        ),
    ] = 120,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JUnit XML.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as Markdown.")
    ] = None,
    badge: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a badge: an image if FILE ends in .svg, else JSON for shields.io."
        ),
    ] = None,
    performance: Annotated[
        bool, typer.Option("--performance", help="Also measure the store. Figures do not affect the verdict.")
    ] = False,
    performance_only: Annotated[
        bool, typer.Option("--performance-only", help="Measure the store and run no clauses.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Run nothing. Compare two reports."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the report, or the comparison, as JSON.")
    ] = False,
) -> int:
    """Test the backend that serves URL against the contract, clause by clause.

    The run works in a folder of its own below URL, and removes what it wrote. The exit code is 0 if some
    clauses passed and no required one failed, 130 after Ctrl-C, and otherwise 1. The reports are written in
    each case.
    """
    if (url is None) == (compare is None):
        raise Usage("give either URL or --compare OLD NEW")
    if compare is not None:
        return _compare(*compare, json=json)
    assert url is not None
    outputs = {"report": report, "junit": junit, "markdown": markdown, "badge": badge}
    _check_folders(outputs)
    given = seed if seed is not None else secrets.randbelow(2**32)
    again = _again(url, backend, option, given)
    if performance_only and (select or junit or badge):
        raise Usage("--performance-only runs no clauses: leave out --select, --junit and --badge")
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
        raise KeyboardInterrupt("the report has the results so far; another run starts from the beginning")
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
    """Run the suite, and return its report."""
    for needed in ("pytest", "hypothesis"):
        if find_spec(needed) is None:
            raise Misuse(missing_text("'conformance'", needed, "ledger-offload[conformance]"))
    from offload_conformance import running

    given = state.options(options)
    if given.commits or given.limits != RequestLimits():
        raise Usage("options of a commit store, and limits, are not options of the backend: leave them out")
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
    """Return the backend that is named or serves the scheme, and the plugin that declares it."""
    try:
        found = state.plugins.by_name("backend", name) if name is not None else backend_of(url, state.plugins)
    except Misuse as exc:
        raise Usage(str(exc)) from exc
    assert isinstance(found, Backend)
    plugin = next(each.plugin for each in state.plugins.declared if each.declaration is found)
    return found, plugin


def _check_folders(outputs: dict[str, Path | None]) -> None:
    """Raise `Usage` if a report's folder does not exist: before the run, not after it."""
    for name, path in outputs.items():
        if path is not None and not path.parent.is_dir():
            raise Usage(f"--{name}: the folder {path.parent} does not exist")


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
        print_note(f"left in the store: {len(left) - LEFT_SHOWN_MAX} more keys; the report lists all of them")


def _show_reasons(document: dict[str, Any]) -> None:
    """Print why selected clauses did not run to their end."""
    for reason, clauses in reports.reasons(document):
        if reason != "not selected" and not document["interrupted"]:
            names = clauses[0] if len(clauses) == 1 else f"{len(clauses)} clauses"
            print_note(f"{names} did not run to the end: {one_line(reason)}")


def _show_interruption(document: dict[str, Any]) -> None:
    """Print in which clause Ctrl-C ended the run, and how many clauses did not run to their end."""
    unasked = [each for each in document["clauses"] if each["outcome"] == "not_run"]
    for clause in unasked:
        if clause["message"].startswith("Ctrl-C"):
            print_note(f"{clause['id']}: {clause['message']}")
    selected = sum(each["message"] != "not selected" for each in unasked)
    print_note(f"{selected} of {len(document['clauses'])} clauses did not run to the end")


def _advice(clause: dict[str, Any]) -> str:
    return " (advisory: does not affect the verdict)" if clause["advisory"] else ""


def _short(message: str) -> str:
    text = one_line(" ".join(message.split()))
    return text if len(text) <= 240 else text[:240] + "…"


def _again(url: str, backend: str | None, options: list[str] | None, seed: int) -> str:
    """Return the command that runs the same again. Values of options may be secret and are left out."""
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
