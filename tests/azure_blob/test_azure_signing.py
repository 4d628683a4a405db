"""Signed reads of Azure need the account's key, and are tokens for one object that permit reads alone."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from offload_azure.options import AzureOptions
from offload_azure.store import AzureStore

from offload.contracts.signing import SignedReads
from offload.ground.errors import Misuse

KEYED = {"account_name": "account", "account_key": "a2V5"}


def signed(options: dict[str, Any]) -> SignedReads:
    async def sign() -> SignedReads:
        store = AzureStore(container="container", options=AzureOptions(**options))
        try:
            return await store.signed_reads(["orders/a b"], seconds=60)
        finally:
            await store.aclose()

    return asyncio.run(sign())


def test_a_token_is_for_one_object_and_for_reads() -> None:
    [url] = signed(KEYED).urls

    query = parse_qs(urlsplit(url).query)
    assert urlsplit(url).path == "/container/orders/a%20b"
    assert (query["sr"], query["sp"]) == (["b"], ["r"])
    assert query["se"][0] > query.get("st", [""])[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"account_name": "account", "sas_token": "sv=1&sig=2"}, "credentials that are no account key"),
        ({"account_name": "account", "anonymous": True}, "credentials that are no account key"),
        (KEYED | {"proxy": "http://127.0.0.1:1"}, "a proxy"),
        (KEYED | {"verify": False}, "option 'verify'"),
        (KEYED | {"cpk_key": "A" * 43 + "="}, "option 'cpk_key'"),
    ],
)
def test_what_a_plain_get_cannot_do_is_not_signed(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=f"reads are not signed, because of {why}"):
        signed(options)
