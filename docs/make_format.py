"""Write the pages of formats from their templates and the layout tables of the code.

    python docs/make_format.py

A template has the prose. `{{layout MODULE:NAME}}` becomes the table of a layout, and `{{fields
MODULE:NAME}}` the table of an anchor's fields. `{{example NAME}}` becomes bytes or names that the code itself
makes.
"""

from __future__ import annotations

import base64
import importlib
import re
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from offload_rabbitmq_s3 import RabbitmqKey

from offload.formats.anchor import KeyObject, StreamAnchor, TierAnchor
from offload.formats.blocks import BLOCK_SIZE_BYTES
from offload.formats.fragment_trailer import CHUNKS_MAX, TRAILER
from offload.formats.keys import TIER_ANCHOR, IndexName, NoteName, StreamKeys, escape
from offload.formats.sealing import TAG_SIZE_BYTES
from offload.model.entry import EntryKind
from offload.model.part import StreamPart

HERE: Final = Path(__file__).parent
PAGES: Final = ("format", "pulsar", "rabbitmq-s3")
NOTE: Final = "<!-- Made by docs/make_format.py from docs/{}.template; edit those. -->"
ATTEMPT: Final = UUID("7f1d3c52-8a0e-4b6f-9c1d-2e3f4a5b6c7d")
STREAM_KEY: Final = UUID("5d2a9c14-0b7e-4f38-a6d1-93e8c7b02f45")
INCARNATION: Final = UUID("e1f6a3b8-27c9-4d50-8b14-6a0f9d3c5e72")
GROUP: Final = UUID("c04b5e21-6d3f-4a97-8e10-b2a1d9f87c36")


def page(name: str) -> str:
    """Return the text of the page `name`."""
    template = (HERE / f"{name}.template").read_text(encoding="utf-8")
    return f"{NOTE.format(name)}\n\n" + re.sub(r"\{\{(\w+) ([\w.:]+)\}\}", _filled, template)


def _filled(match: re.Match[str]) -> str:
    kind, name = match.groups()
    if kind == "example":
        return EXAMPLES[name]
    value = _attribute(name)
    return str(value.table()) if kind == "layout" else _fields(value)


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _fields(rows: tuple[tuple[str, str, str], ...]) -> str:
    lines = ["| field | type | meaning |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in rows])


def _keys() -> str:
    keys = StreamKeys("orders")
    group = keys.group(1234, 17, GROUP, EntryKind.GROUP)
    fragment, root = keys.fragment(1234, ATTEMPT), keys.root(17)
    copies = keys.key_objects(INCARNATION, STREAM_KEY, 1)
    return "\n".join((TIER_ANCHOR, keys.anchor, fragment, root, group, *copies))


def _index() -> str:
    keys = StreamKeys("orders")
    folder = keys.index_folder("amqp:properties.message_id", 1)
    return keys.index(IndexName(folder, 1234, 5678, 17, INCARNATION, GROUP))


def _rabbitmq_keys() -> str:
    stream, uid = "__orders_1795000000000000000", 0xF619C087
    kinds = [*EntryKind, None]
    numbers = [1234, 1234, 0, 0, 4]
    keys = [str(RabbitmqKey(stream, kind, number, uid)) for kind, number in zip(kinds, numbers, strict=True)]
    return "\n".join(("```text", *keys, "```"))


def _key_object() -> str:
    made = KeyObject(
        stream="orders",
        base_version=18,
        incarnation=str(INCARNATION),
        uid=str(STREAM_KEY),
        generation=1,
        label="tier-2026",
        own=False,
        wrapped=base64.b64encode(b"as the key service wrapped it").decode(),
    )
    return made.encode().decode().rstrip("\n")


def _escapes() -> str:
    names = ("orders", "a.b/c", "größe", "x" * 300)
    rows = [f"| `{name if len(name) < 100 else '300 times x'}` | `{escape(name)}` |" for name in names]
    return "\n".join(("| stream | escaped |", "|---|---|", *rows))


EXAMPLES: Final = {
    "trailer_size": str(TRAILER.size_bytes),
    "tag_size": str(TAG_SIZE_BYTES),
    "block_size": f"{BLOCK_SIZE_BYTES // 1024} KiB",
    "chunks_max": f"{CHUNKS_MAX:,}",
    "keys": _keys(),
    "escapes": _escapes(),
    "index": _index(),
    "note": StreamKeys("orders").note(NoteName(escape("group.g1"), INCARNATION, 17)),
    "tier_anchor": TierAnchor().encode().decode().rstrip("\n"),
    "compressed_tier_anchor": TierAnchor(compression="zstd:3").encode().decode().rstrip("\n"),
    "key_object": _key_object(),
    "rabbitmq_keys": _rabbitmq_keys(),
    "stream_anchor": StreamAnchor(stream="orders").encode().decode().rstrip("\n"),
    "part_anchor": StreamAnchor.of(StreamPart("orders", 2)).encode().decode().rstrip("\n"),
}

if __name__ == "__main__":
    for each in PAGES:
        (HERE / f"{each}.md").write_text(page(each), encoding="utf-8")
