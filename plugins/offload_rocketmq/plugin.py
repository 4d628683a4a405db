"""The declarations of the RocketMQ plugin. Imports nothing of its code."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import DecoderType, SourceType, hookimpl


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare a decoder of the records: bodies, keys, tags and properties."""
    return [DecoderType(name="rocketmq", target="offload_rocketmq.decoder:RocketmqDecoder")]


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare the store of a broker as a source."""
    return [
        SourceType(
            name="rocketmq",
            target="offload_rocketmq.source:open_url",
            schemes=("rocketmq",),
            options=("broker",),
        )
    ]
