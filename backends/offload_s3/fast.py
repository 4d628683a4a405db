"""A bucket's immutable objects by obstore, with the address, credentials and headers of the fsspec client.

The fsspec client says where requests go, so that addressing, partitions and settings mean the same. Its
session finds and renews the credentials. Over TLS the payload is not signed, because TLS protects it. Over
plain HTTP it is signed. Obstore sends no CRC-32C. A bucket with an object lock refuses puts without one,
and the fsspec client makes them then.

`why_not_fast` works without obstore. The other functions import it.
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
"""Variables that obstore alone obeys, and always. No other client of AWS reads them."""

VALID_FOR: Final = timedelta(minutes=10)
"""The session renews credentials with less time left, so those that it returns are valid for this long."""

_log: Final = logging.getLogger(__name__)
_FIELD: Final = re.compile(r"<(Code|Message|Region)>([^<]*)</")


def why_not_fast(options: S3Options) -> str | None:
    """Return the first option or variable that obstore cannot honour exactly; None if it can honour all."""
    if isinstance(options.verify, str) and not is_the_systems(options.verify):
        return f"the option `verify` names authorities{TRUSTS_MORE}"
    for name in OF_OBSTORE_ALONE:
        if name in os.environ:
            return f"{name} is set, which obstore alone would obey; use options instead"
    return None


def fast_store(store: S3Store) -> FastStore:
    """Return `store` with its immutable objects moved by obstore."""
    from offload_cloud.fast import FastStore

    options = store.options

    def explain(status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        cause = _reply(status, body, operation="PutObject" if mutation else "GetObject")
        # Each of these replies refuses the request, so nothing was applied and it may be made again.
        if code_of(cause) == "400":
            return None  # not from an S3 server: the fsspec client sees the headers, and says what is wrong
        if code_of(cause) in ELSEWHERE:
            return None  # the fsspec client goes to the region that the reply names
        if wants_a_checksum(cause):
            return None  # the fsspec client sends one
        return explained(cause, what=what, where=store.url, key=key, mutation=mutation)

    return FastStore(
        store,
        open_fast=lambda: _opened(store),
        explain=explain,
        stall_seconds=options.read_timeout_seconds,
        at_once=options.connections_max,
    )


def _why_not(place: tuple[str, bool] | None, bucket: str, authorities: str | None) -> str | None:
    """Return why obstore cannot serve this bucket; None if it can.

    `why_not_fast` sees the options alone. This sees the address, the bucket and the profile.
    """
    if place is None:
        return "obstore does not know this kind of bucket address"
    if bucket.endswith("--x-s3"):
        return "directory buckets need sessions of their own"
    if authorities and place[0].startswith("https://") and not is_the_systems(authorities):
        return f"the environment or the profile names authorities{TRUSTS_MORE}"
    return None


async def _opened(store: S3Store) -> Fast | None:
    from obstore.store import S3Store as Objects
    from offload_cloud.fast import Fast

    options, client, session = store.options, await store.client(), await store.session()
    # Even a request that is stopped is signed first. If there are no credentials, that error is translated
    # here.
    place = await store.ask(_place_of(client, store.bucket), "open a client")
    # The client asks the environment and the profile only if the option `verify` says nothing else.
    authorities = session.get_config_variable("ca_bundle") if options.verify is True else None
    why_not = _why_not(place, store.bucket, authorities)
    if place is None or why_not is not None:
        if options.client == "obstore":
            raise Misuse(f"{store.url}: client=obstore is not available: {why_not}")
        _log.info("%s: without obstore: %s", store.url, why_not)
        return None
    endpoint, is_virtual = place
    is_tls = endpoint.startswith("https://")
    region = client.meta.region_name
    config: S3Config = {
        "aws_endpoint_url_s3": endpoint,  # AWS_ENDPOINT_URL_S3 would override `endpoint`: another server
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
        "timeout": timedelta(
            days=1
        ),  # its default would end a large transfer; stalls have limits of their own
    }
    # Over TLS only the system's own file gets here: with any other, obstore was refused above or before.
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
            # A repeat by obstore could hide that the first request was applied. `RetryingStore` repeats.
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
    """A request that was stopped before it was sent. Its text is the URL to which it would have gone."""

    fmt = "{url}"


async def _place_of(client: Any, bucket: str) -> tuple[str, bool] | None:
    """Return the endpoint of the client's requests, and True if the bucket's name is part of the host.

    Found by a request of a kind that this backend never makes: this client stops all requests of that kind.
    None if the address has another form.
    """

    def stop(request: Any, **event: Any) -> None:
        raise _Seen(url=request.url)

    # This event is the last one before the network. By then the client has applied all that decides the
    # address: options, environment, profile and region.
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
    """Return the function that obstore calls for credentials. It asks the session, which renews them."""

    async def credentials() -> S3Credential:
        key, secret = shown(options.key), shown(options.secret)
        if key is not None and secret is not None:
            return _credential(key, secret, shown(options.token), None)
        found = await session.get_credentials()
        if found is None:
            raise NoCredentialsError
        # Frozen: a renewal between reads of single fields could mix the key of one set with the secret of
        # another.
        frozen = await found.get_frozen_credentials()
        # Without an expiry, obstore would never ask again, and would use renewed credentials beyond their
        # end.
        is_renewed = isinstance(found, RefreshableCredentials)
        until = datetime.now(UTC) + VALID_FOR if is_renewed else None
        return _credential(frozen.access_key, frozen.secret_key, frozen.token, until)

    return credentials


def _credential(key: str, secret: str, token: str | None, until: datetime | None) -> S3Credential:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": until}


def _reply(status: int, body: str, *, operation: str) -> ClientError:
    """Return an error reply in the form of the fsspec client, so that one table translates both."""
    said = dict(_FIELD.findall(body))
    # obstore keeps no headers. Their absence must not look like a server that does not speak S3.
    headers = {"x-amz-request-id": ""}
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": said, "ResponseMetadata": metadata}, operation)
