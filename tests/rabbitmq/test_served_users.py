"""Tests of who may log in to the server: the file of users, its command, and what a login may cost."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import pty
import re
import stat
import struct
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, Ran, offload, sync
from offload_rabbitmq.server import users
from offload_rabbitmq.server.listener import open_listener
from offload_rabbitmq.server.users import PasswordHash, UsersInFile
from osiris_data import DATA
from stream_client import AUTHENTICATE, HANDSHAKE, METADATA, PROPERTIES, RawClient, text
from stream_server import Served, served

from offload import Misuse
from offload.ground.env import Env

SECRET = "tür-42"
OK, NO_MECHANISM, FAILED, MALFORMED = 1, 7, 8, 9


def add(file: Path, name: str, password: bytes) -> Ran:
    """Run the command with the password in a file."""
    place = file.with_name(f"password-{name.encode().hex()[:20]}")
    place.write_bytes(password)
    return offload("users", "add", file, name, "--password-file", place)


class Counted:
    """A cheap hash. Counts how many are computed, and how many at once. `gate` holds them up."""

    def __init__(self) -> None:
        self.count = self.now = self.most = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, password: bytes, *, salt: bytes, dklen: int, **costs: int) -> bytes:
        assert costs == {"n": 2**14, "r": 8, "p": 5, "maxmem": 2**25}
        self.count, self.now = self.count + 1, self.now + 1
        self.most = max(self.most, self.now)
        self.gate.wait(20)
        self.now -= 1
        return hashlib.sha256(salt + password).digest()[:dklen]


@pytest.fixture(autouse=True)
def hashes(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(users, "scrypt", counted)
    return counted


@pytest.fixture
def two(tmp_path: Path, hashes: Counted) -> bytes:
    """A file with two users, anna and bob."""
    file = tmp_path / "two"
    assert add(file, "anna", SECRET.encode() + b"\n").code == 0
    assert add(file, "bob", b"other").code == 0
    hashes.count = 0
    return file.read_bytes()


@pytest.fixture
def file(tmp_path: Path, two: bytes) -> Path:
    (tmp_path / "users").write_bytes(two)
    return tmp_path / "users"


@pytest.fixture
def server(tmp_path: Path, file: Path) -> Iterator[Served]:
    sync(DATA / "tiny", tmp_path / "tier")
    with served(tmp_path / "tier", f"?users={file}") as running:
        yield running


def login(port: int, data: bytes, mechanism: str = "PLAIN") -> int:
    """Log in, and return the code. A refused connection has ended then."""
    with RawClient(port) as client:
        client.ask(PROPERTIES, bytes(4))
        answer = client.ask(AUTHENTICATE, text(mechanism) + struct.pack(">I", len(data)) + data)
        code = int.from_bytes(answer[:2], "big")
        assert code == OK or client.is_ended()
        return code


def plain(name: str, password: str) -> bytes:
    return f"\0{name}\0{password}".encode()


# Logins.


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (plain("anna", SECRET), OK),
        (b"bob\0bob\0other", OK),
        (plain("anna", "other"), FAILED),
        (plain("anna", ""), FAILED),
        (plain("carl", SECRET), FAILED),
        (plain("", ""), FAILED),
        (b"\0anna\0\xff", FAILED),
        (plain("anna", "x" * 8000), FAILED),
        (plain("anna", SECRET + "\0"), MALFORMED),
        (b"", MALFORMED),
    ],
)
def test_a_user_of_the_file_enters_with_the_password(server: Served, data: bytes, code: int) -> None:
    assert login(server.port, data) == code
    assert server.counts.refused == (code != OK)


def test_nobody_enters_without_a_name_where_there_are_users(server: Served) -> None:
    assert login(server.port, b"", "ANONYMOUS") == NO_MECHANISM
    with RawClient(server.port) as client:
        client.ask(PROPERTIES, bytes(4))
        assert client.ask(HANDSHAKE, b"") == struct.pack(">HI", 1, 1) + text("PLAIN")


def test_a_refused_login_costs_one_hash_whoever_it_names(server: Served, hashes: Counted) -> None:
    for name in ("anna", "nobody", ""):
        before = hashes.count
        assert login(server.port, plain(name, "wrong")) == FAILED
        assert hashes.count == before + 1, name


def test_a_password_that_was_right_costs_a_hash_once(server: Served, hashes: Counted) -> None:
    for _ in range(3):
        assert login(server.port, plain("anna", SECRET)) == OK
    assert hashes.count == 1

    assert login(server.port, plain("anna", "wrong")) == FAILED
    assert login(server.port, plain("bob", SECRET)) == FAILED
    assert hashes.count == 3


def test_others_are_served_while_logins_are_computed_one_at_a_time(server: Served, hashes: Counted) -> None:
    with RawClient.opened(server.port, login=plain("anna", SECRET)) as client, ThreadPoolExecutor(8) as pool:
        hashes.gate.clear()
        trying = [pool.submit(login, server.port, plain("bob", f"{n}")) for n in range(8)]
        while hashes.now == 0:
            time.sleep(0.01)

        assert client.ask(METADATA, struct.pack(">I", 0))
        hashes.gate.set()
        assert [each.result() for each in trying] == [FAILED] * 8
        assert hashes.most == 1


def test_clients_that_leave_in_a_login_do_not_make_it_two_at_a_time(server: Served, hashes: Counted) -> None:
    hashes.gate.clear()
    data = plain("anna", "wrong")
    for _ in range(10):
        with RawClient(server.port) as client:
            client.ask(PROPERTIES, bytes(4))
            client.send(AUTHENTICATE, bytes(4) + text("PLAIN") + struct.pack(">I", len(data)) + data)
            while hashes.now == 0:
                time.sleep(0.01)
    deadline = time.monotonic() + 10
    while server.counts.connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hashes.gate.set()

    assert login(server.port, plain("anna", SECRET)) == OK
    assert hashes.most == 1
    assert hashes.count <= 3, "what nobody waits for is not computed"


def test_a_host_waits_for_one_login_of_another_host(file: Path, hashes: Counted) -> None:
    async def main() -> int:
        found = UsersInFile(str(file), Env(), {})
        enter = found.may_enter
        many = [asyncio.create_task(enter("PLAIN", plain("x", f"{n}"), host="one")) for n in range(10)]
        await asyncio.sleep(0)
        assert await enter("PLAIN", plain("anna", SECRET), host="two") == OK
        count = hashes.count
        await asyncio.gather(*many)
        found.close()
        return count

    assert asyncio.run(main()) <= 3  # the first of the other host, this one, and perhaps the next


def test_a_changed_file_counts_at_the_next_login(server: Served, file: Path, two: bytes) -> None:
    anna, bob = two.splitlines(keepends=True)
    assert login(server.port, plain("anna", SECRET)) == OK
    file.write_bytes(bob)
    assert login(server.port, plain("anna", SECRET)) == FAILED

    file.write_bytes(anna + b"half of a li")
    assert login(server.port, plain("bob", "other")) == OK
    assert login(server.port, plain("anna", SECRET)) == FAILED
    [problem] = server.counts.problems.values()
    assert "line 2" in problem
    assert "may still log in" in problem

    assert file.unlink() is None
    assert login(server.port, plain("bob", "other")) == OK
    assert add(file, "anna", b"new").code == 0
    assert login(server.port, plain("bob", "other")) == FAILED
    assert login(server.port, plain("anna", "new")) == OK
    assert not server.counts.problems


def test_an_address_with_users_may_be_open_to_other_machines(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = open_listener(f"rabbitmq-stream://0.0.0.0:0?users={file}", env=Env())
    try:
        listener.listen()
    finally:
        asyncio.run(listener.aclose())

    assert "passwords come to" in caplog.text
    assert "in the clear" in caplog.text


# The file.


def test_a_file_that_is_cut_is_refused_with_the_number_of_the_line(tmp_path: Path, two: bytes) -> None:
    first = two.index(b"\n")
    for size in {*range(len(two))} - {first, first + 1, len(two) - 1}:
        (tmp_path / "cut").write_bytes(two[:size])
        with pytest.raises(Misuse, match=f"line {1 if size < first else 2} of the file .* or is cut"):
            users.read_users(str(tmp_path / "cut"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw + raw, "line 3 .* names 'anna' a second time"),
        (lambda raw: raw.replace(b"ln=14", b"ln=30", 1), "line 1 .* is no line of"),
        (lambda raw: raw + b"\n", "line 3 .* is no line of"),
        (lambda raw: raw + b"carl:secret\n", "line 3 .* is no line of"),
        (lambda raw: b"\xff" + raw, "line 1 is not UTF-8"),
        (lambda raw: raw * 50_000, "has more than"),
        (lambda raw: bytes(100), "line 1 .* is no line of"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, two: bytes, change: Any, said: str) -> None:
    if change is not None:
        (tmp_path / "wrong").write_bytes(change(two))

    ran = offload("serve", tmp_path, "--listen", f"rabbitmq-stream://localhost:0?users={tmp_path}/wrong")

    assert ran.code == 1
    assert re.search(said, ran.error)
    assert "secret" not in ran.error


# The command.


def test_the_command_writes_a_hash_of_scrypt_that_only_the_owner_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "scrypt", hashlib.scrypt)
    file = tmp_path / "users"
    before = os.umask(0)
    try:
        ran = add(file, "anna", SECRET.encode() + b"\r\n")
        file.chmod(0o666)
        assert add(file, "zoë x", b"2").code == 0
    finally:
        os.umask(before)

    assert (ran.code, ran.stdout, ran.error) == (0, b"", f"note: anna: added to {file}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("users")] == ["users"]
    anna, zoe = file.read_text(encoding="utf-8").splitlines()
    assert zoe.startswith("zoë x:$scrypt$")
    name, _, costs, salt, hashed = anna.split("$")
    assert (name, costs) == ("anna:", "ln=14,r=8,p=5")
    expected = hashlib.scrypt(SECRET.encode(), salt=b64decode(salt + "=="), n=2**14, r=8, p=5, dklen=32)
    assert b64decode(hashed + "=") == expected


def test_two_commands_at_once_add_both_users(tmp_path: Path) -> None:
    names = [f"user-{n}" for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        new = [pool.submit(users.write_user, str(tmp_path / "users"), name, b"x", Env()) for name in names]
        assert all(each.result() for each in new)

    assert sorted(users.read_users(str(tmp_path / "users"))) == names


def test_a_command_that_cannot_replace_the_file_leaves_it_as_it_was(
    file: Path, two: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    ran = add(file, "carl", b"x")

    assert ran.error.endswith("cannot be written: No space left on device")
    assert file.read_bytes() == two
    assert [path for path in file.parent.iterdir() if path.name.endswith(".new")] == []


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("anna", b"a\0b", "none of them is NUL"),
        ("anna", b"x" * 65_536, "cannot be read: it has more than"),
        ("anna", b"x" * 1025, "has 1 to 1024 bytes"),
        ("anna", b"\n", "has 1 to 1024 bytes"),
        ("a:b", b"x", "has no colon"),
        ("a\nb", b"x", "can be printed"),
        ("", b"x", "1 to 255 bytes"),
        ("x" * 256, b"x", "1 to 255 bytes"),
    ],
)
def test_the_command_refuses_what_no_login_could_have(
    file: Path, two: bytes, name: str, password: bytes, said: str
) -> None:
    ran = add(file, name, password)

    assert ran.code != 0
    assert said in ran.error
    assert file.read_bytes() == two


def typed(text: str, *arguments: object) -> tuple[int, str]:
    """Run a command on a terminal, type a line after each prompt, and return its code and what was shown."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(PROGRAM[0], [*PROGRAM, *map(str, arguments)])
    shown = b""
    with suppress(OSError):  # the error on Linux when the other end is closed
        for line in [*text.splitlines(keepends=True), ""]:
            while piece := os.read(terminal, 4096):
                shown += piece
                if line and shown.endswith(b": "):  # what is typed before the blank is discarded
                    break
            os.write(terminal, line.encode())
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_the_password_comes_from_stdin_or_a_terminal_and_never_from_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert offload("users", "add", file, "a", "--password-file", "-").code == 0
    assert "no terminal" in offload("users", "add", file, "b").error
    code, shown = typed(f"{SECRET}\nwrong\n{SECRET}\n{SECRET}\n", "users", "add", file, "c")
    assert (code, shown.count("Password")) == (0, 2)
    assert not {SECRET, "wrong"} & {*shown.split()}, (
        "a terminal shows what is typed, unless it is told not to"
    )
    assert "do not match" in shown

    found = users.read_users(str(file))
    assert {*found} == {"a", "c"}
    assert PasswordHash.of(b"one", found["a"].salt) == found["a"]
    monkeypatch.setattr(users, "scrypt", hashlib.scrypt)  # the command was a process of its own
    assert PasswordHash.of(SECRET.encode(), found["c"].salt) == found["c"]
