"""Tests of the configuration of `offload run`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from offload.service.config import RunConfig, StreamConfig

MINIMUM: dict[str, Any] = {"source": "rabbitmq:///data", "tier": "s3://bucket/tier"}


def test_the_first_glob_that_matches_counts_and_the_star_comes_last() -> None:
    streams = {"*": {"max_lag": "5s"}, "orders-*": {"max_age": "7d"}, "orders-1": {"follow": False}}
    config = RunConfig.model_validate(MINIMUM | {"streams": streams})

    assert [config.glob_of(name) for name in ("orders-1", "orders-2", "other")] == [
        "orders-*",
        "orders-*",
        "*",
    ]
    assert config.of("other").rules.max_lag_seconds == 5.0
    assert config.of("orders-1").follow


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("off", None)],
)
def test_a_port_alone_is_open_to_this_machine_only(text: str, address: tuple[str, int] | None) -> None:
    assert RunConfig.model_validate(MINIMUM | {"listen": text}).address == address


def test_a_secret_is_not_in_the_repr_of_a_configuration() -> None:
    config = RunConfig.model_validate(
        MINIMUM | {"options": {"secret": "hush"}, "source_options": {"a": "hush"}}
    )

    assert "hush" not in repr(config)


def test_the_alarm_is_three_times_the_lag_unless_it_is_given() -> None:
    assert StreamConfig.model_validate({"max_lag": "10s"}).rules.alarm_seconds == 30
    assert StreamConfig.model_validate({"max_lag": "10s", "alarm_lag": "1m"}).rules.alarm_seconds == 60


def test_the_patience_of_a_standby_is_that_of_the_configuration() -> None:
    assert StreamConfig.model_validate({"takeover": "2m"}).rules.takeover_seconds == 120


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"index": ["amqp"]}, "'amqp' is no SPEC of an index"),
        ({"index": "amqp:key"}, "list"),
        ({"index": ["amqp:key"], "encrypt": "tier"}, "an encrypted stream is not indexed"),
    ],
)
def test_an_index_that_cannot_be_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        StreamConfig.model_validate(table)
