"""The declarations of the Pulsar plugin. Imports nothing of its code."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import DecoderType, hookimpl

NEEDS = "ledger-offload[pulsar]"


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare a decoder of Pulsar's entries: the messages of producers, with their metadata."""
    return [DecoderType(name="pulsar", target="offload_pulsar.decoder:PulsarDecoder", needs=NEEDS)]
