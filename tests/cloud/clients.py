"""Every client of every distant backend, on a server that a test names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import azure_calls
import s3_calls
from offload_gcs import GcsOptions, GcsStore
from wire import Answer, Heard

from offload import ObjectStore

Call = Callable[[ObjectStore], Awaitable[Any]]


@dataclass(frozen=True)
class Client:
    """One of them."""

    of_store: Callable[..., Any]
    """What a call of a store at a URL returns; further arguments are options."""

    answers: Callable[[Heard], Answer]
    """Enough of the service for every call to succeed."""


def _of_gcs(url: str, call: Call, **options: Any) -> Any:
    async def main() -> Any:
        given = {"endpoint_url": url, "anonymous": True} | options
        store = GcsStore(bucket="bucket", options=GcsOptions.of(given))
        try:
            return await call(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def _gcs_answers(heard: Heard) -> Answer:
    if heard.method == "GET" and "alt" in heard.query:
        return Answer(body=b"0123456789")
    return Answer(body=b"{}", headers={"Content-Type": "application/json"})


CLIENTS: Final = {
    "s3fs": Client(s3_calls.of_store, s3_calls.answers),
    "s3-obstore": Client(partial(s3_calls.of_store, client="obstore"), s3_calls.answers),
    "gcsfs": Client(_of_gcs, _gcs_answers),
    "adlfs": Client(azure_calls.of_store, azure_calls.answers),
    "azure-obstore": Client(partial(azure_calls.of_store, client="obstore"), azure_calls.answers),
}
