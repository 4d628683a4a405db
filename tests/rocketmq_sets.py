"""The stores of a real RocketMQ in tests/data/rocketmq, with their full size, and the broker's answers."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from offload.model.record_columns import RecordBytes

DATA = Path(__file__).parent / "data" / "rocketmq"
NAMES = ("trimmed", "six", "extras", "torn")


def restored(name: str, folder: Path) -> Path:
    """Copy a set to a new folder with the files as RocketMQ left them."""
    for path, want in json.loads((DATA / "FILES.json").read_text()).items():
        if path.startswith(f"{name}/"):
            file = folder / path.removeprefix(f"{name}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(DATA / path, file)
            os.truncate(file, want["size"])
            assert hashlib.sha256(file.read_bytes()).hexdigest() == want["sha256"], path
    return folder


def messages(name: str) -> list[dict[str, Any]]:
    """Return the broker's answers, in order of topic, queue and offset."""
    with gzip.open(DATA / name / "messages.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def records(name: str, answers: list[dict[str, Any]] | None = None) -> RecordBytes:
    """Return the records of all answers, in their order, from the log. The files lie in one buffer."""
    files = sorted((DATA / name / "commitlog").iterdir())
    first = int(files[0].name)
    log = bytearray()
    for file in files:
        log[len(log) :] = bytes(int(file.name) - first - len(log)) + file.read_bytes()
    answers = messages(name) if answers is None else answers
    return RecordBytes(
        np.frombuffer(bytes(log), np.uint8),
        np.array([each["commit_log_offset"] - first for each in answers]),
        np.array([each["size"] for each in answers]),
    )


def answers(name: str, reader: str, question: str) -> list[dict[str, Any]]:
    """Return the answers of one of the broker's readers to the questions of one kind, in their order."""
    with gzip.open(
        DATA / name / "answers" / reader / f"{question}.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        return [json.loads(line) for line in lines]
