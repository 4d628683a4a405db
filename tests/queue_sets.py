"""Classic queues of a real broker (tests/data/queues), and what the broker delivered of them."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from offload_rabbitmq.queues.folder import ClassicQueue, find_vhosts, read_vhost
from offload_rabbitmq.queues.messages import read_message, read_properties
from offload_rabbitmq.queues.store_files import REDELIVERED

DATA: Final = Path(__file__).parent / "data" / "queues"
SETS: Final = ("killed", "stopped")
ROOT_VHOST: Final = "628WB79CIFDYO9LJI6DKMI09L"

Delivered = list[dict[str, Any]]


def unpacked(name: str, folder: Path) -> Path:
    """Return the folder of a set, unpacked below `folder`."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def keep_some(node: Path, *kinds: str) -> Path:
    """Remove all queues of a set but those whose names begin so."""
    for path in node.glob("msg_stores/vhosts/*/queues/*/.queue_name"):
        name = path.read_text(errors="replace").partition("\nQUEUE: ")[2]
        if not name.startswith(kinds):
            shutil.rmtree(path.parent)
    lines = (node / "expected.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["queue"].startswith(kinds)]
    (node / "expected.jsonl").write_text("".join(kept))
    return node


def expected(node: Path) -> dict[str, Delivered]:
    """Return what the broker delivered, by stream."""
    found = defaultdict[str, Delivered](list)
    for line in (node / "expected.jsonl").read_text().splitlines():
        row = json.loads(line)
        stream = f"{quote(row.pop('vhost'), safe='')}/{quote(row.pop('queue'), safe='')}"
        row.pop("i")
        found[stream].append(row)
    return dict(found)


def queues_in(node: Path) -> dict[str, ClassicQueue]:
    """Return the queues of a node, by stream."""
    vhosts = [read_vhost(each) for each in find_vhosts(node)]
    return {each.stream: each for vhost in vhosts for each in vhost.queues}


def delivered(queue: ClassicQueue) -> Delivered:
    """Return the messages of a queue in the form of `expected`. Those that cannot be decoded raise."""
    terms = queue.terms(0, len(queue.rows))
    return [
        _delivered(term, bool(flags & REDELIVERED))
        for term, flags in zip(terms, queue.rows["flags"], strict=True)
    ]


def folder_of(node: Path, queue: str, level: int | None = None) -> Path:
    """Return the folder of a queue of the vhost `/`."""
    name = queue.encode() + (b"" if level is None else bytes([0, level]))
    line = b"\nQUEUE: " + name + b"\n"
    (found,) = (
        each.parent
        for each in node.glob(f"msg_stores/vhosts/{ROOT_VHOST}/queues/*/.queue_name")
        if line in each.read_bytes()
    )
    return found


def _delivered(term: bytes, is_redelivered: bool) -> dict[str, Any]:
    message = read_message(term, where="a test")
    properties = read_properties(message.properties, where="a test")
    if "timestamp" in properties:
        properties["timestamp"] = int(properties["timestamp"].timestamp())
    return {
        "redelivered": is_redelivered,
        "exchange": message.exchange.decode(),
        "key": message.keys[0].decode(),
        "size": len(message.body),
        "sha256": hashlib.sha256(message.body).hexdigest(),
        "props": as_pika(properties),
    }


def as_pika(value: Any) -> Any:
    """Return properties as the sets have them."""
    match value:
        case bytes() | bytearray():
            return {"bytes": value.hex()}
        case Decimal() | datetime():
            return str(value)
        case dict():
            return {name: as_pika(each) for name, each in value.items()}
        case list():
            return [as_pika(each) for each in value]
    return value
