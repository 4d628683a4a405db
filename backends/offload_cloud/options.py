"""The base of a backend's options: pydantic checks them, and they are frozen.

Invariants: a wrong option raises `Misuse` with its name; no message, `repr` or pickled error holds the value
of a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError

from offload.ground.errors import Misuse

__all__ = ["Endpoint", "Pairs", "Proxy", "StoreOptions", "Verify", "shown"]


class StoreOptions(BaseModel):
    """The options of a backend, as text from the command line or as values from Python."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: ClassVar[str]
    """The backend's name, for messages."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Check options. Raises `Misuse` that names each wrong one, and never repeats a secret."""
        if "client" in options:
            raise Misuse(f"{cls.backend}: option 'client' is gone, for all requests go one way: leave it out")
        try:
            return cls.model_validate(dict(options))
        except ValidationError as exc:
            # Without the input, and without the cause: pydantic's error holds every value, secrets too.
            wrong = "; ".join(_said(error) for error in exc.errors(include_input=False))
            raise Misuse(f"{cls.backend}: {wrong}") from None


def shown(secret: SecretStr | None) -> str | None:
    """Return the value of a secret. Only for the client that sends it."""
    return None if secret is None else secret.get_secret_value()


def _pairs(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in value.split(","))):
        name, equals, said = word.partition("=")
        if not equals or name in pairs:
            raise ValueError("use NAME=VALUE,NAME=VALUE, each name once")
        pairs[name] = said
    return pairs


def _truth(value: object) -> object:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _file(value: bool | str) -> bool | str:
    if isinstance(value, str) and not Path(value).is_file():
        raise ValueError(f"true, false, or a file of certificate authorities; there is no file {value!r}")
    return value


def _address(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().startswith(("http://", "https://")):
        raise ValueError("begins with http:// or https://")
    return value


def _without_login(value: str) -> str:
    scheme, slashes, rest = value.partition("://")
    if scheme not in {"http", "https"} or not slashes or not rest.strip("/"):
        raise ValueError("use http://HOST:PORT or https://HOST:PORT")
    if "@" in rest.partition("/")[0]:
        raise ValueError("an endpoint holds no credentials; give them as options of their own")
    return value


Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
"""Names and values: a mapping, or `a=b,c=d`. A value that contains a comma needs the mapping."""

Verify = Annotated[bool | str, BeforeValidator(_truth), AfterValidator(_file)]
"""True to check TLS certificates, False to accept any, or a file of certificate authorities."""

Proxy = Annotated[SecretStr, AfterValidator(_address)]
"""A proxy's URL. It is a secret because it may hold a login."""

Endpoint = Annotated[str, AfterValidator(_without_login)]
"""A server's URL. It appears in messages, so it may hold no login."""


def _said(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    said = str(error["msg"]).removeprefix("Value error, ")
    return f"option {place!r}: {said}" if place else said
