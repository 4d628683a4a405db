"""`offload run --check`: what it says, and that it changes nothing."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest
from command_line import offload
from osiris_data import DATA
from stream_broker import StreamBroker, beside


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration of two streams, of which one is on the tier."""
    shutil.copytree(DATA / "tiny", tmp_path / "source" / "one")
    assert offload("sync", f"rabbitmq://{tmp_path}/source", tmp_path / "tier").code == 0
    shutil.copytree(DATA / "tiny", tmp_path / "source" / "two")
    path = tmp_path / "run.toml"
    path.write_text(
        f'source = "rabbitmq://{tmp_path}/source"\ntier = "{tmp_path}/tier"\n'
        '[streams."o*"]\nmax_age = "7d"\ncompress = "zstd"\n[streams.absent]\nmax_lag = "5s"\n'
    )
    return path


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_check_says_what_would_be_done_and_changes_nothing(config: Path, tmp_path: Path) -> None:
    before = files_below(tmp_path)

    ran = offload("run", "--check", config)

    assert ran.code == 0
    assert files_below(tmp_path) == before
    assert '"o*": 1 stream, lag at most 30s, kept for at most 7d, compressed as zstd:1' in ran.text
    assert 'one\t10\t10\t0\t0 B\t0\t0 B\t"o*"' in ran.text
    assert "two\t10\t-\t10\t3.2 KiB\t" in ran.text
    assert 'note: [streams."absent"] counts for no stream of the source' in ran.text
    assert ran.lines[-1] == "ready: yes"


def test_a_check_in_json_is_one_document(config: Path) -> None:
    with config.open("a") as file:
        file.write("[prices]\nwrite_per_1000 = 1\n")

    shown = offload("run", "--check", config, "--json").document

    assert shown["ready"]
    assert shown["can"] == {"read": True, "write": True, "commit": True}
    assert [(each["stream"], each["glob"], each["lag_records"]) for each in shown["streams"]] == [
        ("one", "o*", 0),
        ("two", "*", 10),
    ]
    assert shown["cost_per_month"]["price"]["provider"] == "the configuration"


def test_a_place_in_which_a_run_would_make_no_tier_is_a_problem(config: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tier")
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / "letter").touch()

    ran = offload("run", "--check", config)

    assert ran.code == 1
    assert "PROBLEM: the tier: " in ran.text
    assert "is no tier and not empty: it holds 'letter'; name an empty place" in ran.text
    assert ran.lines[-1] == "ready: NO"


def test_a_stream_that_would_pause_is_a_problem(config: Path, tmp_path: Path) -> None:
    """One stream was deleted from the tier, one source is behind the tier, and one has damage at its end."""
    assert offload("sync", f"rabbitmq://{tmp_path}/source", tmp_path / "tier").code == 0
    assert offload("delete", tmp_path / "tier", "two", "--yes").code == 0
    shutil.rmtree(tmp_path / "source" / "one")
    shutil.copytree(DATA / "batches", tmp_path / "source" / "one")
    shutil.copytree(DATA / "torn" / "crc_mismatch_middle_chunk", tmp_path / "source" / "bad")
    newest = tmp_path / "source" / "bad" / "00000000000000000154.segment"
    newest.write_bytes(b"damaged!" + newest.read_bytes()[8:])

    ran = offload("run", "--check", config)

    assert ran.code == 1
    assert "PROBLEM: stream 'one': " in ran.text
    assert "PROBLEM: stream 'bad': " in ran.text
    assert "PROBLEM: stream 'two': " in ran.text
    assert "`offload run` does not" in ran.text
    assert ran.lines[-1] == "ready: NO"


def test_a_source_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    ran = offload("run", "--check", f"rabbitmq://{tmp_path}/absent", tmp_path / "tier")

    assert ran.code == 1
    assert "PROBLEM: the source: " in ran.text
    assert not (tmp_path / "tier").exists()


def test_a_store_that_cannot_be_written_is_a_problem(config: Path, tmp_path: Path) -> None:
    ran = offload("run", "--check", f"rabbitmq://{tmp_path}/source", config / "tier")

    assert ran.code == 1
    assert "PROBLEM: the store cannot write" in ran.text


def test_a_configuration_with_a_secret_that_all_can_read_is_noted(config: Path) -> None:
    config.write_text(f'{config.read_text()}[options]\nsecret = "hush"\n')
    config.chmod(0o604)

    ran = offload("run", "--check", config)

    assert "readable by all, and options.secret may be a secret" in ran.stderr
    assert "hush" not in ran.stderr + ran.text


def test_a_master_key_that_is_missing_is_a_problem(config: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    (keys / "there").write_bytes(base64.b64encode(bytes(range(32))))
    (keys / "there").chmod(0o600)
    text = config.read_text().replace("absent", '"*"')
    ready = []
    for label in ("there", "own:absent", "absent"):
        config.write_text(f'{text}encrypt = "{label}"\n')
        ran = offload("run", "--check", config, "--keys", f"keyfile:{keys}")
        ready.append((label, ran.code, "PROBLEM: the key service" in ran.text))

    assert ready == [("there", 0, False), ("own:absent", 0, False), ("absent", 1, True)]


def test_the_broker_says_who_leads_each_stream(config: Path, tmp_path: Path) -> None:
    """A link gives the archive's name to a restored stream. The broker knows the folder behind it."""
    restored = (tmp_path / "source" / "two").rename(tmp_path / "__two_1795475052298705714")
    (tmp_path / "source" / "__lost_1795475023045925838").symlink_to(restored)
    text = config.read_text()

    with beside(StreamBroker(streams={"two": []}, password="hush")) as port:
        broker = f'broker = "{port.address}"\n'
        config.write_text(f'{broker}broker_password = "hush"\n{text}')
        ran, document = (
            offload("run", "--check", config),
            offload("run", "--check", config, "--json").document,
        )
        config.write_text(f'{broker}broker_password = "wrong hush"\n{text}')
        refused = offload("run", "--check", config)

    assert (ran.code, refused.code) == (0, 1)
    assert '\t"*"\ta:1 (this node)\n' in ran.text
    assert '\t"o*"\tnot known\n' in ran.text
    assert "note: stream 'one': the broker does not say who leads: " in ran.text
    assert document["leaders"] == {"__lost_1795475023045925838": {"address": "a:1", "is_asked": True}}
    assert "PROBLEM: the broker: " in refused.text
    assert "refused to log 'guest' in: the user or the password is wrong" in refused.text
    assert "hush" not in ran.text + refused.text + ran.stderr + refused.stderr


def test_json_needs_check(config: Path) -> None:
    assert "--json belongs to --check" in offload("run", config, "--json").error
