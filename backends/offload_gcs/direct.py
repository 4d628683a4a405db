"""The requests of one store that move bytes of fragments, by the byte transport (`offload_cloud.direct`).

`GcsClient` finds and renews the credentials, and chooses the proxy. This module takes both from it, and sends
with blocking sockets. Invariants:

- One call is one request on the wire, or none. Redirects are not followed.
- Credentials go to the endpoint and to no other server.
- A partial reply has at most as many bytes as were asked for, or is an error before memory is taken for it.
- An error leaves no reply open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offload_cloud.direct import Direct, DirectReply
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.long_reads import RangeReply, range_reply
from offload_cloud.ranges import PART, range_of, size_asked_for
from offload_cloud.tls import trusting

from offload.contracts.store import Buffer, Span
from offload.ground.errors import TryAgain
from offload_gcs.client import GcsClient, GcsReply, is_success
from offload_gcs.failures import BEYOND_THE_END, NOT_FROM_GCS, Refused
from offload_gcs.options import GcsOptions
from offload_gcs.proofs import is_bytes

__all__ = ["DirectClient"]


class DirectClient:
    """Sends by the byte transport, with the credentials of `client`."""

    def __init__(self, client: GcsClient, options: GcsOptions) -> None:
        self._client = client
        self._direct = Direct(
            limits=TimeLimits(
                connect_seconds=options.connect_timeout_seconds, stall_seconds=options.read_timeout_seconds
            ),
            connections_max=options.connections_max,
            context=lambda: trusting(options.verify),
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        may_resume: bool = False,
    ) -> GcsReply:
        """Send one request, and read its reply, as `GcsClient.send` does."""
        async with await self._begun(method, url, headers or {}, body, may_resume) as reply:
            return GcsReply(reply.status, reply.headers, await reply.read())

    async def read(self, url: str, span: Span, *, where: str) -> RangeReply | None:
        """Send one GET for a span, and return its reply while the body is on its way.

        Returns None for a span beyond the object's end.
        """
        wanted = range_of(span)
        assert wanted is not None
        try:
            reply = await self._begun("GET", url, {"Range": wanted}, (), False)
        except Refused as exc:
            if exc.status == BEYOND_THE_END:
                return None
            raise
        if not is_bytes(reply.headers):
            reply.close()
            raise TryAgain(f"{where}: {NOT_FROM_GCS}")
        return range_reply(
            reply,
            span,
            status=reply.status,
            content_range=reply.headers.get("content-range"),
            size_bytes=reply.check_body(),
            where=where,
        )

    async def aclose(self) -> None:
        """Close the connections. Idempotent; a later request opens new ones."""
        await self._direct.aclose()

    async def _begun(
        self, method: str, url: str, headers: Mapping[str, str], body: Sequence[Buffer], may_resume: bool
    ) -> DirectReply:
        """Send one request, and return the head of its reply. Raises `Refused` for an error reply."""
        sent = Request(
            method=method, url=url, headers=await self._client.headers_for(url, headers), body=body
        )
        reply = await self._direct.ask(sent, proxy=self._client.proxy)
        try:
            if not is_success(reply.status, may_resume=may_resume):
                refusal, retry_after = await reply.read(), reply.headers.get("retry-after", "")
                raise Refused(reply.status, refusal, retry_after=retry_after)
            reply.check_body(size_asked_for(headers.get("Range", "")) if reply.status == PART else None)
        except BaseException:
            reply.close()
            raise
        return reply
