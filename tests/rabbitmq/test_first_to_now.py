"""A consumer reads from the first archived message to the newest one, also if our processes are killed."""

from __future__ import annotations

import os

import pytest
from campaign import campaign
from first_to_now import Load, first_to_now
from servers.rabbitmq import RECIPE
from servers.scratch import scratch_folder
from servers.session import REQUIRED

pytestmark = campaign("a minute beside RabbitMQ; make test reads a tier and a source as one stream")


def test_each_message_comes_once_while_the_sidecar_and_the_server_are_killed() -> None:
    """The broker deletes the first messages before anybody reads. `python -m first_to_now` takes longer."""
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")

    load = Load(rate=5000, seconds=20, kills=4, lag_seconds=3)
    with scratch_folder("first-to-now") as scratch:
        found = first_to_now(load, scratch)

    assert found.is_right(load), found
