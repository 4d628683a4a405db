"""`offload conformance URL`: a sound backend passes, a broken one fails by its clause, and no object is
left.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent, indent
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from conformance_box.installed import Site, box, outcomes, report_in
from kit.installed import on_path
from offload_conformance.backend import SUITES
from offload_conformance.clauses import clauses_of
from offload_conformance.recording import RecordingStore, RecordingUpload
from offload_conformance.report import SCHEMA

from offload.cli.kit.ending import Interrupted
from offload.contracts.store import ObjectStore, Upload
from offload.ground.extras import missing_text

MEMORY = """
    import signal
    from dataclasses import replace
    from offload.ground.errors import AlreadyExists, Denied, Misuse, NotFound
    from offload.contracts.capabilities import Capabilities
    from offload.store.memory import MemoryStore
    from offload.contracts.store import Span

    OBJECTS = {}

    def open_url(url):
        return Store(objects=OBJECTS, name=url.partition("://")[2])

    class Store(MemoryStore):
"""


def broken(method: str, *, declares: str = "{}") -> str:
    """Return the code of a backend over a dict, with one method replaced."""
    return dedent(MEMORY) + indent(dedent(method), "    ") + f"\n\nDECLARES = {declares}\n"


NEEDS_PROCESSES = "store/create_is_atomic_between_processes"
"""The clause that a store in memory cannot be asked."""

OFF_BY_ONE = """
    async def get(self, key, span=None):
        if isinstance(span, Span) and span.length:
            span = Span(span.start, span.length - 1)
        return await super().get(key, span)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Make one whole run on a store in memory. Return the reports and the result."""
    folder = tmp_path_factory.mktemp("whole")
    outputs = {name: folder / f"out.{name}" for name in ("report", "junit", "markdown", "badge")}
    options = [word for name, path in outputs.items() for word in (f"--{name}", path)]
    (folder / "site").mkdir()
    with on_path(folder / "site"):
        Site(folder / "site").install("sound", broken("pass"))
        ran = box("sound://here", "--seed", "7", "--server", "a dict", "--listing-keys", 1100, *options)
    return {"ran": ran} | outputs


def test_a_sound_backend_passes_every_clause(whole: dict[str, Any]) -> None:
    ran, report = whole["ran"], report_in(whole["report"])

    assert ran.code == 0
    notes = {re.split(": | did not run", line)[1] for line in ran.stderr.splitlines()}
    limited = {"store/an_unreachable_server_is_no_answer", "store/listing_goes_on_page_after_page"}
    assert notes <= limited | {NEEDS_PROCESSES}
    assert ran.lines[0].split("\t") == ["layer", "passed", "failed", "not run", "retries"]
    known = {clause.id for clause in clauses_of(*SUITES)}
    assert {line.split("\t")[0]: line.split("\t")[2:4] for line in ran.lines[1:]} == {
        **{clause.partition("/")[0]: ["0", "0"] for clause in known},
        "store": ["0", "1"],
    }
    assert [each["id"] for each in report["clauses"] if each["retries"]] == []
    assert outcomes(report) == dict.fromkeys(known, "passed") | {NEEDS_PROCESSES: "not_run"}
    assert [each["id"] for each in report["clauses"] if not each["cases"]] == [NEEDS_PROCESSES]
    asked = {each["id"] for each in report["clauses"] if each["requests"]}
    silent = {each.partition("/")[2] for each in known - asked - {NEEDS_PROCESSES}}
    assert all(each.startswith(("capabilities_", "the_url_", "an_unreachable_server")) for each in silent), (
        silent
    )


def test_a_run_leaves_nothing_and_touches_no_other_object(whole: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"not ours")

    ran = box(tmp_path, "--select", "store/u*", "--select", "contract/d*", "--json")

    assert ran.code == 0
    assert ran.document["left"] == report_in(whole["report"])["left"] == {}
    found = {path.name for path in tmp_path.rglob("*")}
    assert found == {"other", ".staging"}  # the second folder is the backend's own, and empty
    assert (tmp_path / "other").read_bytes() == b"not ours"


def test_the_report_says_what_ran_and_where(whole: dict[str, Any]) -> None:
    report = report_in(whole["report"])

    assert report["backend"]["name"] == "sound"
    assert report["backend"]["distribution"] == "sound"
    assert report["url"] == "memory://here"  # as the store names itself
    assert (report["seed"], report["server"], report["select"]) == (7, "a dict", [])
    assert report["capabilities"]["atomic_create"] is True
    assert report["totals"] == {"passed": len(report["clauses"]) - 1, "failed": 0, "not_run": 1}
    assert (report["interrupted"], report["performance"]) == (False, None)
    [bodies] = [each for each in report["clauses"] if each["id"] == "store/bodies_of_unknown_size_are_whole"]
    assert bodies["text"].startswith("If `unsized_put` is declared, a body shorter than its bound is stored")
    assert (bodies["cases"], bodies["requests"]) == (6, 42)


def test_the_report_fits_its_schema(whole: dict[str, Any]) -> None:
    jsonschema.validate(report_in(whole["report"]), json.loads(SCHEMA.read_text()))


def test_the_schema_refuses_any_other_report(whole: dict[str, Any]) -> None:
    for change in ({"seed": "7"}, {"more": 1}, {"totals": {}}, {"report": 2}, {"clauses": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(report_in(whole["report"]) | change, json.loads(SCHEMA.read_text()))


def test_markdown_and_badge_can_be_written_alone(whole: dict[str, Any]) -> None:
    report = report_in(whole["report"])

    page, badge = whole["markdown"].read_text(), report_in(whole["badge"])

    contract, python, date = report["contract"], report["environment"]["python"], report["started_at"][:10]
    for fact in (
        "sound, sound 1.5",
        "a dict",
        report["url"],
        date,
        f"CPython {python}",
        f"{contract}, ledger-offload",
    ):
        assert fact in page, fact
    assert badge["label"] == f"ledger-offload contract {contract}"
    count = len(report["clauses"])
    passed = f"{count - 1} of {count} clauses"
    assert badge["message"] == f"sound 1.5 on a dict, {passed}, {date}, Python {python}"


def test_junit_markdown_and_badge_say_the_same(whole: dict[str, Any]) -> None:
    clauses = report_in(whole["report"])["clauses"]

    suites = ET.parse(whole["junit"]).getroot()
    cases = [f"{case.get('classname')}/{case.get('name')}" for case in suites.iter("testcase")]
    assert cases == [each["id"] for each in clauses]
    assert sum(int(suite.get("failures", "")) for suite in suites) == 0
    page = whole["markdown"].read_text()
    rows = re.findall(r"^\| `(\S+)` \| passed(?: \(advisory\))? \|", page, re.MULTILINE)
    assert rows == [each for each in cases if each != NEEDS_PROCESSES]
    badge = report_in(whole["badge"])
    assert (badge["schemaVersion"], badge["color"]) == (1, "yellow")  # not all ran
    assert f"{len(rows)} of {len(clauses)} clauses" in badge["message"]


@pytest.mark.parametrize(("port", "recording"), [(ObjectStore, RecordingStore), (Upload, RecordingUpload)])
def test_every_request_of_the_port_is_counted(port: type, recording: type) -> None:
    methods = {name for name in vars(port) if not name.startswith("_")} - {"url", "capabilities", "aclose"}

    assert methods - set(vars(recording)) == set()


def test_a_broken_backend_fails_by_the_clause_that_names_its_bug(site: Site, tmp_path: Path) -> None:
    site.install("broken", broken(OFF_BY_ONE))
    outputs = {name: tmp_path / name for name in ("report", "junit", "markdown", "badge")}
    options = [word for name, path in outputs.items() for word in (f"--{name}", path)]

    chosen = ("store/ranges_are_exact", "store/ranges_are_n*", "store/create_is*")
    select = [word for each in chosen for word in ("--select", each)]
    ran = box("broken://here", *select, "--seed", 5, *options)

    assert ran.code == 1
    report = report_in(outputs["report"])
    assert outcomes(report) == {
        "store/ranges_are_exact": "failed",
        "store/ranges_are_never_negative": "passed",
        "store/create_is_atomic": "passed",
        "store/create_is_atomic_between_threads": "passed",
        "store/create_is_atomic_between_processes": "not_run",
    }
    first, second, *table = ran.lines
    [failed] = [each for each in report["clauses"] if each["outcome"] == "failed"]
    assert first == f"FAILED store/ranges_are_exact: {failed['text']}"
    assert second.endswith(
        "; again: offload conformance broken://here --seed 5 --select store/ranges_are_exact"
    )
    assert table[1].split("\t")[:3] == ["store", "3", "1"]
    assert report["backend"] == {
        "name": "broken", "kind": "store", "distribution": "broken", "version": "1.5", "tested_against": None,
    }  # fmt: skip
    [case] = [
        case for case in ET.parse(outputs["junit"]).iter("testcase") if case.find("failure") is not None
    ]
    assert case.get("name") == "ranges_are_exact"
    assert "## store/ranges_are_exact" in outputs["markdown"].read_text()
    assert report_in(outputs["badge"])["color"] == "red"
    assert site.objects("broken") == {}


MESSAGES = {
    "store/deletion_is_done_when_it_returns": (
        """
        async def delete(self, keys):
            return None
        """,
        "not expected: {",
        "'plain'",
    ),
    "store/keys_are_checked": (
        """
        async def delete(self, keys):
            return None
        """,
        "a deletion with ''",
        "expected Misuse; found no error",
    ),
    "store/absence_is_an_error": (
        """
        async def get(self, key, span=None):
            if key.endswith("/never"):
                raise Misuse("no")
            return await super().get(key, span)
        """,
        "of 'never', which is absent",
        "expected NotFound; found Misuse: no",
    ),
    "store/uploads_replace_whole": (
        """
        async def get(self, key, span=None):
            data = await super().get(key, span)
            return data[:-1] + b"!" if len(data) > 3 else data
        """,
        "they differ at",
        "found b'!' of",
    ),
    "store/deletion_is_idempotent": (
        """
        async def delete(self, keys):
            raise KeyError(keys[0])
        """,
        "expected no error; found KeyError: ",
    ),
}


@pytest.mark.parametrize("clause", MESSAGES)
def test_a_message_shows_the_call_the_expected_and_the_found_value(site: Site, clause: str) -> None:
    method, *words = MESSAGES[clause]
    site.install("broken", broken(method))

    ran = box("broken://here", "--select", clause, "--seed", 0, "--json")

    [message] = [each["message"] for each in ran.document["clauses"] if each["id"] == clause]
    assert [each for each in words if each not in message] == []


NO_UPLOADS = """
    capabilities = replace(MemoryStore().capabilities, multipart=False)

    async def start_upload(self, key):
        raise Misuse("no uploads here")
"""


def test_clauses_on_uploads_are_not_run_if_the_store_declares_none(site: Site) -> None:
    """A clause that did not run does not count as passed."""
    site.install("plain", broken(NO_UPLOADS))

    ran = box("plain://here", "--select", "store/uploads_*", "--json")

    assert ran.code == 0
    found = outcomes(ran.document)
    assert found.pop("store/uploads_are_as_declared") == "passed"
    assert {*found.values()} == {"not_run"}


BREACHES = {
    "store/keys_are_checked": """
        async def delete(self, keys):
            for key in keys:
                self.objects.pop(key, None)
    """,
    "store/absence_is_an_error": """
        async def get(self, key, span=None):
            if key not in self.objects:
                raise NotFound("another")
            return await super().get(key, span)
    """,
    "store/listing_is_ordered": """
        async def list(self, prefix, *, after=""):
            return
            yield
    """,
    "contract/history_is_linear": """
        async def create(self, key, data):
            self.objects[key] = bytes(data)
    """,
}


@pytest.mark.parametrize("clause", BREACHES)
def test_the_folders_of_a_run_hide_no_error(site: Site, clause: str) -> None:
    """An invalid key reaches the store, an error names the store's key, and cleaning up lists nothing."""
    site.install("broken", broken(BREACHES[clause]))

    ran = box("broken://here", "--select", clause, "--json")

    assert (ran.code, outcomes(ran.document)) == (1, {clause: "failed"})
    assert (site.objects("broken"), ran.document["left"]) == ({}, {})


def test_a_note_names_each_key_that_a_store_does_not_delete(site: Site) -> None:
    site.install("broken", broken("async def delete(self, keys):\n    raise Denied('not you')"))

    ran = box("broken://here", "--select", "store/puts_replace_whole")

    [key] = site.objects("broken")
    assert ran.stderr == f"note: left in the store: {key}: not you\n"
    assert ran.code == 0, "whether it deletes was not asked"


KEY_ERROR = """
    async def get(self, key, span=None):
        return self.objects[key][:]
"""


def test_a_bug_in_the_backend_fails_a_clause_and_the_run_continues(site: Site) -> None:
    """The bug is an error of no framework class, in the first and the last request of the run itself."""
    site.install("broken", broken(KEY_ERROR))

    ran = box("broken://here", "--select", "store/absence*", "--select", "store/puts_are_durable", "--json")

    assert ran.code == 1
    assert outcomes(ran.document)["store/absence_is_an_error"] == "failed"
    assert site.objects("broken") == {}
    assert {each.partition(": ")[0] for each in ran.document["left"].values()} == {
        "unknown whether it is still stored"
    }


def test_notes_name_the_first_keys_that_are_left_and_the_report_names_all(site: Site, tmp_path: Path) -> None:
    site.install("broken", broken("async def delete(self, keys):\n    raise ZeroDivisionError('a bug')"))
    report = tmp_path / "report.json"

    ran = box("broken://here", "--select", "store/listing_goes*", "--listing-keys", 1100, "--report", report)

    left = report_in(report)["left"]
    assert len(left) == len(site.objects("broken")) > 1000
    assert set(left.values()) == {"ZeroDivisionError: a bug"}
    *first, more = ran.stderr.splitlines()
    assert len(first) == 10
    assert more == f"note: left in the store: {len(left) - 10} more keys; the report lists all of them"


CTRL_C = """
    async def put(self, key, body):
        await super().put(key, body)
        if len(SEEN := globals().setdefault('SEEN', [])) == 20:
            signal.raise_signal(signal.SIGINT)
        SEEN.append(key)
"""


def test_ctrl_c_cleans_up(site: Site) -> None:
    """Ctrl-C comes in the middle of a put, after other tests, in one that has written something."""
    site.install("broken", broken(CTRL_C))

    with pytest.raises(Interrupted):
        box("broken://here", "--select", "store")

    import broken_code

    assert len(broken_code.SEEN) >= 20
    assert site.objects("broken") == {}


def test_after_ctrl_c_the_reports_have_the_results_so_far(site: Site, tmp_path: Path) -> None:
    """Finished clauses keep their outcome. The interrupted clause and those after it are `not_run`."""
    site.install("broken", broken(CTRL_C))
    outputs = {name: tmp_path / name for name in ("report", "junit", "markdown", "badge")}
    options = [word for name, path in outputs.items() for word in (f"--{name}", path)]

    with pytest.raises(Interrupted):
        box("broken://here", "--select", "store", *options)

    report = report_in(outputs["report"])
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert (report["interrupted"], report["left"]) == (True, {})
    asked = [each for each in report["clauses"] if each["layer"] == "store"]
    ended = [each["outcome"] for each in asked]
    stopped = ended.index("not_run")
    assert set(ended[:stopped]) == {"passed"}
    pressed, *behind = (each["message"] for each in asked[stopped:])
    assert re.fullmatch(r"Ctrl-C ended the run \d+\.\d s after this clause began", pressed)
    assert set(behind) == {"the run was stopped"}
    assert {each["message"] for each in report["clauses"] if each["layer"] != "store"} == {"not selected"}
    assert report["totals"]["passed"] == stopped > 0
    assert len(ET.parse(outputs["junit"]).findall(".//skipped")) == report["totals"]["not_run"]
    assert "The run was stopped by Ctrl-C." in outputs["markdown"].read_text()
    assert report_in(outputs["badge"])["color"] == "yellow"


def test_capabilities_of_the_plugin_are_compared_with_those_of_the_store(site: Site) -> None:
    declares = "{'capabilities': Capabilities(atomic_create=True, strong_listing=True, multipart=False)}"
    site.install("broken", broken("pass", declares=declares))

    ran = box("broken://here", "--select", "store/capab*", "--json")

    assert outcomes(ran.document) == {
        "store/capabilities_do_not_change": "passed",
        "store/capabilities_are_those_stated": "failed",
        "store/capabilities_are_as_meant": "failed",
    }


def test_an_offloader_runs_the_clauses_that_need_no_store(site: Site) -> None:
    """The suite cannot see if an attempt's objects are gone: those clauses are `not_run`, with a reason."""
    source = """
        from offload import ObjectStoreOffloader
        from offload.store.memory import MemoryStore
        from offload_conformance.patience import PatientOffloader

        DECLARES, PLACES = {"kind": "offloader"}, {}

        class WithoutStore(PatientOffloader):
            store = None

        def open_url(url):
            store = MemoryStore(objects=PLACES.setdefault(url, {}), name=url)
            return WithoutStore(ObjectStoreOffloader(store), count=lambda: None)
    """
    site.install("whole", source)
    select = ("contract/attempts_are_stored_apart", "contract/reads_are_verbatim")

    ran = box("whole://here", "--json", *(word for each in select for word in ("--select", each)))

    assert ran.code == 0
    assert outcomes(ran.document) == dict(zip(select, ("not_run", "passed"), strict=True))
    [why] = [each["message"] for each in ran.document["clauses"] if each["id"] == select[0]]
    assert why == "the suite cannot see what this offloader stores, because it has no object store"
    assert (ran.document["capabilities"], len(ran.document["left"])) == (None, 1)


def test_an_unreachable_store_is_one_error(site: Site) -> None:
    site.install("broken", broken("async def get(self, key, span=None):\n    raise Denied('no entry')"))

    ran = box("broken://here")

    assert (ran.code, ran.stdout, ran.error) == (1, b"", "offload: no entry")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either URL or --compare OLD NEW"),
        (("there", "--compare", "a", "b"), "give either URL or --compare OLD NEW"),
        (("no-such://there",), "no plugin knows the backend 'no-such'"),
        (("there", "--backend", "nothing"), "no plugin knows the backend 'nothing'"),
        (("there", "--select", "stores"), "--select 'stores' matches no layer and no clause"),
        (
            ("there", "--report", "no/such/folder/r.json"),
            "--report: the folder no/such/folder does not exist",
        ),
        (("there", "-o", "colour=red"), "backend 'posix' has no option 'colour'"),
        (
            ("there", "-o", "commit.key=x"),
            "options of a commit store, and limits, are not options of the backend",
        ),
        (("there", "-o", "colour"), "--option takes NAME=VALUE"),
        (("there", "--seed", "-1"), "Invalid value for '--seed'"),
    ],
)
def test_wrong_arguments_end_with_2(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    site.install("broken", broken("pass"))

    ran = box(*arguments)

    assert (ran.code, ran.stdout) == (2, b"")
    assert says in ran.stderr
    assert not (tmp_path / "there").exists()


def test_a_missing_pytest_is_an_error_that_says_what_to_install(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("offload_conformance.command.find_spec", lambda name: None)

    ran = box(tmp_path / "there")

    assert ran.code == 1
    assert ran.error == "offload: " + missing_text("'conformance'", "pytest", "ledger-offload[conformance]")
