"""`offload rotate` and `offload shred` with master keys in a folder: output, exit codes and kills."""

from __future__ import annotations

import base64
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN
from command_line import SEED, Ran, calls_of, contents, finish, keys, offload, start, start_dying_below
from offload_posix.store import PosixStore
from osiris_data import DATA, body_of
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.contracts.catalogue import Catalogue
from offload.upkeep.shred import ShreddedKey, ShredPlan, shred

TINY = f"rabbitmq://{DATA / 'tiny'}"
BODIES = [body_of(number).decode() for number in range(10)]
UID = "[0-9a-f-]{36}"
READERS = (
    "tiny: a process that has the key in memory can read for up to 300 s more; "
    "`offload sweep` frees the space"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the key service `keys` and the tier `tier`, in which `tiny` is encrypted under `a`."""
    monkeypatch.setenv("OFFLOAD_KEYS", f"keyfile:{service(tmp_path / 'keys', a=b'a', b=b'b')}")
    good("sync", TINY, tmp_path / "tier", "--encrypt", "a")
    return tmp_path


def service(folder: Path, **masters: bytes) -> Path:
    """Make a folder of master keys, each of 32 times the same letter."""
    folder.mkdir(mode=0o700)
    for label, letter in masters.items():
        (folder / label).write_bytes(base64.b64encode(letter * 32))
        (folder / label).chmod(0o600)
    return folder


def good(*arguments: object) -> Ran:
    ran = offload(*arguments)
    assert ran.code == 0, ran.stderr
    return ran


def read(place: Path, *options: object) -> list[str]:
    words = ("read", place / "tier", "tiny", "--decode", "amqp", "--format", "body", *options)
    return good(*words).lines


def generations(place: Path) -> list[str]:
    """Return the generation and the suffix of each key object."""
    return sorted(key.split(".", 2)[2].lstrip("0") for key in keys(place / "tier") if "/keys/" in key)


class TestRotate:
    """`offload rotate`."""

    def test_the_streams_are_read_with_the_new_master_key_alone(self, place: Path) -> None:
        before = contents(place / "tier")
        would = good("rotate", place / "tier", "--encrypt", "b", "--dry-run")
        assert contents(place / "tier") == before

        done = good("rotate", place / "tier", "--encrypt", "b")
        (place / "keys" / "a").unlink()

        assert would.lines == ["stream\twould rotate\tunchanged\town", "tiny\t1\t0\t0"]
        assert done.lines == ["stream\trotated\tunchanged\town", "tiny\t1\t0\t0"]
        assert generations(place) == ["2.copy", "2.key"]
        assert read(place) == BODIES
        again = good("rotate", place / "tier", "--encrypt", "b", "--json")
        row = {"stream": "tiny", "rotated": 0, "unchanged": 1, "own": 0, "dry_run": False}
        assert again.objects == [row]

    def test_no_fragment_is_rewritten(self, place: Path) -> None:
        before = {key: value for key, value in contents(place / "tier").items() if "/keys/" not in key}

        good("rotate", place / "tier", "--encrypt", "b")

        after = contents(place / "tier")
        assert {key: value for key, value in after.items() if "/keys/" not in key} == before

    def test_keys_move_to_another_service(self, place: Path) -> None:
        """Both services have a master key `a`."""
        other = f"keyfile:{service(place / 'other', a=b'x')}"
        old = f"keyfile:{place / 'keys'}"

        refused = offload("rotate", place / "tier", "--encrypt", "a", "--keys", other)
        good("rotate", place / "tier", "--encrypt", "a", "--keys", other, "--from-keys", old)

        assert (refused.code, "did not wrap this key" in refused.stderr) == (1, True)
        shutil.rmtree(place / "keys")
        assert read(place, "--keys", other) == BODIES
        [row] = good("rotate", place / "tier", "--encrypt", "a", "--keys", other, "--json").objects
        assert row["unchanged"] == 1

    def test_own_master_keys_are_skipped_and_plain_streams_are_not_named(self, place: Path) -> None:
        for name, options in (("shop", ["--encrypt", "own:shop"]), ("plain", [])):
            write_stream(place / name, simple_chunks(1))
            good("sync", f"rabbitmq://{place / name}", place / "tier", *options)

        ran = good("rotate", place / "tier", "--encrypt", "b")

        assert ran.lines == ["stream\trotated\tunchanged\town", "shop\t0\t0\t1", "tiny\t1\t0\t0"]
        assert ran.stderr == (
            "note: shop: skipped 1 key with a master key of its own; rotate that in the key service\n"
        )
        nothing = good("rotate", place / "tier", "--encrypt", "b", "--stream", "plain")
        assert nothing.stderr == "note: no stream has a key, so there is nothing to rotate\n"

    def test_a_stream_whose_key_is_lost_is_an_error(self, place: Path) -> None:
        """After a rotation without an error, the operator destroys the old master key."""
        shutil.rmtree(place / "tier" / "tiny" / "keys")

        ran = offload("rotate", place / "tier", "--encrypt", "b")

        assert (ran.code, ran.lines) == (1, [])
        assert re.match(rf"offload: stream 'tiny': both copies of its key {UID} are lost", ran.stderr)

    def test_a_sync_goes_on_after_a_rotation(self, place: Path) -> None:
        write_stream(place / "orders", simple_chunks(1))
        good("sync", f"rabbitmq://{place / 'orders'}", place / "tier", "--encrypt", "a")
        good("rotate", place / "tier", "--encrypt", "b")
        (place / "keys" / "a").unlink()
        append_chunks(place / "orders", simple_chunks(1, first_offset=3))

        good("sync", f"rabbitmq://{place / 'orders'}", place / "tier", "--encrypt", "b")

        assert len(good("read", place / "tier", "orders").lines) == 6
        assert generations(place) == ["2.copy", "2.copy", "2.key", "2.key"]

    @pytest.mark.parametrize(
        ("words", "code", "error"),
        [
            (
                ["--encrypt", "own:b"],
                2,
                "offload: --encrypt: a stream's own master key is rotated in the key",
            ),
            (["--encrypt", "../b"], 2, "offload: --encrypt: '../b' is no label of a key"),
            (["--encrypt", "b", "--keys", "x:"], 2, "offload: no plugin knows the key service 'x'"),
            (["--encrypt", "b", "--from-keys", "keyfile:x"], 2, "offload: 'keyfile:x' is no place of master"),
            (["--encrypt", "c"], 1, "offload: stream 'tiny': "),
            (["--encrypt", "b", "--stream", "no"], 1, "offload: file://"),
        ],
    )
    def test_a_wrong_option_is_one_line_and_changes_nothing(
        self, place: Path, words: list[str], code: int, error: str
    ) -> None:
        before = contents(place / "tier")

        ran = offload("rotate", place / "tier", *words)

        assert (ran.code, ran.stdout, ran.error[: len(error)]) == (code, b"", error)
        assert contents(place / "tier") == before

    def test_a_rotation_needs_a_label_and_a_service(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (offload("rotate", place / "tier").code, read(place)) == (2, BODIES)
        monkeypatch.delenv("OFFLOAD_KEYS")

        ran = offload("rotate", place / "tier", "--encrypt", "b")

        assert (ran.code, ran.error) == (
            2,
            "offload: rotate needs a key service: add --keys, or set OFFLOAD_KEYS",
        )


class TestShred:
    """`offload shred`."""

    def test_a_shared_master_key_stays_and_the_output_says_who_can_still_read(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OFFLOAD_KEYS")  # not needed for a shared master key
        shutil.copytree(place / "tier", place / "backup" / "tier")

        ran = good("shred", place / "tier", "tiny", "--yes")

        totals, key, readers = ran.lines
        assert re.fullmatch(r"tiny: 10 messages, [\d.]+ KiB, offsets \[0, 10\) deleted", totals)
        assert re.fullmatch(
            rf"tiny: key {UID} is deleted; whoever has an older copy of the bucket \(backups, object "
            r"versions\) and the master key that it names \(now 'a'\) can still read",
            key,
        )
        assert (readers, generations(place)) == (READERS, [])
        assert "was deleted; a sync begins it again" in offload("read", place / "tier", "tiny").error
        assert read(place / "backup", "--keys", f"keyfile:{place / 'keys'}") == BODIES
        again = good("shred", place / "tier", "tiny", "--yes")
        assert again.lines == ["tiny: already deleted, and it has no key here; nothing to do"]

    def test_a_master_key_of_its_own_is_destroyed_so_that_no_backup_can_be_read(self, place: Path) -> None:
        good("sync", TINY, place / "own" / "tier", "--encrypt", "own:shop")
        shutil.copytree(place / "own", place / "backup")
        [label] = [path.name for path in (place / "keys").glob("shop-*")]

        ran = good("shred", place / "own" / "tier", "tiny", "--yes")

        rest = "nobody can read its data now without a backup of that master key"
        own = f"tiny: its own master key '{label}' is destroyed: {rest}"
        assert ran.lines[1:] == [own, READERS]
        assert not list((place / "keys").glob("shop-*"))
        refused = offload("read", place / "backup" / "tier", "tiny")
        assert (refused.code, "there is no such master key" in refused.error) == (1, True)

    def test_a_lost_key_is_named_so_that_its_own_master_key_can_be_destroyed_by_hand(
        self, place: Path
    ) -> None:
        """Without key objects, nobody knows the label of the master key."""
        good("sync", TINY, place / "own" / "tier", "--encrypt", "own:shop")
        [master] = (place / "keys").glob("shop-*")
        shutil.rmtree(place / "own" / "tier" / "tiny" / "keys")

        would = good("shred", place / "own" / "tier", "tiny", "--dry-run", "--json").document
        ran = good("shred", place / "own" / "tier", "tiny", "--yes")

        uid = master.name.removeprefix("shop-")
        assert would["keys"] == [{"key": uid, "label": None, "own": False, "fate": "lost"}]
        assert ran.lines[1].startswith(
            f"tiny: key {uid} was lost before; if the key service has a master key that ends in -{uid}, "
        )

    def test_json_has_the_totals_and_the_fate_of_each_key(self, place: Path) -> None:
        words = ("shred", place / "tier", "tiny", "--json")
        before = contents(place / "tier")
        would = good(*words, "--dry-run").document
        assert contents(place / "tier") == before

        done = good(*words, "--yes").document

        assert {**would, "deleted": True, "dry_run": False} == done
        [key] = done["keys"]
        assert re.fullmatch(UID, key.pop("key"))
        assert key == {"label": "a", "own": False, "fate": "deleted"}
        rest = {"plain_fragments": 0, "readers_seconds": 300.0, "deleted": True, "dry_run": False}
        assert rest.items() <= done.items()

    def test_a_stream_that_is_not_encrypted_is_refused(self, place: Path) -> None:
        good("sync", TINY, place / "plain")

        ran = offload("shred", place / "plain", "tiny", "--yes")

        assert (ran.code, ran.error) == (
            1,
            "offload: stream 'tiny' is not encrypted, so it has no key; use `offload delete` for it",
        )
        assert len(good("read", place / "plain", "tiny").lines) == 10

    def test_fragments_in_the_clear_are_counted(self, place: Path) -> None:
        write_stream(place / "orders", simple_chunks(1))
        good("sync", f"rabbitmq://{place / 'orders'}", place / "tier")
        append_chunks(place / "orders", simple_chunks(1, first_offset=3))
        good("sync", f"rabbitmq://{place / 'orders'}", place / "tier", "--encrypt", "a")

        ran = good("shred", place / "tier", "orders", "--yes")

        clear = "1 fragment is not encrypted; whoever has an older copy of the bucket can read such data"
        assert f"orders: {clear}" in ran.lines

    def test_a_key_that_the_service_refuses_is_kept_and_the_exit_code_is_one(self, place: Path) -> None:
        good("sync", TINY, place / "own", "--encrypt", "own:shop")
        [path] = (place / "keys").glob("shop-*")
        path.chmod(0o640)

        ran = offload("shred", place / "own", "tiny", "--yes")

        assert (ran.code, "others can use this key (mode 640)" in ran.error) == (1, True)
        assert "is kept; run again" in ran.lines[1]
        path.chmod(0o600)
        assert "is destroyed" in good("shred", place / "own", "tiny", "--yes").lines[1]

    def test_shred_requires_yes_without_a_terminal(self, place: Path) -> None:
        before = contents(place / "tier")

        ran = finish(start("shred", place / "tier", "tiny", stdin=subprocess.DEVNULL))

        assert (ran.code, ran.stdout) == (2, b"")
        assert ran.error.endswith("there is no terminal to ask on: add --yes")
        assert contents(place / "tier") == before

    def test_a_sweep_frees_the_space(self, place: Path) -> None:
        good("shred", place / "tier", "tiny", "--yes")

        good("sweep", place / "tier", "--grace", "0")

        assert not [key for key in keys(place / "tier") if key.endswith(".fragment")]


@pytest.mark.parametrize(
    ("command", "words"), [("rotate", ["--encrypt", "b"]), ("shred", ["tiny", "--yes"])], ids=str
)
def test_a_command_killed_at_any_call_completes_when_run_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str]
) -> None:
    """For the shred, the stream has a master key of its own, which is below the same folder."""
    if command == "shred":
        shutil.rmtree(place / "tier")
        good("sync", TINY, place / "tier", "--encrypt", "own:shop")
    copies = (shutil.copytree(place, place.with_name(f"{place.name}-{number}")) for number in count())

    def line(folder: Path) -> list[object]:
        return [command, folder / "tier", *words, "--keys", f"keyfile:{folder / 'keys'}"]

    reference = next(copies)
    calls = calls_of(finish(start_dying_below(reference, 0, *line(reference))))
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} {command}")

    for number in chance.sample(range(1, calls + 1), 20 if CAMPAIGN else 1):
        copy = next(copies)
        killed = finish(start_dying_below(copy, number, *line(copy)))
        assert killed.code in (0, -signal.SIGKILL), killed.stderr
        good(*line(copy))

        monkeypatch.setenv("OFFLOAD_KEYS", f"keyfile:{copy / 'keys'}")
        if command == "rotate":
            (copy / "keys" / "a").unlink()
            assert (read(copy), len(generations(copy))) == (BODIES, 2)
        else:
            assert (generations(copy), list((copy / "keys").glob("shop-*"))) == ([], [])
            assert "was deleted" in offload("read", copy / "tier", "tiny").error


class TestParts:
    """The name of a stream reaches all of its parts, each of which has a key of its own."""

    @pytest.fixture
    def parts(self, place: Path) -> Path:
        """Return a tier with `shop` and `shop-part-2`, behind a gap."""
        write_stream(place / "shop", simple_chunks(2))
        good("sync", f"rabbitmq://{place / 'shop'}", place / "tier", "--encrypt", "a")
        shutil.rmtree(place / "shop")
        write_stream(place / "shop", simple_chunks(2, first_offset=30))
        good("sync", f"rabbitmq://{place / 'shop'}", place / "tier", "--encrypt", "a", "--new-part")
        return place / "tier"

    def test_a_rotation_of_a_stream_rotates_the_keys_of_its_parts(self, parts: Path) -> None:
        """Otherwise a part would be lost with the old master key."""
        rows = good("rotate", parts, "--encrypt", "b", "--stream", "shop", "--json").objects

        assert [(row["stream"], row["rotated"]) for row in rows] == [("shop", 1), ("shop-part-2", 1)]

    def test_a_shred_of_a_stream_destroys_the_keys_of_its_parts(self, parts: Path) -> None:
        [done] = good("shred", parts, "shop", "--yes", "--json").objects

        assert [(part["stream"], len(part["keys"])) for part in done["parts"]] == [
            ("shop", 1), ("shop-part-2", 1),
        ]  # fmt: skip
        assert [key for key in keys(parts) if "/keys/" in key and key.startswith("shop")] == []
        assert [row["stream"] for row in good("ls", parts, "--json").objects] == ["tiny"]

    def test_parts_that_were_shredded_before_an_error_are_reported(
        self, parts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower begins a further part after the first tombstone. The keys that are gone are gone."""
        plans = []

        async def shredded(tier: Catalogue, plan: ShredPlan, **options: Any) -> list[ShreddedKey]:
            plans.append(plan)
            if len(plans) == 2:
                shutil.rmtree(parts.parent / "shop")
                write_stream(parts.parent / "shop", simple_chunks(2, first_offset=90))
                source = f"rabbitmq://{parts.parent / 'shop'}"
                assert finish(start("sync", source, parts, "--encrypt", "a", "--new-part")).code == 0
            return await shred(tier, plan, **options)

        monkeypatch.setattr("offload.cli.shred.shred_part", shredded)
        ran = offload("shred", parts, "shop", "--yes", "--json")

        assert ran.code != 0
        assert "'shop-part-3' was begun meanwhile as a part of stream 'shop'; run again" in ran.error
        [done] = ran.objects
        assert (done["stream"], [key["fate"] for key in done["keys"]]) == ("shop-part-2", ["deleted"])
        assert sorted(row["stream"] for row in good("ls", parts, "--json").objects) == ["shop", "tiny"]

    def test_parts_whose_keys_outlive_their_deletion_are_all_named(
        self, parts: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that answers each deletion with success, and deletes nothing."""

        async def nothing(self: PosixStore, keys: Sequence[str]) -> None:
            pass

        monkeypatch.setattr(PosixStore, "delete", nothing)
        ran = offload("shred", parts, "shop", "--yes")

        assert ran.code == 1
        rest = "may still be on the tier, and whoever has its master key can still read; run again"
        key = rf"shop(?:-part-2)?: key {UID} {rest}"
        assert len([line for line in ran.lines if re.fullmatch(key, line)]) == 2
        assert not [line for line in ran.lines if " is deleted; " in line]
        error = r"the store answered that shop(?:-part-2)?/keys/\S+ is deleted, and a read still finds it"
        assert len(re.findall(error, ran.stderr)) == 2

    def test_nothing_is_shredded_if_a_part_cannot_be(self, parts: Path) -> None:
        for key in [key for key in keys(parts) if key.startswith("shop-part-2/metadata/root.")]:
            (parts / key).write_bytes(b"damaged")
        before = contents(parts)

        assert offload("shred", parts, "shop", "--yes").code == 1
        assert contents(parts) == before
