"""The configuration of `offload run`: a TOML file, or the arguments of the command.

    source, tier, keys    the URLs of the broker's data, of the tier, and of the key service
    broker                the URL of the broker itself, which is asked what is committed and which node leads
    broker_user, broker_password
    [source_options]      options of the source
    [options]             options of the tier's backend, and limits, as `--option`
    [streams."GLOB"]      what is done with the streams whose names match
    [upkeep]              when the tier is kept in order; "off" leaves a job out
    [prices]              what requests and storage cost, for `--check`
    memory, listen, control, stop_seconds, discover, instance

The tables of streams are tried in the order of the file, and the first that matches a name counts, alone. A
glob matches the queue's own name, or the name of its folder (`model.own_names`). The table `"*"` is the
default: it comes last, wherever it is in the file. Without it, the defaults of this module apply to the
streams that no glob matches.

Invariants: an unknown key or a wrong value is an error with its file and line, never ignored. No error and
no `repr` has the value of an option of the store or source, or the broker's password: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from offload.follow.rules import FollowRules
from offload.ground.errors import Misuse
from offload.index.terms import Spec
from offload.model.compression import Compression
from offload.model.labels import MasterKey
from offload.model.own_names import matches_glob
from offload.model.quantities import seconds_from, size_bytes_from
from offload.service.address import OFF, address_from
from offload.upkeep.retention import Retention

__all__ = ["PricesConfig", "RunConfig", "StreamConfig", "UpkeepConfig"]


T = TypeVar("T")

HOLD_BACK_SECONDS: Final = 1.0
BASE_SIZE_BYTES: Final = 128 * 2**20
UPLOAD_SIZE_BYTES: Final = 96 * 2**20
"""The shares of `memory`: of the program, and of each fragment that is uploaded (`service.assembly`)."""

DEFAULT_GLOB: Final = "*"


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError('expected a duration such as "30s" or "7d"')
    return _or_value_error(seconds_from, value)


def _seconds_or_off(value: object) -> float | None:
    seconds = None if value == OFF else _seconds(value)
    if seconds == 0:
        raise ValueError(f'expected a duration above 0, or "{OFF}"')
    return seconds


def _size_bytes(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('expected a size such as "64MiB" or "100GB"')
    return _or_value_error(size_bytes_from, value)


def _memory(value: int) -> int:
    least = BASE_SIZE_BYTES + UPLOAD_SIZE_BYTES
    if value < least:
        raise ValueError(f"expected at least {least // 2**20}MiB")
    return value


def _or_value_error(check: Callable[[str], T], value: str) -> T:
    try:
        return check(value)
    except Misuse as error:
        raise ValueError(str(error)) from error


def _compress(value: str) -> str:
    return str(_or_value_error(Compression.parse, value))


def _encrypt(value: str) -> str:
    _or_value_error(MasterKey.parse, value)
    return value


def _index(value: str) -> str:
    return str(_or_value_error(Spec.parse, value))


def _of_broker(value: str | None, info: ValidationInfo) -> str | None:
    if value is not None and info.data.get("broker") is None:
        raise ValueError("is for the broker, and `broker` is missing")
    return value


def _instance(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError(f'expected the name of a file, or "{OFF}"')
    return value


def _address(value: object) -> tuple[str, int] | None:
    return _or_value_error(address_from, str(value))


Seconds = Annotated[float, BeforeValidator(_seconds)]
Interval = Annotated[float | None, BeforeValidator(_seconds_or_off)]
SizeBytes = Annotated[int, BeforeValidator(_size_bytes)]


class _Section(BaseModel):
    """A table of the file. The names of its keys are the aliases of the fields, which also have units."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=False)


class StreamConfig(_Section):
    """The rules for the streams of a glob."""

    follow: bool = True
    """False: leave these streams out."""

    max_lag_seconds: Seconds = Field(default=30.0, alias="max_lag")
    hold_back_seconds: Seconds | None = Field(default=None, alias="hold_back")
    """None: 1 s, or half of `max_lag` if that is less."""

    takeover_seconds: Seconds = Field(default=60.0, alias="takeover")
    alarm_lag_seconds: Seconds | None = Field(default=None, alias="alarm_lag")
    """The lag at which a stream counts as late. None: three times `max_lag`."""

    on_gap: Literal["pause", "new-part"] = "pause"
    """The action if the source does not continue a stream: after a gap, or if it has another history."""

    age_seconds_max: Seconds | None = Field(default=None, alias="max_age", gt=0)
    """Older data is deleted. None: data is kept for ever."""

    size_bytes_max: SizeBytes | None = Field(default=None, alias="max_bytes", gt=0)
    """The oldest data is deleted until at most this much is left, counted before compression."""

    compress: Annotated[str, AfterValidator(_compress)] | None = None
    """As `Compression.parse` reads it. None: the tier's default."""

    encrypt: Annotated[str, AfterValidator(_encrypt)] | None = None
    """As `MasterKey.parse` reads it. None: streams without a key stay plain."""

    index: list[Annotated[str, AfterValidator(_index)]] = Field(default_factory=list)
    """The SPECs by which the streams are indexed, as `Spec.parse` reads them."""

    @model_validator(mode="after")
    def _check(self) -> StreamConfig:
        if self.index and self.encrypt is not None:
            raise ValueError("an encrypted stream is not indexed: an index would show equal keys")
        try:
            _ = self.rules
        except Misuse as error:
            raise ValueError(str(error)) from error
        if self.rules.alarm_seconds < self.max_lag_seconds:
            raise ValueError(
                f"alarm_lag is at least max_lag ({self.max_lag_seconds:g} s), not "
                f"{self.rules.alarm_seconds:g} s: the stream would be late all the time"
            )
        return self

    @property
    def must_match(self) -> list[str]:
        """The keys of this table that do harm if they silently count for no stream."""
        asked = {
            "follow = false": not self.follow,
            "max_age": self.age_seconds_max is not None,
            "max_bytes": self.size_bytes_max is not None,
            "encrypt": self.encrypt is not None,
        }
        return [key for key, is_asked in asked.items() if is_asked]

    @property
    def rules(self) -> FollowRules:
        """When a follower copies what."""
        held = self.hold_back_seconds
        return FollowRules(
            max_lag_seconds=self.max_lag_seconds,
            hold_back_seconds=min(HOLD_BACK_SECONDS, self.max_lag_seconds / 2) if held is None else held,
            takeover_seconds=self.takeover_seconds,
            alarm_lag_seconds=self.alarm_lag_seconds,
            new_part=self.on_gap == "new-part",
        )

    @property
    def retention(self) -> Retention | None:
        """The limits of the stream on the tier. None: nothing is ever trimmed."""
        if self.age_seconds_max is None and self.size_bytes_max is None:
            return None
        return Retention(age_seconds_max=self.age_seconds_max, size_bytes_max=self.size_bytes_max)


class UpkeepConfig(_Section):
    """The time between two runs of each job that keeps the tier in order. None: never."""

    retention_seconds: Interval = Field(default=3600.0, alias="retention")
    sweep_seconds: Interval = Field(default=86_400.0, alias="sweep")
    compact_seconds: Interval = Field(default=86_400.0, alias="compact")
    index_seconds: Interval = Field(default=600.0, alias="index")
    verify_seconds: Interval = Field(default=7 * 86_400.0, alias="verify")
    verify_bytes_per_second_max: SizeBytes | None = Field(default=None, alias="verify_rate")


class PricesConfig(_Section):
    """Prices in place of the list prices, in the currency of your bill. For `--check`."""

    write_per_1000: float | None = Field(default=None, ge=0)
    list_per_1000: float | None = Field(default=None, ge=0)
    read_per_1000: float | None = Field(default=None, ge=0)
    storage_per_gib_month: float | None = Field(default=None, ge=0)


class RunConfig(_Section):
    """The whole configuration of `offload run`."""

    source: str
    tier: str
    keys: str | None = None
    broker: str | None = None
    """The URL of the broker. None: nobody is asked, and `hold_back` decides."""

    broker_user: Annotated[str | None, AfterValidator(_of_broker)] = None
    broker_password: Annotated[str | None, AfterValidator(_of_broker)] = Field(default=None, repr=False)
    source_options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    streams: dict[str, StreamConfig] = Field(default_factory=dict)
    upkeep: UpkeepConfig = Field(default_factory=UpkeepConfig)
    prices: PricesConfig = Field(default_factory=PricesConfig)
    memory_size_bytes: Annotated[SizeBytes, AfterValidator(_memory)] = Field(
        default=512 * 2**20, alias="memory"
    )
    address: Annotated[tuple[str, int] | None, BeforeValidator(_address)] = Field(
        default=None, alias="listen"
    )
    """The host and port of `/metrics` and its like. None: nothing listens."""

    control: str | None = None
    """The path of the socket for `offload ctl`, or "off". None: in the folder of `service.door`."""

    stop_seconds: float = Field(default=20.0, ge=0)
    discover_seconds: Seconds = Field(default=30.0, alias="discover", gt=0)
    instance: Annotated[str, AfterValidator(_instance)] | None = None
    """The file of the identity of this process, or "off". None: beside the configuration, if there is one."""

    @model_validator(mode="after")
    def _default_last(self) -> RunConfig:
        default = self.streams.pop(DEFAULT_GLOB, StreamConfig())
        self.streams[DEFAULT_GLOB] = default
        return self

    @property
    def is_indexed(self) -> bool:
        """True if some stream is indexed."""
        return any(each.index for each in self.streams.values())

    def glob_of(self, stream: str) -> str:
        """Return the glob whose table counts for a stream: the first that matches one of its names."""
        return next(glob for glob in self.streams if matches_glob(stream, glob))

    def of(self, stream: str) -> StreamConfig:
        """Return what is done with a stream."""
        return self.streams[self.glob_of(stream)]
