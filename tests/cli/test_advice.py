"""What an error about a stream says at its end: the command that helps, in full, and the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from command_line import offload
from follower_world import LEADING
from osiris_data import DATA

from offload.cli.kit.advising import Advice
from offload.cli.kit.log_lines import log_event
from offload.cli.run import advice_of
from offload.contracts.events import StreamPaused
from offload.follow.rules import FollowState
from offload.ground.errors import (
    Absent,
    Corrupt,
    Denied,
    Diverged,
    Divergence,
    NoSpace,
    NoSuchKey,
    OffloadError,
    RootsLost,
    StoreDenied,
    StreamDeleted,
    TryAgain,
    UnsupportedFormat,
)
from offload.service.config import RunConfig
from offload.service.health import Health

STREAM = "__orders_1795918496456860468"
LOST = RootsLost("a fragment is there", "x", stream=STREAM, tier="s3://b/t", expected=3, found=None)
DAMAGED = Corrupt("checksum", "data/x.fragment", expected=1, found=2)
ERRORS = {
    "gap": (Diverged("gap", kind=Divergence.GAP), "sync"),
    "lags": (Diverged("behind", kind=Divergence.BEHIND), "status"),
    "full": (NoSpace("the file system is full"), "sweep"),
    "no key": (NoSuchKey("there is no such master key"), "run --check"),
    "refused": (StoreDenied("the access key is not known"), "run --check"),
    "denied": (Denied("Permission denied"), "run --check"),
    "deleted": (StreamDeleted("it was deleted", epoch=1), "sync"),
    "damaged": (DAMAGED, "verify"),
    "damaged source": (Corrupt("damaged chunk at offset 3", "/x", expected=1, found=2), "run --check"),
    "absent": (Absent("data/x.fragment", STREAM, tier="s3://b/t"), ""),
    "roots": (LOST, ""),
    "newer": (UnsupportedFormat("version 9"), "run --check"),
    "silent": (TryAgain("no answer"), "run --check"),
    "ours": (OffloadError("KeyError: 1"), "run --check"),
}


@pytest.fixture
def advice() -> Advice:
    """Return the advice of a configuration whose tier needs options, of which one is secret."""
    config = RunConfig.model_validate(
        {
            "source": "rabbitmq:///data",
            "tier": "s3://b/t",
            "keys": "keyfile:/keys",
            "options": {"region": "eu-central-1", "secret": "hush"},
            "streams": {"orders*": {"encrypt": "tier-2026"}},
        }
    )
    return advice_of(config, "/etc/offload/run.toml", None, is_running=True)


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_ends_with_a_command_of_ours_in_full_and_a_page_that_can_be_printed(
    name: str, advice: Advice
) -> None:
    error, command = ERRORS[name]
    line = f"{error}{advice.of(STREAM, error)}"

    words = re.search(r"; run: (offload .*?)(?:; then|; see|$)", line)
    assert (words[1] if words else "").startswith(f"offload {command}" if command else "")
    if command and command not in ("status", "run --check"):
        assert words is not None
        assert {"-o", "region=eu-central-1", "secret=..."} <= {*shlex.split(words[1])}
    assert "hush" not in line
    assert bool(command) == line.count("; then: offload ctl retry orders --config /etc/offload/run.toml")
    [topic] = re.findall(r"offload help (\S+?)(?:;|$)", line)
    assert offload("help", topic).code == 0


def test_the_command_for_a_gap_has_the_master_key_and_goes_on_in_a_new_part(advice: Advice) -> None:
    said = advice.of(STREAM, Diverged("gap", kind=Divergence.GAP))

    assert (
        f"offload sync rabbitmq:///data s3://b/t -o region=eu-central-1 -o secret=... --keys keyfile:/keys "
        f"--encrypt tier-2026 --stream {STREAM} --new-part" in said
    )


def test_a_problem_of_a_process_and_its_status_end_with_what_to_do(advice: Advice) -> None:
    class Fixed:
        error = TryAgain("the folder is gone")
        source = SimpleNamespace(url="rabbitmq:///data")
        lost_tails: Mapping[str, int] = MappingProxyType({})
        statuses = (replace(LEADING, stream=STREAM, state=FollowState.PAUSED, error=NoSpace("full")),)

    health = Health(dispatchers=[Fixed()], advice=advice)  # type: ignore[list-item]

    lost, paused = health.problems()
    assert lost.endswith("; run: offload run --check /etc/offload/run.toml; see: offload help run#run-it")
    assert paused.startswith("stream 'orders' is paused: full; run: offload sweep s3://b/t ")
    assert paused.endswith("; see: offload help a-sync-stopped#make-room-on-the-tier")
    assert health.as_json()["streams"][0]["next"].startswith("run: offload sweep s3://b/t ")


def test_a_line_of_the_log_has_the_command_beside_the_error(
    advice: Advice, caplog: pytest.LogCaptureFixture
) -> None:
    log_event(StreamPaused(stream=STREAM, error=NoSpace("full")), advise=advice.of)

    [fields] = [record.__dict__["fields"] for record in caplog.records]
    assert (fields["stream"], fields["on_tier"]) == ("orders", STREAM)
    assert fields["next"].startswith("run: offload sweep s3://b/t ")


def test_a_sync_has_no_configuration_and_names_the_check_of_the_store_with_its_options(
    tmp_path: Path,
) -> None:
    source = f"rabbitmq://{DATA}/torn/crc_mismatch_middle_chunk"

    ran = offload("sync", source, tmp_path / "tier", "-o", "patience_seconds=9")

    assert ran.code == 1
    check = f"offload check {tmp_path}/tier -o patience_seconds=9"
    assert ran.error.endswith(f"; run: {check}; see: offload help a-sync-stopped#repair-the-source")
