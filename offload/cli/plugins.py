"""`offload plugins`: list every plugin, its declarations and its errors."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from offload.cli.kit.output import print_json, print_note, print_table
from offload.contracts.plugin import CONTRACT, Backend
from offload.ground.loops import loops_in_use
from offload.opening.plugins import Plugin, PluginDeclaration, Plugins, conflict_text

DROP = ("capabilities", "version", "distribution")
"""The columns that a narrow table leaves out, the first one first."""


def plugins(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """List every plugin with its distribution, version, declarations and errors."""
    found: Plugins = context.obj.plugins
    rows = [_described(plugin, found) for plugin in found.plugins]
    conflicts = [conflict_text(claim, rivals) for claim, rivals in sorted(found.conflicts.items())]
    if json:
        document = {
            "plugins": rows,
            "conflicts": conflicts,
            "contract": CONTRACT,
            "loops": loops_in_use(),
            "notes": _notes(found),
        }
        print_json(document, indent=2)
    else:
        _show(rows, conflicts)
        for note in _notes(found):
            print_note(note)
        print_note(f"loops over records: {loops_in_use()}")
    return 1 if conflicts else 0


def _described(plugin: Plugin, found: Plugins) -> dict[str, object]:
    mine = [declared for declared in found.declared if declared.plugin == plugin]
    return {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "declares": [_declaration(declared) for declared in mine],
        "error": plugin.error,
    }


def _notes(found: Plugins) -> list[str]:
    """Return a note for each backend that was tested against another version of the contract."""
    backends = [d.declaration for d in found.of_kind("backend") if isinstance(d.declaration, Backend)]
    return [note for backend in backends if (note := backend.contract_note())]


def _declaration(declared: PluginDeclaration) -> dict[str, object]:
    declaration = declared.declaration
    row: dict[str, object] = {
        "kind": declared.kind,
        "name": declaration.name,
        "schemes": list(declaration.schemes),
    }
    if isinstance(declaration, Backend) and declaration.capabilities is not None:
        row["capabilities"] = declaration.capabilities.as_dict()
    if isinstance(declaration, Backend):
        row["tested_against"] = declaration.tested_against
    return row


def _show(rows: list[dict[str, object]], conflicts: list[str]) -> None:
    table = []
    for row in rows:
        origin = (row["plugin"], row["distribution"], row["version"])
        if row["error"] is not None:
            table.append((*origin, "could not be loaded", row["error"], ""))
        declares = row["declares"]
        assert isinstance(declares, list)
        if row["error"] is None and not declares:
            table.append((*origin, "nothing; it listens to events", "", ""))
        for each in declares:
            schemes = " ".join(f"{scheme}://" for scheme in each["schemes"])
            can = each.get("capabilities", {})
            capabilities = " ".join(
                name if value is True else f"{name}={jsonlib.dumps(value)}"
                for name, value in can.items()
                if value not in (None, False)
            )
            table.append((*origin, f"{each['kind']} {each['name']}", schemes, capabilities))
    heads = ("plugin", "distribution", "version", "declares", "schemes", "capabilities")
    print_table(heads, table, drop=DROP)
    for conflict in conflicts:
        print(f"CONFLICT {conflict}")
