"""The declarations of the key services. Imports nothing of the services themselves, and no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.contracts.plugin import KeyServiceType, hookimpl

SERVICES: Final = (
    # name, scheme, extra, target
    ("file", "keyfile", "encrypt", "offload_keys.local:open_files"),
    ("env", "keyenv", "encrypt", "offload_keys.local:open_environment"),
    ("aws-kms", "awskms", "awskms", "offload_keys.awskms:AwsKeys"),
    ("google-kms", "gcpkms", "gcpkms", "offload_keys.gcpkms:GoogleKeys"),
    ("azure-key-vault", "azurekeyvault", "azurekeyvault", "offload_keys.azurekeyvault:AzureKeys"),
    ("vault", "vault", "vault", "offload_keys.vault:VaultKeys"),
)


@hookimpl
def offload_keys() -> Sequence[KeyServiceType]:
    """Declare master keys in files and in the environment, and the key services of clouds."""
    return [
        KeyServiceType(name=name, target=target, schemes=(scheme,), needs=f"ledger-offload[{extra}]")
        for name, scheme, extra, target in SERVICES
    ]
