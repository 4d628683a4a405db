"""A bucket's immutable objects by obstore: the same place, credentials and headers as by the client behind.

Where requests go is asked of that client, so that addressing, partitions and settings mean the same; its
session finds and renews the credentials. Over TLS the payload is not signed, because TLS protects it; over
plain HTTP it is. The CRC-32C of S3 is not sent: obstore has none. A bucket with an object lock refuses puts
without one, and the client behind then sends them.

`why_not_fast` speaks without obstore being installed; the rest imports it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from offload_cloud.choice import TRUSTS_MORE, is_the_systems
from offload_cloud.options import shown

from offload.errors import Misuse, OffloadError
from offload_s3.failures import ELSEWHERE, code_of, explained, wants_a_checksum
from offload_s3.options import S3Options

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential
    from offload_cloud.fast import Fast, FastStore

    from offload_s3.store import S3Store

OF_OBSTORE_ALONE: Final = (
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_SSE_KMS_KEY_ID",
)
"""What obstore reads from the environment, cannot be told to leave, and no other client of AWS obeys."""

VALID_FOR: Final = timedelta(minutes=10)
"""The session renews credentials that have less than this left, so that any it hands out has it."""

_log: Final = logging.getLogger(__name__)
_FIELD: Final = re.compile(r"<(Code|Message|Region)>([^<]*)</")


def why_not_fast(options: S3Options) -> str | None:
    """What of these options, and of the environment, obstore could not do exactly so; None: it can do all."""
    if isinstance(options.verify, str) and not is_the_systems(options.verify):
        return f"the option `verify` names authorities{TRUSTS_MORE}"
    for name in OF_OBSTORE_ALONE:
        if name in os.environ:
            return f"{name} is set, which obstore alone would obey; use options instead"
    return None


def fast_store(store: S3Store) -> FastStore:
    """`store` with its immutable objects by obstore."""
    from offload_cloud.fast import FastStore

    options = store.options

    def explain(status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        cause = _reply(status, body, operation="PutObject" if mutation else "GetObject")
        if code_of(cause) == "400":
            return None  # no answer of an S3 server: the client behind, which sees its headers, says why
        if code_of(cause) in ELSEWHERE:
            return None  # the client behind goes to the region that the reply names
        if wants_a_checksum(cause):
            return None  # the client behind sends one
        return explained(cause, what=what, where=store.url, key=key, mutation=mutation)

    return FastStore(
        store,
        open_fast=lambda: _opened(store),
        explain=explain,
        stall_seconds=options.read_timeout_seconds,
        at_once=options.connections_max,
    )


async def _opened(store: S3Store) -> Fast | None:
    from obstore.store import S3Store as Objects
    from offload_cloud.fast import Fast

    options, client, session = store.options, await store.client(), await store.session()
    place = await store.ask(_place_of(client, store.bucket), "open a client")
    authorities = session.get_config_variable("ca_bundle") if options.verify is True else None
    why_not = None
    if place is None:
        why_not = "the bucket's address is of a kind that it has not"
    elif store.bucket.endswith("--x-s3"):
        why_not = "directory buckets have sessions of their own"
    elif authorities and place[0].startswith("https://") and not is_the_systems(authorities):
        why_not = f"the environment or the profile names authorities{TRUSTS_MORE}"
    if place is None or why_not is not None:
        if options.client == "obstore":
            raise Misuse(f"{store.url}: client=obstore is not available: {why_not}")
        _log.info("%s: without obstore: %s", store.url, why_not)
        return None
    endpoint, is_virtual = place
    is_tls = endpoint.startswith("https://")
    region = client.meta.region_name
    config: S3Config = {
        "aws_endpoint_url_s3": endpoint,  # `endpoint` would yield to AWS_ENDPOINT_URL_S3: another server
        "virtual_hosted_style_request": is_virtual,
        "region": "us-east-1" if region in {None, "aws-global"} else region,
        "skip_signature": options.anonymous,
        "unsigned_payload": is_tls,
        "request_payer": options.requester_pays,
        "disable_tagging": False,
        "s3_express": False,
        **_encryption(options),
    }
    limits: ClientConfig = {
        "allow_http": not is_tls,
        "allow_invalid_certificates": options.verify is False,
        "connect_timeout": timedelta(seconds=options.connect_timeout_seconds),
        "timeout": timedelta(days=1),
    }
    if bundle := options.verify if isinstance(options.verify, str) else authorities:
        limits["root_certificate"] = await asyncio.to_thread(Path(bundle).read_bytes)
    if options.proxy is not None:
        limits["proxy_url"] = options.proxy.get_secret_value()

    def objects(limits: ClientConfig) -> Objects:
        provider = None if options.anonymous else _credentials(options, session)
        return Objects(
            store.bucket,
            config=config,
            client_options=limits,
            retry_config={"max_retries": 0},
            credential_provider=provider,
        )

    attributes = {"Storage-Class": options.storage_class} if options.storage_class else {}
    return Fast(
        reads=objects({**limits, "read_timeout": timedelta(seconds=options.read_timeout_seconds)}),
        writes=objects(limits),
        attributes=attributes | options.metadata,
        tags=options.tags,
    )


class _Seen(BotoCoreError):  # type: ignore[misc]  # its package ships no types
    """A request of the client's, stopped before it was sent, to see where it would have gone."""

    fmt = "{url}"


async def _place_of(client: Any, bucket: str) -> tuple[str, bool] | None:
    """Where the client sends requests about the bucket, and whether its name is part of the host.

    Found by a request of a kind that is never made otherwise: those of this kind are stopped from then on.
    """

    def stop(request: Any, **event: Any) -> None:
        raise _Seen(url=request.url)

    client.meta.events.register_first("before-send.s3.GetObjectAcl", stop, unique_id="offload-place")
    try:
        await client.get_object_acl(Bucket=bucket, Key="key")
        return None
    except _Seen as seen:
        url = urlsplit(str(seen))
    origin = f"{url.scheme}://{url.netloc}"
    if url.path.endswith(f"/{bucket}/key"):
        return origin + url.path.removesuffix(f"/{bucket}/key"), False
    if url.netloc.startswith(f"{bucket}."):
        return origin + url.path.removesuffix("/key"), True
    return None


def _encryption(options: S3Options) -> S3Config:
    config: S3Config = {}
    if options.sse:
        config["server_side_encryption"] = options.sse
    if options.sse_kms_key_id:
        config["sse_kms_key_id"] = options.sse_kms_key_id
    if options.sse_bucket_key is not None:
        config["sse_bucket_key_enabled"] = options.sse_bucket_key
    if options.sse_c_key is not None:
        config["server_side_encryption"] = "sse-c"
        config["sse_customer_key_base64"] = options.sse_c_key.get_secret_value()
    return config


def _credentials(options: S3Options, session: Any) -> Callable[[], Coroutine[Any, Any, S3Credential]]:
    """Asks the session as often as obstore wants credentials; what is renewed there is renewed here."""

    async def credentials() -> S3Credential:
        key, secret = shown(options.key), shown(options.secret)
        if key is not None and secret is not None:
            return _credential(key, secret, shown(options.token), None)
        found = await session.get_credentials()
        if found is None:
            raise NoCredentialsError
        frozen = await found.get_frozen_credentials()
        is_renewed = isinstance(found, RefreshableCredentials)
        until = datetime.now(UTC) + VALID_FOR if is_renewed else None
        return _credential(frozen.access_key, frozen.secret_key, frozen.token, until)

    return credentials


def _credential(key: str, secret: str, token: str | None, until: datetime | None) -> S3Credential:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": until}


def _reply(status: int, body: str, *, operation: str) -> ClientError:
    """An error reply as the client behind has it, so that one table tells what it means."""
    said = dict(_FIELD.findall(body))
    headers = {"x-amz-request-id": ""}  # obstore keeps no headers; nothing may be concluded from that
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": said, "ResponseMetadata": metadata}, operation)
