"""The names of queues: in globs, in arguments and in what is printed, beside those of a broker's folders."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from command_line import offload
from osiris_data import DATA

from offload.model.own_names import (
    labels_of,
    matches_glob,
    may_match_glob,
    named_so,
    own_name,
    with_own_names,
)
from offload.service.config import RunConfig

ROOT = Path(__file__).parents[2]
OLD, NEW = "__orders_1795918496456860468", "__orders_1795918999999999999"
SALES = "sales_orders_1795918496456860468"
LIKE_SALES = "__sales_orders_1795918496456860468"


@pytest.mark.parametrize(
    ("stream", "own"),
    [
        (OLD, "orders"),
        (f"{OLD}-part-2", "orders-part-2"),
        (SALES, "sales_orders"),
        ("___orders__1795918496456860468", "_orders_"),
        ("orders", "orders"),
        ("__orders_17959184964568604", "__orders_17959184964568604"),
        ("___1795918496456860468", "__"),
        ("__bestellungen_für_1795918496456860468", "__bestellungen_für_1795918496456860468"),
    ],
)
def test_the_own_name_is_that_of_the_queue_if_a_broker_made_the_folder(stream: str, own: str) -> None:
    assert own_name(stream) == own


def test_streams_that_share_a_name_are_shown_by_their_folders() -> None:
    """A queue that was declared again; a virtual host and a queue that look like one queue."""
    assert labels_of([OLD, "__payments_1795918496456860468"]) == {
        OLD: "orders",
        "__payments_1795918496456860468": "payments",
    }
    for pair in ([OLD, NEW], [SALES, LIKE_SALES], [OLD, "orders"]):
        assert labels_of(pair) == {name: name for name in pair}
    assert labels_of([OLD, SALES]) == {OLD: "orders", SALES: "sales_orders"}


def test_a_name_means_the_stream_of_that_name_before_any_that_is_called_so() -> None:
    assert named_so([OLD, NEW, "orders"], "orders") == ["orders"]
    assert named_so([OLD, NEW], "orders") == [OLD, NEW]
    assert named_so([OLD, NEW], NEW) == [NEW]
    assert named_so(["__a_b_1795918496456860468"], "a.b") == ["__a_b_1795918496456860468"]
    assert named_so([OLD], "nope") == []


@pytest.mark.parametrize(
    ("glob", "matching"),
    [
        ("orders", [OLD]),
        ("ord*", [OLD]),
        ("__orders_*", [OLD]),
        ("*orders*", [OLD, SALES]),  # by both names
        ("sales.orders", [SALES]),
        ("sales_*", [SALES]),
        ("Orders", []),
        ("*-part-*", []),
    ],
)
def test_a_glob_matches_the_queue_or_its_folder(glob: str, matching: list[str]) -> None:
    assert [each for each in (OLD, SALES) if matches_glob(each, glob)] == matching


def test_a_glob_that_may_mean_a_queue_of_a_virtual_host_is_known() -> None:
    assert may_match_glob(SALES, "orders")
    assert not may_match_glob(LIKE_SALES, "orders")
    assert not may_match_glob("sales_orders", "orders")


def test_keys_in_a_text_keep_the_names_of_folders() -> None:
    text = f"stream '{OLD}': {OLD}/data/00000000000000000000.x.fragment is gone"

    assert with_own_names(text) == f"stream 'orders': {OLD}/data/00000000000000000000.x.fragment is gone"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """Return a folder with the names that a broker makes."""
    for queue in ("orders-eu", "orders-us", "test-1", "payments", "audit-log"):
        shutil.copytree(DATA / "tiny", tmp_path / "broker" / f"__{queue}_1795918496456860468")
    return tmp_path / "broker"


TABLES = {
    "docs/run.md": {"orders-eu": "orders-*", "orders-us": "orders-*", "test-1": "test-*", "payments": "*"},
    "examples/sidecar/run.toml": {"audit-log": "audit-*", "payments": "*"},
}
"""What each stream of the broker shall have of the examples of a configuration."""


@pytest.mark.parametrize("page", sorted(TABLES))
def test_the_tables_of_each_example_count_for_a_brokers_streams(page: str, broker: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".md"):
        blocks = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        text = next(block for block in blocks if "[streams" in block)
    else:
        text = re.sub(r"^# (?=\[streams|\w+ = )", "", text, flags=re.MULTILINE)
    document = {key: value for key, value in tomllib.loads(text).items() if key == "streams"}
    config = RunConfig.model_validate({"source": f"rabbitmq://{broker}", "tier": "tier", **document})

    found = {own_name(each.name): config.glob_of(each.name) for each in broker.iterdir()}

    assert found | TABLES[page] == found


def test_a_stream_is_stored_as_the_table_of_its_queue_says_and_each_command_takes_its_name(
    broker: Path, tmp_path: Path
) -> None:
    tier, config = tmp_path / "tier", tmp_path / "run.toml"
    head = f'source = "rabbitmq://{broker}"\ntier = "{tier}"\n'
    config.write_text(f'{head}[streams."orders-*"]\nmax_age = "365d"\n[streams."test-*"]\nfollow = false\n')

    good = offload("run", "--check", config)
    config.write_text(f'{head}[streams."oders-*"]\nmax_age = "365d"\n[streams."tset-*"]\nmax_lag = "9s"\n')
    bad = offload("run", "--check", config)
    offload("sync", f"rabbitmq://{broker}", tier, "--stream", "orders-eu", "--stream", "payments")

    assert (good.code, '"orders-*": 2 streams' in good.text, '"test-*": 1 stream, left out' in good.text) == (
        0, True, True,
    )  # fmt: skip
    assert bad.code == 1
    assert 'PROBLEM: [streams."oders-*"] counts for no stream of the source, and asks for max_age' in bad.text
    assert 'note: [streams."tset-*"] counts for no stream of the source' in bad.text
    assert [line.split("\t")[0] for line in offload("ls", tier).lines[1:]] == ["orders-eu", "payments"]
    for name in ("orders-eu", "__orders-eu_1795918496456860468"):
        for command in (
            "inspect",
            "verify",
            "read --limit 1",
            "gaps",
            "trim --before 0",
            "abandon",
            "compact",
        ):
            word, *options = command.split()
            ran = offload(word, tier, name, *options)
            assert (ran.code, ran.stderr) == (0, ""), command
    assert offload("delete", tier, "orders-eu", "--yes").code == 0
    assert [line.split("\t")[0] for line in offload("ls", tier).lines[1:]] == ["payments"]


def test_a_name_of_two_streams_is_refused_with_both(broker: Path, tmp_path: Path) -> None:
    first, again = "__payments_1795918496456860468", "__payments_1795918999999999999"
    shutil.copytree(DATA / "tiny", broker / again)
    offload("sync", f"rabbitmq://{broker}", tmp_path / "tier")

    for ran in (
        offload("read", tmp_path / "tier", "payments"),
        offload("sync", f"rabbitmq://{broker}", tmp_path / "tier", "--stream", "payments"),
    ):
        assert ran.code != 0
        assert f"2 streams are called 'payments': name one of {first}, {again}" in ran.error
    assert offload("read", tmp_path / "tier", again, "--limit", "1").code == 0
