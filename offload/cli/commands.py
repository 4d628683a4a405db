"""The built-in commands of `offload`, declared like the commands of plugins.

`offload --help` and a shell's completion list the commands from here, and import none of them.
"""

from __future__ import annotations

from typing import Final

from offload.contracts.plugin import Command

HELP: Final = {
    "demo": "Offload a small RabbitMQ stream to a folder, read it back, and find a damaged byte.",
    "sync": "Copy new data from SOURCE to TIER. A later run copies only what came since.",
    "run": "Keep the streams of SOURCE on TIER until the process is stopped.",
    "ctl": "Tell the process of `offload run` to retry, copy, pause or resume streams, without a restart.",
    "status": "Show how far TIER is behind SOURCE, and answer what an incident asks. Changes nothing.",
    "ls": "List the streams of TIER.",
    "inspect": "Show the totals, the root, the fragments and the running attempts of STREAM, "
    "in all of its parts.",
    "gaps": "List the records that the source deleted before TIER had them. Reads no data.",
    "read": "Print the messages of STREAM. "
    "Tracking records are never printed, and --limit does not count them.",
    "find": "Print the messages of STREAM that have a TERM, such as a message id. STREAM may be a glob.",
    "export": "Write STREAM to FOLDER as files of Parquet or Arrow. A later run adds only what is new.",
    "serve": "Serve the streams of TIER to the clients of a broker, until the process is stopped.",
    "restore": "Put the data of STREAM back into a broker. If it is killed, run the same command again.",
    "verify": "Verify the checksum, key and manifest entry of every object in TIER.",
    "repair": "Replace damaged fragments of STREAM by the same records from the broker or a copy.",
    "trim": "Delete the oldest data of STREAM. Only whole fragments are removed. "
    "`offload sweep` frees their space.",
    "delete": "Delete STREAM. This cannot be undone. `offload sweep` frees its space.",
    "shred": "Delete STREAM, and destroy its keys, so that nobody can read what is left of its data.",
    "rotate": "Wrap the keys of the streams of TIER by another master key. No data is rewritten.",
    "abandon": "Discard an unfinished job of STREAM. `offload sweep` frees what it uploaded.",
    "sweep": "Delete objects that no manifest in TIER references: "
    "crashed uploads, trimmed data, deleted streams.",
    "compact": "Merge neighbouring small fragments in TIER. `offload sweep` frees the space of the old ones.",
    "index": "Index STREAM by a key of its messages, so that `offload find` need not read all of them.",
    "copy": "Copy committed data from SOURCE_TIER to TARGET_TIER. A later run copies only what is new.",
    "check": "Test the store behind TIER: permissions, conditional writes, listing. "
    "Suggest fixes for failures.",
    "rebuild": "Rebuild the manifest of STREAM from its data objects. "
    "Stop all writers and sweeps of it first.",
    "help": "Print a page of the documentation, or a section of it. Without TOPIC, list the pages.",
    "plugins": "List every plugin with its distribution, version, declarations and errors.",
}
"""The first paragraph of each command's docstring, in the order of `offload --help`."""

GROUPS: Final = {
    "Commands that copy to a tier": ("demo", "sync", "run", "ctl", "status"),
    "Commands that look into a tier and read it": (
        "ls", "inspect", "gaps", "read", "find", "export", "serve", "restore",
    ),
    "Commands that verify and repair": ("verify", "repair"),
    "Commands that keep a tier in order": (
        "trim", "delete", "shred", "rotate", "abandon", "sweep", "compact", "index", "copy",
    ),
    "Commands about stores, losses, pages and plugins": ("check", "rebuild", "help", "plugins"),
}  # fmt: skip
"""The groups of `offload --help`, in the order of the commands."""

BUILT_IN: Final = {
    name: Command(name=name, target=f"offload.cli.{name}:{name}", help=text) for name, text in HELP.items()
}
"""Each command by its name. Its module and its function have the same name."""
