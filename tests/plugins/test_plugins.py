"""Tests of plugins: entry points find them one by one, and an error in one never affects another.

`Installed` is a folder of installed distributions: small modules, each with the metadata that pip would
have written beside it. Other processes have it on their path; this one loads its entry points.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from command_line import Ran, offload
from kit.installed import declare, on_path

from offload.contracts.events import DamageFound
from offload.contracts.plugin import Backend
from offload.ground.errors import Corrupt, Misuse
from offload.opening.by_url import open_tier
from offload.opening.plugins import Plugins

BACKEND = """
    from offload.contracts.plugin import Backend, hookimpl

    @hookimpl
    def offload_backends():
        return [Backend(name="{name}", target="{module}:open_url", schemes=("{scheme}",))]

    def open_url(url):
        from offload.store.memory import MemoryStore
        return MemoryStore(name="{module}")
"""

EVENT = DamageFound(damage=Corrupt("test", "nowhere", expected=1, found=2))


class Installed:
    """The distributions that are installed in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.distributions: list[str] = []

    def install(self, distribution: str, source: str, *, version: str = "1.0") -> None:
        """Install a distribution with one module of almost the same name, which is its entry point."""
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        declare(self.folder, distribution, {distribution: module}, version=version)
        self.distributions.append(distribution)

    def install_backend(self, distribution: str, *, name: str, scheme: str) -> None:
        """Install a distribution that declares one backend, whose stores are named after its module."""
        module = distribution.replace("-", "_")
        self.install(distribution, BACKEND.format(name=name, module=module, scheme=scheme))

    def points(self) -> list[EntryPoint]:
        """Return the entry points of these distributions."""
        return [point for point in entry_points(group="offload") if point.name in self.distributions]

    def find(self) -> Plugins:
        """Find these plugins and no others."""
        return Plugins.find(self.points())

    def offload(self, *arguments: str) -> Ran:
        """Run the command line in this process, with these plugins and the built-in ones."""
        return offload(*arguments)

    def process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in a separate process, to see how the process ends."""
        return self.python("from offload.cli.main import main; main()", *arguments)

    def python(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script in a process that finds these plugins and the built-in ones."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments],
            env={**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    with on_path(tmp_path):
        yield Installed(tmp_path)


# The installed distributions


def test_a_distribution_that_is_installed_while_the_process_runs_is_found(installed: Installed) -> None:
    installed.install_backend("a-first", name="first", scheme="first")
    assert "a-second" not in {plugin.name for plugin in Plugins.find().plugins}

    installed.install_backend("a-second", name="second", scheme="second")

    assert {"a-first", "a-second"} <= {plugin.name for plugin in Plugins.find().plugins}


def test_a_process_that_finds_plugins_again_and_again_scans_the_distributions_once(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `Session` finds the plugins. A scan opens a file of every distribution."""
    scans = []
    monkeypatch.setattr("offload.opening.plugins.entry_points", lambda **group: scans.append(group) or [])

    for _ in range(3):
        Plugins.find()

    assert scans == [{"group": "offload"}]


# A plugin that fails harms no other


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_sdk", "ModuleNotFoundError: No module named 'no_such_sdk'"),
        ("this is no Python", "SyntaxError: invalid syntax"),
        ("raise SystemExit('wrong licence')", "SystemExit: wrong licence"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        (
            "from offload import hookimpl\n@hookimpl\ndef offload_backends():\n    return [1 / 0]",
            "ZeroDivisionError: division by zero",
        ),
        (
            "from offload import hookimpl\n@hookimpl\ndef offload_backends(url):\n    return []",
            "PluginValidationError: ",
        ),
        (
            "from offload import hookimpl\n@hookimpl\ndef offload_backends():\n    return ['s3']",
            "TypeError: ",
        ),
    ],
    ids=["ImportError", "SyntaxError", "SystemExit", "AnyError", "in its hook", "wrong hook", "wrong answer"],
)
def test_a_broken_plugin_harms_no_other(installed: Installed, source: str, reason: str) -> None:
    installed.install("a-broken", source)
    installed.install_backend("b-good", name="good", scheme="good")

    found = installed.find()

    broken, good = found.plugins
    assert (broken.name, broken.distribution, broken.version) == ("a-broken", "a-broken", "1.0")
    assert broken.error is not None
    assert broken.error.startswith(reason)
    assert good.error is None
    assert [declared.declaration.name for declared in found.declared] == ["good"]
    assert open_tier("good://", plugins=found).url == "memory://b_good"


def test_a_broken_plugin_is_listed_with_its_reason(installed: Installed) -> None:
    installed.install("broken", "import no_such_sdk", version="2.3")

    listed, for_people = installed.offload("plugins", "--json"), installed.offload("plugins")

    assert listed.code == for_people.code == 0
    [row] = [row for row in listed.document["plugins"] if row["plugin"] == "broken"]
    assert row["error"] == "ModuleNotFoundError: No module named 'no_such_sdk'"
    [line] = [line for line in for_people.lines if line.startswith("broken")]
    assert line.split("\t")[:5] == ["broken", "broken", "2.3", "could not be loaded", row["error"]]


def test_ctrl_c_while_a_plugin_loads_ends_the_command(installed: Installed) -> None:
    installed.install("slow", "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        installed.find()
    assert installed.process("plugins").returncode == 130


def test_a_distribution_may_lack_its_code(installed: Installed) -> None:
    """If the target of a declaration cannot be imported, its first use raises the error, not discovery."""
    declaration = "[Backend(name='far', target='no_such_sdk.store:open', schemes=('far',))]"
    installed.install(
        "far",
        "from offload.contracts.plugin import Backend, hookimpl\n"
        f"@hookimpl\ndef offload_backends():\n    return {declaration}",
    )
    found = installed.find()

    with pytest.raises(Misuse, match="'far' cannot be used: No module named 'no_such_sdk'"):
        open_tier("far://place", plugins=found)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('wrong driver')", "RuntimeError: wrong driver"),
        ("raise SystemExit('wrong licence')", "SystemExit: wrong licence"),
        ("this is no Python", "SyntaxError: invalid syntax"),
    ],
    ids=["RuntimeError", "SystemExit", "SyntaxError"],
)
def test_code_that_fails_when_it_is_imported_is_named(installed: Installed, source: str, reason: str) -> None:
    (installed.folder / "hostile.py").write_text(source)

    with pytest.raises(Misuse, match=f"'far' cannot be used: {reason}"):
        Backend(name="far", target="hostile:open").load()


# Two plugins that claim one thing


def test_one_scheme_claimed_twice_is_an_error_that_names_both(installed: Installed) -> None:
    installed.install_backend("ours", name="ours", scheme="s3")
    installed.install_backend("theirs", name="theirs", scheme="s3")
    installed.install_backend("other", name="other", scheme="gs")
    found = installed.find()

    with pytest.raises(Misuse) as caught:
        open_tier("s3://bucket", plugins=found)

    assert "backend scheme 's3'" in str(caught.value)
    assert "ours 1.0" in str(caught.value)
    assert "theirs 1.0" in str(caught.value)
    assert open_tier("gs://bucket", plugins=found).url == "memory://other"


def test_one_name_claimed_twice_is_an_error_that_names_both(installed: Installed) -> None:
    installed.install_backend("ours", name="s3", scheme="ours")
    installed.install_backend("theirs", name="s3", scheme="theirs")
    found = installed.find()

    with pytest.raises(Misuse, match=r"'s3' is declared by ours 1.0 .* and theirs 1.0"):
        found.by_name("backend", "s3")


def test_a_conflict_is_about_one_name_or_scheme_and_no_other(installed: Installed) -> None:
    """The other schemes of a backend still work. If two backends share a name, all their schemes work."""
    installed.install_backend("ours", name="s3", scheme='s3", "s3a')
    installed.install_backend("theirs", name="minio", scheme="s3")
    installed.install_backend("namesake", name="minio", scheme="play")
    found = installed.find()

    assert open_tier("s3a://bucket", plugins=found).url == "memory://ours"
    assert open_tier("play://bucket", plugins=found).url == "memory://namesake"
    assert found.by_name("backend", "s3").target == "ours:open_url"
    with pytest.raises(Misuse, match="backend scheme 's3' is declared by"):
        open_tier("s3://bucket", plugins=found)


def test_a_conflict_is_printed_and_ends_with_1(installed: Installed) -> None:
    installed.install_backend("ours", name="ours", scheme="file")

    listed, for_people = installed.offload("plugins", "--json"), installed.offload("plugins")

    assert listed.code == for_people.code == 1
    [conflict] = listed.document["conflicts"]
    assert conflict.startswith("backend scheme 'file' is declared by ")
    assert f"CONFLICT {conflict}" in for_people.lines
    for named in ("ours 1.0", "ledger-offload"):
        assert named in conflict


def test_names_of_different_kinds_are_no_conflict(installed: Installed) -> None:
    """A broker may have the same name as its decoder."""
    installed.install_backend("ours", name="amqp", scheme="rabbitmq")

    assert installed.offload("plugins").code == 0


# Unknown names


def test_the_error_for_an_unknown_scheme_lists_the_known_ones(installed: Installed) -> None:
    installed.install("broken", "import no_such_sdk")
    installed.install_backend("good", name="good", scheme="gs")

    with pytest.raises(Misuse) as caught:
        open_tier("s3://bucket", plugins=installed.find())

    text = str(caught.value)
    assert "no plugin knows the backend 's3'; known: gs; plugin 'broken' of broken 1.0" in text
    assert text.endswith("did not load: ModuleNotFoundError: No module named 'no_such_sdk'")


def test_the_error_without_any_plugin_says_so() -> None:
    with pytest.raises(Misuse, match="known: none"):
        open_tier("s3://bucket", plugins=Plugins())


# Discovery imports no SDK


def imported_by_finding(installed: Installed) -> set[str]:
    """Return the modules that a process has after it found every plugin."""
    done = installed.python("""
        import json, sys
        from offload.opening.plugins import Plugins
        assert Plugins.find().declared
        print(json.dumps([*sys.modules]))
    """)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def test_finding_plugins_imports_no_targets(installed: Installed) -> None:
    installed.install(
        "light",
        "from offload.contracts.plugin import Backend, hookimpl\n"
        "@hookimpl\ndef offload_backends():\n    return [Backend(name='light', target='heavy:open')]",
    )
    (installed.folder / "heavy.py").write_text("import xml.dom.minidom\n")

    imported = imported_by_finding(installed)

    assert {"light", "offload_posix.plugin", "offload_rabbitmq.plugin"} <= imported
    assert not imported & {"heavy", "xml.dom.minidom"}


def test_finding_plugins_imports_no_store_and_no_source(installed: Installed) -> None:
    imported = imported_by_finding(installed)

    assert not imported & {"offload_posix.store", "offload_rabbitmq.source"}


def test_a_declaration_is_imported_when_it_is_used(installed: Installed) -> None:
    installed.install_backend("mine", name="mine", scheme="mine")
    found = installed.find()

    backend = found.by_scheme("backend", "mine")

    assert isinstance(backend, Backend)
    assert backend.load()("mine://x").url == "memory://mine"


# Events

LISTENER = """
    from offload.contracts.plugin import hookimpl
    heard = []

    @hookimpl
    def offload_event(event):
        heard.append(event)
        {then}
"""


def test_events_reach_every_listener_even_if_one_fails(
    installed: Installed, caplog: pytest.LogCaptureFixture
) -> None:
    installed.install("a-listener", LISTENER.format(then="return None"))
    installed.install("b-listener", LISTENER.format(then="raise ZeroDivisionError"))
    installed.install("c-listener", LISTENER.format(then="return None"))
    found = installed.find()

    with caplog.at_level(logging.ERROR):
        found.emit(EVENT)

    assert [sys.modules[f"{x}_listener"].heard for x in "abc"] == [[EVENT]] * 3
    [record] = caplog.records
    assert "b-listener" in record.getMessage()
    assert "DamageFound" in record.getMessage()
    assert record.exc_info is not None


def test_events_without_any_plugin_reach_nobody() -> None:
    Plugins().emit(EVENT)


# Commands and decoders

COMMANDS = """
    import typer
    from offload.contracts.plugin import Command, DecoderType, hookimpl

    @hookimpl
    def offload_commands():
        return [
            Command(name="shout", target="extras:shout", help="Say it loudly."),
            Command(name="tools", target="extras:app", help="More than one thing."),
            Command(name="gone", target="no_such_sdk:app", help="Never runs."),
        ]

    @hookimpl
    def offload_decoders():
        return [DecoderType(name="csv", target="extras:decoder")]

    decoder = object()
    app = typer.Typer()

    @app.command()
    def first():
        print("first of two")

    @app.command()
    def second():
        print("second of two")

    def shout(text: str) -> int:
        print(text.upper())
        return 3
"""


def test_commands_of_plugins_appear_and_run(installed: Installed) -> None:
    """One command is a plain function, the other a whole application."""
    installed.install("extras", COMMANDS)

    shown, shouted = installed.offload("--help"), installed.process("shout", "hello")
    first, helped = installed.offload("tools", "first"), installed.offload("tools", "--help")

    for words in (("shout", "Say it loudly."), ("tools", "More than one thing."), ("gone", "Never runs.")):
        assert [line for line in shown.lines if line.split(maxsplit=1) == [*words]]
    assert (shouted.stdout, shouted.returncode) == ("HELLO\n", 3)
    assert (first.text, first.code) == ("first of two\n", 0)
    assert "second" in helped.text


@pytest.mark.parametrize("code", ["raise RuntimeError('wrong driver')", "this is no Python"])
def test_a_command_is_imported_only_when_it_is_called(installed: Installed, code: str) -> None:
    """A command whose code fails gives one line of error to its caller, and does not affect other
    commands.
    """
    installed.install("extras", COMMANDS.replace("no_such_sdk", "broken"))
    (installed.folder / "broken.py").write_text(code)

    for others in (("--help",), ("plugins",), ("shout", "gone"), ("--debug", "tools", "first")):
        done = installed.offload(*others)
        assert (done.code, "gone" in done.stderr) == (3 if "shout" in others else 0, False)
    for its_own in (("gone",), ("gone", "--help")):
        done = installed.offload(*its_own)
        assert (done.code, done.stdout) == (1, b"")
        assert done.error.startswith("offload: 'gone' cannot be used: ")
    assert "Traceback" in installed.process("--debug", "gone").stderr


def test_a_command_claimed_twice_is_left_out_and_reported(installed: Installed) -> None:
    installed.install("extras", COMMANDS)
    installed.install(
        "rival",
        "from offload.contracts.plugin import Command, hookimpl\n"
        "@hookimpl\ndef offload_commands():\n    return [Command(name='shout', target='rival:x')]",
    )

    shown = installed.offload("--help")

    assert "Say it loudly" not in shown.text
    assert "extras 1.0" in shown.stderr
    assert "rival 1.0" in shown.stderr
    assert "More than one thing." in shown.text


def test_a_command_cannot_replace_a_built_in_one(installed: Installed) -> None:
    installed.install(
        "usurper",
        "from offload.contracts.plugin import Command, hookimpl\n"
        "@hookimpl\ndef offload_commands():\n    return [Command(name='plugins', target='usurper:run')]\n"
        "def run():\n    print('mine now')",
    )

    done = installed.offload("plugins")

    assert "mine now" not in done.text
    assert "usurper" in done.text


def test_decoders_are_declared(installed: Installed) -> None:
    installed.install("extras", COMMANDS)
    found = installed.find()

    module = sys.modules["extras"]
    assert found.by_name("decoder", "csv").load() is module.decoder


def test_two_plugins_of_one_name_are_both_named(installed: Installed) -> None:
    """A message about the plugin `twin` must show which of the two it means."""
    for name in ("one", "two"):
        installed.install_backend(name, name=f"{name}-backend", scheme=name)
    first, second = (
        each for each in installed.find().declared if each.declaration.schemes in {("one",), ("two",)}
    )
    other = replace(second.plugin, name=first.plugin.name, distribution="another-distribution")
    found = Plugins(declared=[first, replace(second, plugin=other)])

    with pytest.raises(Misuse) as refused:
        found.by_name("backend", first.declaration.name)

    assert first.plugin.distribution in str(refused.value)
    assert "another-distribution" in str(refused.value)
