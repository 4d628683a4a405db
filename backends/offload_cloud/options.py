"""The base of a backend's options: checked by pydantic, frozen, and silent about secrets.

Invariant: what is wrong raises `Misuse` that names the option; no text, `repr` or pickle of a message
holds the value of a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from offload.errors import Misuse


class StoreOptions(BaseModel):
    """Every option of a backend, as text from the command line or as a value from Python."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: ClassVar[str]
    """The backend's name, for messages."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Check options. Raises `Misuse` that names each wrong one; secrets are never repeated."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as exc:
            wrong = "; ".join(_said(error) for error in exc.errors(include_input=False))
            raise Misuse(f"{cls.backend}: {wrong}") from None


def shown(secret: SecretStr | None) -> str | None:
    """The value of a secret, for the client that needs it and nobody else."""
    return None if secret is None else secret.get_secret_value()


def _said(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"option {place!r}: {error['msg']}" if place else str(error["msg"])
