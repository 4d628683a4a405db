"""The commands of `offload` itself, declared in the way in which plugins declare theirs.

`offload --help` and a shell's completion list the commands from here, and import none of them.
"""

from __future__ import annotations

from typing import Final

from offload.contracts.plugin import Command

HELP: Final = {
    "demo": "Offload a small RabbitMQ stream to a folder, read it back, and find a damaged byte.",
    "sync": "Copy what is new from SOURCE to TIER. Running it again copies only what came since.",
    "ls": "List the streams of TIER.",
    "inspect": "Show totals, root, fragments and running attempts of STREAM.",
    "read": "Print the messages of STREAM. "
    "Tracking records are never printed, and --limit does not count them.",
    "verify": "Verify the checksum, key and manifest entry of every object in TIER.",
    "trim": "Delete the oldest data of STREAM. Only whole fragments are removed. "
    "`offload sweep` frees their space.",
    "delete": "Delete STREAM. It cannot be undone. `offload sweep` frees the space.",
    "abandon": "Discard an unfinished job of STREAM. `offload sweep` frees what it uploaded.",
    "sweep": "Delete objects that no manifest in TIER references: "
    "crashed uploads, trimmed data, deleted streams.",
    "compact": "Merge small fragments that lie next to each other in TIER. "
    "`offload sweep` frees what they took.",
    "copy": "Copy what SOURCE_TIER has committed to TARGET_TIER, every byte checked. "
    "A later run copies what is new.",
    "check": "Test the store behind TIER: permissions, conditional writes, listing. "
    "Suggest fixes for failures.",
    "rebuild": "Rebuild the manifest of STREAM from its data objects. "
    "Stop all writers and sweeps of it first.",
    "plugins": "List every plugin: distribution, version, what it declares, and why it could not be loaded.",
}
"""The first paragraph of each command's docstring, in the order of the page."""

BUILT_IN: Final = {
    name: Command(name=name, target=f"offload.cli.{name}:{name}", help=text) for name, text in HELP.items()
}
"""Each command by its name, which is also that of its function and module."""
