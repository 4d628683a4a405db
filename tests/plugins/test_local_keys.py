"""Tests of master keys in files and in the environment: they wrap what only they unwrap, and stay private."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_keys import LocalKeys, open_environment, open_files
from offload_keys.local import WRAPPED_SIZE_BYTES

from offload.contracts.keys import KeyService
from offload.ground.errors import Denied, Misuse, NoSuchKey
from offload.opening.plugins import Plugins

KEY: Final = b"k" * 32
CONTEXT: Final = {"stream": "orders", "key": "1"}
MASTER: Final = base64.b64encode(b"a master key nobody may ever see").decode()
LABEL: Final = "tier-2026"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def wrap(service: KeyService, label: str = LABEL, key: bytes = KEY) -> bytes:
    return asyncio.run(service.wrap(label, key, CONTEXT))


def unwrap(
    service: KeyService, wrapped: bytes, label: str = LABEL, context: dict[str, str] = CONTEXT
) -> bytes:
    return asyncio.run(service.unwrap(label, wrapped, context))


def in_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKeys:
    folder = place / "keys"
    folder.mkdir(mode=0o700)
    write(folder / LABEL, f"{MASTER}\n")
    write(folder / "other", base64.b64encode(b"o" * 32).decode())
    return open_files(f"keyfile:{folder}")


def in_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKeys:
    lines = f"# two keys\n\n{LABEL} {MASTER}\nother {base64.b64encode(b'o' * 32).decode()}\n"
    return open_files(f"keyfile://{write(place / 'keys', lines)}")


def in_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKeys:
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", MASTER)
    monkeypatch.setenv("OFFLOAD_KEY_OTHER", base64.b64encode(b"o" * 32).decode())
    return open_environment("keyenv:")


@pytest.fixture(params=[in_folder, in_file, in_environment])
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKeys:
    made: Callable[[Path, pytest.MonkeyPatch], LocalKeys] = request.param
    return made(tmp_path, monkeypatch)


class TestEveryService:
    """Claims about master keys in a folder, in a file and in the environment."""

    def test_unwrapping_undoes_wrapping(self, service: LocalKeys) -> None:
        wrapped = wrap(service)

        assert unwrap(service, wrapped) == KEY
        assert len(wrapped) == WRAPPED_SIZE_BYTES
        assert KEY not in wrapped

    def test_no_two_wrapped_keys_are_equal(self, service: LocalKeys) -> None:
        assert len({wrap(service) for _ in range(20)}) == 20

    @pytest.mark.parametrize(
        "context", [{}, CONTEXT | {"stream": "other"}, CONTEXT | {"more": ""}, {"stream": "orders"}]
    )
    def test_another_context_does_not_open_a_wrapped_key(
        self, service: LocalKeys, context: dict[str, str]
    ) -> None:
        with pytest.raises(Denied, match="did not wrap this key"):
            unwrap(service, wrap(service), context=context)

    def test_another_master_key_does_not_open_a_wrapped_key(self, service: LocalKeys) -> None:
        with pytest.raises(Denied, match="'other' did not wrap this key"):
            unwrap(service, wrap(service), label="other")

    def test_a_label_that_the_service_does_not_have_is_denied_with_a_way_to_make_it(
        self, service: LocalKeys
    ) -> None:
        with pytest.raises(Denied, match="missing") as caught:
            wrap(service, "missing")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "label", ["../keys/other", "/etc/passwd", "..", ".", "", "a/b", "A", "a\0b", "x" * 65]
    )
    def test_a_label_that_could_be_a_path_is_refused(self, service: LocalKeys, label: str) -> None:
        with pytest.raises(Misuse, match="is no label of a key"):
            unwrap(service, bytes(WRAPPED_SIZE_BYTES), label=label)

    @pytest.mark.parametrize("bit", [0, 7, 8, 100, 8 * 13, 8 * 45, 8 * WRAPPED_SIZE_BYTES - 1])
    def test_a_flipped_bit_of_a_wrapped_key_is_denied(self, service: LocalKeys, bit: int) -> None:
        wrapped = bytearray(wrap(service))
        wrapped[bit // 8] ^= 1 << bit % 8

        with pytest.raises(Denied):
            unwrap(service, bytes(wrapped))

    @pytest.mark.parametrize("size", [0, 1, 13, WRAPPED_SIZE_BYTES - 1, WRAPPED_SIZE_BYTES + 1])
    def test_a_wrapped_key_of_another_size_is_denied(self, service: LocalKeys, size: int) -> None:
        with pytest.raises(Denied, match="no key that a file or variable has wrapped"):
            unwrap(service, (wrap(service) + b"x")[:size])

    def test_a_key_of_another_size_is_not_wrapped(self, service: LocalKeys) -> None:
        with pytest.raises(Misuse, match="has 32 bytes"):
            wrap(service, key=b"short")

    def test_no_master_key_is_in_a_repr_or_an_error(self, service: LocalKeys) -> None:
        with pytest.raises(Denied) as caught:
            unwrap(service, bytes(WRAPPED_SIZE_BYTES))

        shown = repr(service) + repr(caught.value) + repr(caught.value.__context__)
        assert MASTER not in shown
        assert "nobody may ever see" not in shown


class TestFiles:
    """Master keys in files."""

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
    @pytest.mark.parametrize("made", [in_folder, in_file])
    def test_a_key_that_others_can_use_is_refused(
        self,
        made: Callable[[Path, pytest.MonkeyPatch], LocalKeys],
        mode: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        service = made(tmp_path, monkeypatch)
        [path] = [each for each in (tmp_path / "keys" / LABEL, tmp_path / "keys") if each.is_file()]
        path.chmod(mode)

        with pytest.raises(Denied, match=f"others can use this key \\(mode {mode:o}\\); run chmod 600"):
            wrap(service)

    def test_a_folder_that_others_can_write_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = in_folder(tmp_path, monkeypatch)
        (tmp_path / "keys").chmod(0o770)

        with pytest.raises(Denied, match="others can replace its keys; run chmod go-w"):
            wrap(service)

    def test_a_file_of_another_user_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        service = in_folder(tmp_path, monkeypatch)
        owner = os.stat(tmp_path / "keys" / LABEL).st_uid + 1
        if os.geteuid() == 0:
            os.chown(tmp_path / "keys" / LABEL, owner, -1)
        else:  # only root can give a file away
            monkeypatch.setattr(os, "geteuid", lambda: owner)

        with pytest.raises(Denied, match="belongs to another user"):
            wrap(service)

    @pytest.mark.parametrize(
        "text", ["", "short", "====", "é" * 44, MASTER + MASTER, MASTER[:-4], "!" + MASTER]
    )
    def test_a_file_without_32_bytes_as_base64_is_refused(self, tmp_path: Path, text: str) -> None:
        write(tmp_path / LABEL, text)

        with pytest.raises(Denied, match="is not 32 bytes as base64; restore it from a backup;") as caught:
            wrap(open_files(f"keyfile:{tmp_path}"))
        assert not text or text not in str(caught.value)

    @pytest.mark.parametrize(
        "lines", ["", f"# {LABEL} x", f"{LABEL}", f"{LABEL} x y", f"{LABEL} x\n{LABEL} y"]
    )
    def test_a_file_needs_one_line_for_a_label(self, tmp_path: Path, lines: str) -> None:
        path = write(tmp_path / "keys", lines)

        with pytest.raises(Denied, match=f"line .*for the master key '{LABEL}'"):
            wrap(open_files(f"keyfile:{path}"))

    def test_a_key_that_is_no_regular_file_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / LABEL, 0o600)
        (tmp_path / "folder").mkdir(mode=0o700)

        with pytest.raises(Denied, match="in a regular file"):
            wrap(open_files(f"keyfile:{tmp_path}"))
        with pytest.raises(Denied, match="cannot read the master key 'folder'"):
            wrap(open_files(f"keyfile:{tmp_path}"), "folder")

    def test_a_huge_file_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path / LABEL, "x" * (1024 * 1024 + 1))

        with pytest.raises(Denied, match="at most"):
            wrap(open_files(f"keyfile:{tmp_path}"))

    def test_a_missing_key_is_denied_with_the_command_that_makes_it(self, tmp_path: Path) -> None:
        service = open_files(f"keyfile:{tmp_path}")
        with pytest.raises(Denied) as caught:
            wrap(service)
        command = str(caught.value).partition("make a new one: ")[2]

        assert os.system(command) == 0
        assert unwrap(service, wrap(service)) == KEY

    def test_a_key_that_was_replaced_is_used_at_once(self, tmp_path: Path) -> None:
        service = open_files(f"keyfile:{write(tmp_path / LABEL, MASTER).parent}")
        wrapped = wrap(service)
        write(tmp_path / LABEL, base64.b64encode(b"n" * 32).decode())

        with pytest.raises(Denied, match="did not wrap this key"):
            unwrap(service, wrapped)

    @pytest.mark.parametrize(
        "url", ["keyfile:", "keyfile:keys", "keyfile://keys", "keyfile://", "keyfile:/a\0b"]
    )
    def test_a_place_that_is_no_absolute_path_is_refused(self, url: str) -> None:
        with pytest.raises(Misuse, match="use keyfile: and an absolute path"):
            open_files(url)


@given(st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?", fullmatch=True))
def test_every_label_has_a_variable_of_its_own(label: str) -> None:
    with pytest.raises(Denied) as caught:
        wrap(open_environment("keyenv:"), label)

    name = str(caught.value).partition("set ")[2].partition(";")[0]
    assert name.removeprefix("OFFLOAD_KEY_").lower().replace("_", "-") == label


def test_a_wrapped_key_opens_with_its_own_label_even_if_another_has_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for label in ("ONE", "TWO"):
        monkeypatch.setenv(f"OFFLOAD_KEY_{label}", MASTER)
    service = open_environment("keyenv:")

    with pytest.raises(Denied, match="'two' did not wrap this key"):
        unwrap(service, wrap(service, "one"), label="two")


def test_nothing_follows_keyenv() -> None:
    with pytest.raises(Misuse, match="nothing follows keyenv:"):
        open_environment("keyenv://x")


def test_the_declarations_name_the_services() -> None:
    point = EntryPoint("keys", "offload_keys.plugin", "offload")
    found = Plugins.find([point]).of_kind("key service")
    loaded = {each.declaration.schemes[0]: each.declaration.load() for each in found}

    assert loaded["keyfile"] is open_files
    assert loaded["keyenv"] is open_environment
    assert sorted(loaded) == ["awskms", "azurekeyvault", "gcpkms", "keyenv", "keyfile", "vault"]


@pytest.mark.parametrize(
    ("scheme", "library", "extra"),
    [
        ("keyfile", "cryptography.hazmat.primitives.ciphers.aead", "encrypt"),
        ("awskms", "aiobotocore.session", "awskms"),
        ("gcpkms", "google.cloud.kms_v1", "gcpkms"),
        ("azurekeyvault", "azure.keyvault.keys.aio", "azurekeyvault"),
        ("vault", "aiohttp", "vault"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, library: str, extra: str
) -> None:
    point = EntryPoint("keys", "offload_keys.plugin", "offload")
    declared = Plugins.find([point]).by_scheme("key service", scheme)
    for name in [*sys.modules]:
        if name.startswith("offload_keys."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(Misuse, match=rf"which is not installed.*\[{extra}\]"):
        declared.load()


def test_a_folder_makes_a_master_key_that_only_its_owner_can_read(tmp_path: Path) -> None:
    service = open_files(f"keyfile:{tmp_path}")

    asyncio.run(service.create("mine"))

    assert unwrap(service, wrap(service, "mine"), "mine") == KEY
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600


def test_a_master_key_is_not_made_twice(tmp_path: Path) -> None:
    """The reply of the first call may be lost, and the key may wrap another one already."""
    service = open_files(f"keyfile:{tmp_path}")
    asyncio.run(service.create("mine"))
    wrapped = wrap(service, "mine")

    asyncio.run(service.create("mine"))

    assert unwrap(service, wrapped, "mine") == KEY


def test_a_destroyed_master_key_is_no_longer_there(tmp_path: Path) -> None:
    service = open_files(f"keyfile:{tmp_path}")
    asyncio.run(service.create("mine"))
    wrapped = wrap(service, "mine")

    assert asyncio.run(service.destroy("mine")) == 0.0
    assert asyncio.run(service.destroy("mine")) == 0.0

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NoSuchKey, match="no such master key"):
        unwrap(service, wrapped, "mine")


def test_a_master_key_that_cannot_be_destroyed_is_denied_by_name(tmp_path: Path) -> None:
    """Otherwise a shred would end in the middle, with an error of the operating system."""
    (tmp_path / "mine").mkdir()

    with pytest.raises(Denied, match="cannot destroy the master key 'mine'"):
        asyncio.run(open_files(f"keyfile:{tmp_path}").destroy("mine"))


def test_the_folder_is_on_the_disk_before_a_master_key_counts_as_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure must not bring it back."""
    service, synced = open_files(f"keyfile:{tmp_path}"), list[list[str]]()
    asyncio.run(service.create("mine"))
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(os.listdir(tmp_path)))

    asyncio.run(service.destroy("mine"))

    assert synced == [[]]


@pytest.mark.parametrize("call", ["create", "destroy"])
@pytest.mark.parametrize("label", ["../other", "/etc/passwd", "", "A", "a/b"])
def test_a_label_never_makes_or_destroys_a_file_elsewhere(tmp_path: Path, call: str, label: str) -> None:
    (tmp_path / "other").write_text("precious")
    folder = tmp_path / "keys"
    folder.mkdir()

    with pytest.raises(Misuse, match="is no label"):
        asyncio.run(getattr(open_files(f"keyfile:{folder}"), call)(label))

    assert (tmp_path / "other").read_text() == "precious"


def test_one_file_and_the_environment_make_and_destroy_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, environment = in_file(tmp_path, monkeypatch), in_environment(tmp_path, monkeypatch)
    for call in ("create", "destroy"):
        with pytest.raises(Denied, match="needs a folder"):
            asyncio.run(getattr(file, call)("mine"))
        with pytest.raises(Misuse, match="master keys"):
            asyncio.run(getattr(environment, call)("mine"))


def test_a_folder_that_cannot_be_written_is_denied() -> None:
    service = open_files("keyfile:/proc/self")  # no file can be made there, also not by root

    with pytest.raises(Denied, match="cannot make the master key 'mine'"):
        asyncio.run(service.create("mine"))
