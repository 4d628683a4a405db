"""`--keys` and `--encrypt`: what each command stores and reads with them, and its one line without them."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, offload
from osiris_data import DATA, body_of
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.ground.errors import Conflict
from offload.write.job import Job

LABEL = "tier-2026"
MASTER = "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0="
KEYS = ("--keys", "keyenv:")
ENCRYPT = (*KEYS, "--encrypt", LABEL)
TINY = f"rabbitmq://{DATA / 'tiny'}"
BODIES = [body_of(number).decode() for number in range(10)]


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key service in the environment, which no command uses unless it is asked to."""
    monkeypatch.delenv("OFFLOAD_KEYS", raising=False)
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", MASTER)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A tier with the encrypted stream `tiny`."""
    good("sync", TINY, tmp_path / "tier", *ENCRYPT)
    return tmp_path / "tier"


def good(*arguments: object) -> Ran:
    ran = offload(*arguments)
    assert ran.code == 0, ran.stderr
    return ran


def error(code: int, *arguments: object) -> str:
    """Return the one line of error of a command that must fail with this code."""
    ran = offload(*arguments)
    assert ran.code == code, (ran.stdout, ran.stderr)
    [line] = ran.stderr.splitlines()
    return line


def read(tier: Path, *options: object) -> list[str]:
    return good("read", tier, "tiny", "--decode", "amqp", "--format", "body", *options).lines


def has_plaintext(folder: Path) -> bool:
    needle = BODIES[3].encode()
    return any(needle in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_an_encrypted_stream_is_read_with_its_keys_alone(tier: Path) -> None:
    assert read(tier, *KEYS) == BODIES
    assert not has_plaintext(tier)
    assert "stream 'tiny' is encrypted, and no key service was given; use --keys" in error(
        1, "read", tier, "tiny"
    )


def test_the_variable_names_the_service_for_every_command(
    tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOAD_KEYS", "keyenv:")

    assert read(tier) == BODIES
    good("sync", TINY, tier)
    good("verify", tier)
    good("ls", tier)


def test_a_sync_goes_on_encrypting_with_the_keys_alone_and_stops_without(tmp_path: Path) -> None:
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(3))
    good("sync", f"rabbitmq://{source}", tier, *ENCRYPT)
    append_chunks(source, simple_chunks(3, first_offset=9))

    refused = error(1, "sync", f"rabbitmq://{source}", tier)
    good("sync", f"rabbitmq://{source}", tier, *KEYS)

    assert "stream 'orders' is encrypted, and no key service was given; use --keys" in refused
    assert len(list(tier.rglob("*.fragment"))) == 2
    assert "is encrypted" in error(1, "read", tier, "orders", "--from", "9")


@pytest.mark.parametrize("options", [(), KEYS])
def test_a_stream_is_not_encrypted_without_a_label(tmp_path: Path, options: tuple[str, ...]) -> None:
    good("sync", TINY, tmp_path / "tier", *options)

    assert read(tmp_path / "tier") == BODIES
    assert not list(tmp_path.rglob("keys/*"))


def test_verify_checks_an_encrypted_tier_with_and_without_keys(tier: Path) -> None:
    without, with_keys = good("verify", tier), good("verify", tier, *KEYS)
    assert without.lines[0].startswith("1 encrypted fragment was not opened, so only stored bytes were ")
    assert (len(without.lines), len(with_keys.lines)) == (2, 1)
    assert good("verify", tier, "--json").document["not_opened"] == 1
    [fragment] = tier.rglob("*.fragment")
    raw = bytearray(fragment.read_bytes())
    raw[200] ^= 1
    fragment.write_bytes(raw)

    assert offload("verify", tier).code == 1
    assert offload("verify", tier, *KEYS).code == 1


def test_verify_tells_a_wrong_key_service_from_damage(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor can tell by the exit code: 3 asks for another key service, and 1 for a repair."""
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", base64.b64encode(b"w" * 32).decode())

    wrong = offload("verify", tier, *KEYS)

    [key] = (path.relative_to(tier).as_posix() for path in tier.rglob("*.key"))
    assert wrong.code == 3
    assert wrong.lines[0].startswith(
        f"UNCHECKED {key}: cannot be checked: the key service does not open it: stream 'tiny': "
    )
    assert wrong.lines[1] == "1 encrypted fragment was not opened, so only stored bytes were checked"
    assert wrong.lines[2].endswith(
        ": no damage was found, but 1 key cannot be checked: use the --keys of the streams' writers"
    )
    [row] = offload("verify", tier, *KEYS, "--json").document["unchecked"]
    assert (row["stream"], row["object"]) == ("tiny", key)

    next(tier.rglob("*.copy")).unlink()
    assert offload("verify", tier, *KEYS).code == 1


def test_the_command_that_verify_prints_makes_a_lost_copy_anew(tier: Path) -> None:
    next(tier.rglob("*.copy")).unlink()

    ran = offload("verify", tier, "--level", "manifest")
    assert ran.code == 1
    [line] = [line for line in ran.lines if line.startswith("DAMAGE")]
    command = shlex.split(line.partition("run: offload ")[2].replace("--keys URL", "--keys keyenv:"))
    good(*command)

    assert good("verify", tier, *KEYS).text.endswith(": all of them sound\n")
    assert read(tier, *KEYS) == BODIES


def test_a_sweep_deletes_the_keys_of_a_deleted_stream_and_says_which_it_keeps(
    tier: Path, tmp_path: Path
) -> None:
    (tmp_path / "masters").mkdir(mode=0o700)
    good("sync", TINY, tmp_path / "own", "--keys", f"keyfile:{tmp_path / 'masters'}", "--encrypt", "own:shop")
    for each in (tier, tmp_path / "own"):
        good("delete", each, "tiny", "--yes")

    assert "deleted 2 objects, " in good("sweep", tier, "--grace", "0").text
    kept = good("sweep", tmp_path / "own", "--grace", "0").text

    assert not list(tier.rglob("keys/*"))
    assert "kept 2 objects, " in kept
    assert "its own master key still exists; `offload shred` destroys both" in kept
    good("shred", tmp_path / "own", "tiny", "--yes", "--keys", f"keyfile:{tmp_path / 'masters'}")
    assert not list(tmp_path.glob("own/*/keys/*"))


@pytest.fixture
def forged(tier: Path, tmp_path: Path) -> Path:
    """The tier after somebody without the key has put plain data and a root for it in place of a stream's."""
    good("sync", TINY, tmp_path / "own")
    for part in ("data", "metadata"):
        shutil.rmtree(tier / "tiny" / part)
        shutil.copytree(tmp_path / "own" / "tiny" / part, tier / "tiny" / part)
    return tier


@pytest.mark.parametrize("command", ["read", "verify", "copy"])
def test_a_forged_plain_stream_is_refused_if_only_encrypted_fragments_are_asked_for(
    forged: Path, tmp_path: Path, command: str
) -> None:
    operands = {"read": ["tiny"], "copy": [tmp_path / "copied"]}.get(command, [])
    ran = offload(command, forged, *operands, *KEYS, "--encrypted-only")

    assert ran.code == 1
    assert "encryption: expected encrypted, found in the clear" in ran.text + ran.stderr
    assert not list(tmp_path.glob("copied/**/*.fragment"))


def test_a_forged_plain_stream_is_read_if_plain_fragments_are_allowed(forged: Path) -> None:
    assert read(forged, *KEYS) == BODIES


def test_compact_encrypts_no_plain_fragment_if_only_encrypted_ones_are_asked_for(tmp_path: Path) -> None:
    """Otherwise it would turn forged messages into encrypted ones, which any reader believes."""
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(3))
    for number in (1, 2, 3):
        good("sync", f"rabbitmq://{source}", tier)
        append_chunks(source, simple_chunks(3, first_offset=9 * number))

    ran = offload("compact", tier, *ENCRYPT, "--encrypted-only")

    assert "encryption: expected encrypted, found in the clear" in ran.stderr
    good("compact", tier, *ENCRYPT)


def test_an_encrypted_tier_passes_if_only_encrypted_fragments_are_asked_for(
    tier: Path, tmp_path: Path
) -> None:
    assert read(tier, *KEYS, "--encrypted-only") == BODIES
    good("verify", tier, *KEYS, "--encrypted-only")
    good("copy", tier, tmp_path / "copied", *ENCRYPT, "--encrypted-only")


def test_compact_keeps_a_stream_encrypted(tmp_path: Path) -> None:
    source, tier = tmp_path / "orders", tmp_path / "tier"
    write_stream(source, simple_chunks(3))
    for number in (1, 2, 3):
        good("sync", f"rabbitmq://{source}", tier, *ENCRYPT)
        append_chunks(source, simple_chunks(3, first_offset=9 * number))

    refused = offload("compact", tier)
    good("compact", tier, *KEYS)

    assert (refused.code, "use --keys" in refused.stderr) == (1, True)
    assert len(good("read", tier, "orders", *KEYS).lines) == 27
    assert "is encrypted" in error(1, "read", tier, "orders")


def test_a_copy_is_encrypted_under_a_label_of_its_own(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_OTHER", MASTER.replace("b", "c"))
    good("copy", tier, tmp_path / "copied", *KEYS, "--encrypt", "other", "--verify")
    monkeypatch.delenv("OFFLOAD_KEY_TIER_2026")

    assert read(tmp_path / "copied", *KEYS) == BODIES
    assert not has_plaintext(tmp_path / "copied")


def test_an_encrypted_stream_is_not_copied_into_the_clear(tier: Path, tmp_path: Path) -> None:
    target = tmp_path / "copied"
    ran = offload("copy", tier, target, *KEYS)

    assert ran.code == 1
    assert "stream 'tiny' is encrypted, and its copy in" in ran.stderr
    assert "with --encrypt, or allow a copy in the clear with --decrypt" in ran.stderr.splitlines()[0]
    assert not list(target.rglob("*.fragment"))

    good("copy", tier, target, *ENCRYPT)
    assert read(target, *KEYS) == BODIES


def test_a_copy_with_decrypt_is_read_without_keys(tier: Path, tmp_path: Path) -> None:
    good("copy", tier, tmp_path / "copied", *KEYS, "--decrypt", "--compress", "zstd", "--verify")

    assert read(tmp_path / "copied") == BODIES
    assert not list(tmp_path.glob("copied/*/keys/*"))


def test_a_copy_with_decrypt_still_needs_the_keys_of_its_source(tier: Path, tmp_path: Path) -> None:
    ran = offload("copy", tier, tmp_path / "copied", "--decrypt")

    assert ran.code == 1
    assert "stream 'tiny' is encrypted, and no key service was given" in ran.stderr.splitlines()[0]


def test_a_copy_with_decrypt_keeps_a_stream_encrypted_that_has_a_key(tmp_path: Path) -> None:
    source, tier, target = tmp_path / "orders", tmp_path / "tier", tmp_path / "copied"
    write_stream(source, simple_chunks(3))
    good("sync", f"rabbitmq://{source}", tier, *ENCRYPT)
    good("copy", tier, target, *ENCRYPT)
    append_chunks(source, simple_chunks(3, first_offset=9))
    good("sync", f"rabbitmq://{source}", tier, *KEYS)

    good("copy", tier, target, *KEYS, "--decrypt")

    assert len(good("read", target, "orders", *KEYS).lines) == 18
    assert "is encrypted" in error(1, "read", target, "orders", "--from", "9")


def test_a_plain_stream_is_encrypted_by_a_copy(tmp_path: Path) -> None:
    good("sync", TINY, tmp_path / "tier")
    good("copy", tmp_path / "tier", tmp_path / "copied", *ENCRYPT)

    assert read(tmp_path / "copied", *KEYS) == BODIES
    assert not has_plaintext(tmp_path / "copied")


def test_the_two_tiers_of_a_copy_may_have_different_key_services(tier: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "keys", tmp_path / "copied"
    folder.mkdir(mode=0o700)
    (folder / LABEL).touch(mode=0o600)
    (folder / LABEL).write_text(MASTER.replace("b", "c"))
    other = ("--keys", f"keyfile:{folder}")

    wrong = offload("copy", tier, tmp_path / "none", *other, "--encrypt", LABEL)
    good("copy", tier, target, *other, "--encrypt", LABEL, "--from-keys", "keyenv:")
    good("copy", target, tmp_path / "plain", "--decrypt", "--from-keys", other[1])

    assert "did not wrap this key" in wrong.stderr
    assert read(target, *other) == BODIES
    assert "did not wrap this key" in error(1, "read", target, "tiny", *KEYS)
    assert read(tmp_path / "plain") == BODIES


def test_what_a_copy_left_in_the_clear_is_not_taken_over_without_decrypt(tier: Path, tmp_path: Path) -> None:
    """A first copy is allowed to, and ends after its uploads. The later ones are not allowed to."""
    target, keys = tmp_path / "copied", ("--from-keys", "keyenv:")

    def killed(self: object, receipts: object) -> None:
        raise Conflict("killed")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Job, "append", killed)
        assert offload("copy", tier, target, *keys, "--decrypt").code != 0
    assert len(list(target.rglob("*.fragment"))) == 1

    refused = offload("copy", tier, target, *keys)
    good("copy", tier, target, *ENCRYPT)

    assert "its copy in" in refused.stderr
    assert read(target, *KEYS) == BODIES
    assert "is encrypted" in error(1, "read", target, "tiny")
    assert len(list(target.rglob("*.fragment"))) == 2


@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("inspect", "--verbose"),
        ("abandon",),
        ("trim", "--before", "5"),
        ("sweep", "--grace", "0"),
        ("delete", "--yes"),
    ],
)
def test_an_operator_without_keys_can_keep_a_tier_in_order(tier: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    good(name, tier, *([] if name == "ls" else ["tiny"]), *options)


def test_a_rebuild_of_a_shredded_stream_says_that_its_data_stays_unreadable(tier: Path) -> None:
    """The histories that it lists include shredded ones, because it cannot know why a key is gone."""
    [key] = tier.rglob("*.key")
    life = key.name.partition(".")[0]
    good("shred", tier, "tiny", "--yes")

    dry = offload("rebuild", tier, "tiny", "--incarnation", life, "--dry-run")
    ran = offload("rebuild", tier, "tiny", "--incarnation", life, "--yes")

    assert (dry.code, ran.code) == (1, 1)
    assert dry.lines[0] == ran.lines[0]
    assert ran.lines[0].startswith("KEY LOST ")
    assert ran.lines[-1].startswith("if a shred destroyed it, nobody can read the data: ")


def test_a_rebuild_of_lost_roots_needs_no_keys(tier: Path) -> None:
    for root in tier.rglob("root.*"):
        root.unlink()
    good("rebuild", tier, "tiny", "--yes")

    assert read(tier, *KEYS) == BODIES


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--encrypt", LABEL), 2, "--encrypt needs a key service: add --keys, or set OFFLOAD_KEYS"),
        ((*KEYS, "--encrypt", "../x"), 2, "--encrypt: '../x' is no label of a key"),
        (("--keys", "nosuch:x"), 2, "no plugin knows the key service 'nosuch'"),
        (
            ("--keys", "/etc/keys"),
            2,
            "is the URL of no key service: begin it with one of awskms:, azurekeyvault:, ",
        ),
        (("--keys", "keyfile:keys"), 2, "use keyfile: and an absolute path"),
        (("--keys", "vault://root:secret@x"), 2, "…@x: the URL of a key service has no login"),
        ((*KEYS, "--encrypt", "missing"), 1, "has no master key 'missing': set OFFLOAD_KEY_MISSING"),
    ],
)
def test_wrong_options_give_one_line_and_store_no_data(
    tmp_path: Path, options: tuple[Any, ...], code: int, text: str
) -> None:
    assert text in error(code, "sync", TINY, tmp_path / "tier", *options)

    assert not list(tmp_path.rglob("*.fragment"))


def test_a_sync_without_a_label_names_the_streams_that_it_stores_in_the_clear(
    tier: Path, tmp_path: Path
) -> None:
    """`tiny` is encrypted, so somebody wants encryption, and forgot the option in this run."""
    shutil.copytree(DATA / "tiny", tmp_path / "both" / "tiny")
    write_stream(tmp_path / "both" / "new", simple_chunks(1))
    both = f"rabbitmq://{tmp_path / 'both'}"

    first, again = offload("sync", both, tier), good("sync", both, tier, *KEYS)
    asked = good("sync", both, tier, *ENCRYPT)

    note = "note: new: stored in the clear, because --encrypt was not given"
    assert (first.code, first.stderr.splitlines()[1:]) == (1, [note])
    assert again.stderr == ""
    assert asked.stderr.startswith("note: new: stays in the clear: --encrypt encrypts new data only; ")
    assert good("sync", f"rabbitmq://{tmp_path / 'both' / 'new'}", tmp_path / "plain").stderr == ""


def test_a_copy_that_was_complete_in_the_clear_is_not_silently_left_so(tmp_path: Path) -> None:
    good("sync", TINY, tmp_path / "plain")
    good("copy", tmp_path / "plain", tmp_path / "copied")

    ran = good("copy", tmp_path / "plain", tmp_path / "copied", *ENCRYPT)

    assert ran.stderr.startswith("note: tiny: its copy stays in the clear: --encrypt encrypts new data only")
    assert good("copy", tmp_path / "plain", tmp_path / "encrypted", *ENCRYPT).stderr == ""
    assert good("copy", tmp_path / "plain", tmp_path / "encrypted", *ENCRYPT).stderr == ""


@pytest.mark.parametrize("options", [("--keys", MASTER), (*KEYS, "--encrypt", MASTER)])
def test_a_master_key_in_the_wrong_place_is_not_repeated(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The name `OFFLOAD_KEYS` invites people to put the key itself there."""
    line = error(2, "sync", TINY, tmp_path / "new", *options)

    assert "a text of 44 characters, which may be a key, is " in line
    assert MASTER not in line


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("own:Shop", "--encrypt: 'Shop' is no label of a key"),
        ("own:" + "x" * 28, f"--encrypt: '{'x' * 28}' is no label of a key after own: it has more than 27 "),
    ],
)
def test_a_wrong_label_of_own_master_keys_is_named_as_it_was_given(
    tmp_path: Path, label: str, says: str
) -> None:
    assert says in error(2, "sync", TINY, tmp_path / "new", *KEYS, "--encrypt", label)


def test_a_verify_of_encrypted_fragments_only_needs_keys_and_their_bytes(tier: Path) -> None:
    needs_keys = "--encrypted-only needs a key service: add --keys, or set OFFLOAD_KEYS"
    needs_bytes = "level manifest reads no fragment, and finds no plain one: use level bytes"
    assert needs_keys in error(2, "verify", tier, "--encrypted-only")
    assert needs_bytes in error(2, "verify", tier, "--encrypted-only", *KEYS, "--level", "manifest")


def test_a_copy_cannot_be_encrypted_and_decrypted_at_once(tier: Path, tmp_path: Path) -> None:
    ran = offload("copy", tier, tmp_path / "copied", *ENCRYPT, "--decrypt")

    assert (ran.code, "--encrypt and --decrypt contradict each other" in ran.stderr) == (2, True)


def test_the_key_files_of_others_are_refused_in_one_line(tier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    (folder / LABEL).write_bytes(b"\xef\xbb\xbf" + MASTER.encode())  # an editor of Windows saved it
    (folder / LABEL).chmod(0o600)
    assert read(tier, "--keys", f"keyfile:{folder}") == BODIES

    (folder / LABEL).chmod(0o644)
    assert "others can use this key (mode 644); run chmod 600" in error(
        1, "read", tier, "tiny", "--keys", f"keyfile:{folder}"
    )


def test_a_tier_without_its_key_objects_is_denied_by_name(tier: Path) -> None:
    shutil.rmtree(next(tier.rglob("keys")))

    assert "stream 'tiny': both copies of its key" in error(1, "read", tier, "tiny", *KEYS)


def test_no_key_is_printed_with_debug(tier: Path) -> None:
    ran = offload("--debug", "read", tier, "tiny", "--keys", "keyenv:", "--limit", "1")

    assert ran.code == 0
    assert "mmmmmmmm" not in ran.stderr
    assert MASTER not in ran.stderr


@pytest.mark.parametrize(
    ("label", "code", "verdict", "says"),
    [
        (LABEL, 0, "works", "the master key 'tier-2026' wraps and unwraps"),
        ("missing", 1, "fails", "keyenv: has no master key 'missing'"),
        ("own:shop", 0, "not tried", "a check makes no master key"),
    ],
)
def test_check_tries_a_master_key(tmp_path: Path, label: str, code: int, verdict: str, says: str) -> None:
    ran = offload("check", tmp_path, "--read-only", *KEYS, "--encrypt", label, "--json")

    assert ran.code == code, ran.stderr
    report = json.loads(ran.stdout)
    assert report["key"]["verdict"] == verdict
    assert says in report["key"]["says"]


def test_check_shows_the_key_service_that_it_tried(tmp_path: Path) -> None:
    lines = good("check", tmp_path, "--read-only", *KEYS, "--encrypt", LABEL).lines

    assert "  ok    key               the master key 'tier-2026' wraps and unwraps" in lines
    assert lines[lines.index("keyenv:") + 1].startswith("  ok    key")
