"""The GCS clients on a server of a test, and a minimal imitation of GCS."""

from __future__ import annotations

import json
from typing import Any, Final

from cloud.calls import DIGITS, Client, part_of
from offload_gcs import GcsOptions, GcsStore
from wire import Answer, Heard

TOKEN = "ya29.HUSH"
OF_BYTES: Final = {"x-goog-generation": "1"}
KMS_KEY = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"


def answers(heard: Heard) -> Answer:
    """Answer every call of the port with success, as GCS does."""
    if heard.method == "DELETE":
        return Answer(204)
    if heard.method == "GET" and "alt" in heard.query:
        return part_of(DIGITS, heard, OF_BYTES, beyond=Answer(416))
    return said(
        kind="storage#objects" if heard.path.endswith("/o") and heard.method == "GET" else "storage#object"
    )


def said(**fields: Any) -> Answer:
    """Answer with the description of `a/key`, or with these fields instead."""
    text = json.dumps({"name": "a/key", **fields}).encode()
    return Answer(body=text, headers={"Content-Type": "application/json"})


GCS = Client(
    open=lambda options: GcsStore(bucket="bucket", options=GcsOptions.of(options)),
    login={"token": TOKEN},
    anonymous={"token": None, "anonymous": True},
    answers=answers,
)
of_store, error_of = GCS.of_store, GCS.error_of
