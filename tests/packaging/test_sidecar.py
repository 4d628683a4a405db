"""Tests of what an operator installs beside `offload run`: unit, image, configuration, alerts and dashboard.

The tools that judge these files are not Python packages of ours. A test that needs one is skipped where it is
missing, and the others ask what needs no tool.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from follower_world import LEADING

from offload.contracts.events import DamageFound, UpkeepFinished
from offload.contracts.metrics import StoreMetrics
from offload.ground.errors import Absent, TryAgain
from offload.service.config_file import load_config
from offload.service.disk import DiskWatch
from offload.service.metrics import ServiceMetrics
from offload.service.notify import BEAT_SECONDS_MAX

ROOT = Path(__file__).parents[2]
SIDECAR = ROOT / "examples" / "sidecar"
ALERTS = SIDECAR / "prometheus" / "alerts.yml"
UNIT = (SIDECAR / "offload.service").read_text()
DOCKERFILE = (SIDECAR / "Dockerfile").read_text()
DASHBOARD: dict[str, Any] = json.loads((SIDECAR / "grafana" / "dashboard.json").read_text())

yaml: Any = pytest.importorskip("yaml", reason="PyYAML comes with moto, of the extra `test`")


def ran(tool: str, *arguments: object) -> str:
    """Return what a tool printed. The test fails if it found a mistake, and is skipped without the tool."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (docs/testing.md)")
    done = subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def of_unit(key: str) -> str:
    """Return the value of a key of the unit."""
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Return the queries of all alerts and panels."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return [*(rule["expr"] for rule in rules()), *panels]


def labels_by_series() -> dict[str, set[str]]:
    """Return the names that `/metrics` can show, each with its labels."""
    disks = [
        DiskWatch(folder=Path("/data"), free_size_bytes=1, size_bytes=2),
        DiskWatch(folder=Path("/tier"), of="tier", free_size_bytes=1, size_bytes=2),
    ]

    class Asked:
        """Stands in for a source whose broker is asked."""

        held_back: list[str] = []
        broker = type("Broker", (), {"error": None})

    stores = StoreMetrics()
    metrics = ServiceMetrics(
        lambda: [LEADING, replace(LEADING, stream="b", error=TryAgain("no answer"))],
        asked=[Asked()],  # type: ignore[list-item]
        disks=disks,
        stores=stores,
        unverified=lambda: 1.0,
    )
    metrics.emit(DamageFound(damage=Absent("an object", "orders")))
    metrics.emit(UpkeepFinished(job="verify", streams=1, objects=1, size_bytes=1, seconds=1.0, error=None))
    stores.ended("put", "ok", 0.1)
    stores.retries["put", "throttled"] += 1
    stores.moved["put"] += 1
    metrics._counters["offload_commits"].labels("accepted")
    samples = [each for family in metrics.registry.collect() for each in family.samples]
    found: dict[str, set[str]] = {"up": set()}
    for sample in samples:
        found.setdefault(sample.name, set()).update(sample.labels)
    return {name: labels | {"job", "instance"} for name, labels in found.items()}


class TestConfiguration:
    def test_every_key_of_it_is_a_key_also_in_its_comments(self, tmp_path: Path) -> None:
        text = (SIDECAR / "run.toml").read_text()
        full = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
        for name in re.findall(r'^\w+_file = "(.*?)"', full, re.MULTILINE):
            (tmp_path / name).write_text("secret\n")
        (tmp_path / "run.toml").write_text(text)
        (tmp_path / "full.toml").write_text(
            full.replace("source =", 'keys = "keyfile:/etc/keys"\nsource =', 1)
        )

        plain, _ = load_config(tmp_path / "run.toml", {})
        config, _ = load_config(tmp_path / "full.toml", {})

        assert (plain.tier, plain.address) == ("s3://my-bucket/rabbitmq", ("127.0.0.1", 9464))
        assert list(config.streams) == ["audit-*", "*"]
        assert config.broker_password is not None

    def test_the_unit_waits_longer_than_the_process_and_uses_its_memory_and_beats(self) -> None:
        config, _ = load_config(SIDECAR / "run.toml", {})

        assert float(of_unit("TimeoutStopSec")) > config.stop_seconds
        assert float(of_unit("WatchdogSec")) > 2 * BEAT_SECONDS_MAX
        assert int(of_unit("MemoryMax").removesuffix("M")) * 2**20 > 2 * config.memory_size_bytes

    def test_the_alert_for_a_tier_that_is_not_verified_spares_two_intervals(self) -> None:
        config, _ = load_config(SIDECAR / "run.toml", {})
        (rule,) = [rule for rule in rules() if rule["alert"] == "OffloadNotVerified"]
        factors = re.search(r"> (\d+) \* (\d+)", rule["expr"])

        assert factors is not None
        assert config.upkeep.verify_seconds is not None
        assert int(factors[1]) * int(factors[2]) > 2 * 1.1 * config.upkeep.verify_seconds


class TestUnit:
    def test_systemd_accepts_it(self, tmp_path: Path) -> None:
        unit = tmp_path / "offload.service"
        unit.write_text(UNIT.replace("/opt/offload/bin/offload", sys.executable))

        said = ran("systemd-analyze", "verify", unit)

        assert said == ""

    def test_systemd_rates_it_as_little_exposed(self) -> None:
        """The rate is ten times that of the table: 0 is nothing, 100 is a root shell."""
        ran("systemd-analyze", "security", "--offline=true", "--threshold=20", SIDECAR / "offload.service")

    def test_the_broker_cannot_be_written(self) -> None:
        assert of_unit("ProtectSystem") == "strict"
        assert of_unit("User") not in ("root", "rabbitmq")
        assert "\nReadWritePaths=" not in UNIT


class TestImage:
    def test_hadolint_finds_nothing(self) -> None:
        ran("hadolint", SIDECAR / "Dockerfile")

    def test_it_is_built_from_every_folder_of_the_wheel(self) -> None:
        """And from every file that building or the Dockerfile names."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        copied = set(re.findall(r"^!(.*)$", (SIDECAR / "Dockerfile.dockerignore").read_text(), re.MULTILINE))

        assert all((ROOT / each).exists() for each in copied)
        assert {each.partition("/")[0] for each in packages} <= copied
        assert {project["project"]["readme"], "pyproject.toml", "constraints.txt", "LICENSE"} <= copied

    def test_it_installs_extras_that_exist_and_runs_as_nobody(self) -> None:
        extras = re.search(r"'\.\[(.*)\]'", DOCKERFILE)
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)

        assert extras is not None
        assert set(extras[1].split(",")) <= set(known)
        assert f"--uid {user} " in DOCKERFILE

    @pytest.mark.parametrize(("code", "healthy"), [(200, True), (503, False), (None, False)])
    def test_its_health_check_is_that_livez_answers(self, code: int | None, healthy: bool) -> None:
        asked: list[str] = []

        class Livez(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(code or 0)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Print nothing."""

        with serving(Livez) as server:
            if code is None:
                server.shutdown()
                server.server_close()
            found = re.search(r"HEALTHCHECK[^\[]*(\[.*\])$", DOCKERFILE, re.MULTILINE)
            assert found is not None
            command = json.loads(found[1].replace(":9464/", f":{server.server_port}/"))
            done = subprocess.run(
                [sys.executable, *command[1:]], capture_output=True, timeout=60, check=False
            )

        assert (done.returncode == 0) is healthy
        assert asked == ([] if code is None else ["/livez"])


class serving:  # noqa: N801 - read as a verb
    """A server of one handler in a thread, for the time of a `with`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.server = HTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> HTTPServer:
        self.thread.start()
        return self.server

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of a query, with the labels that its selector names."""
    for name, braces in re.findall(
        r"\b((?:offload|process)_\w+|up)\b(\{[^}]*\})?", re.sub(r'"[^"]*"', '""', query)
    ):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces))


class TestAlertsAndDashboard:
    @pytest.mark.parametrize("query", queries())
    def test_a_query_names_only_metrics_and_labels_that_exist(self, query: str) -> None:
        known, found = labels_by_series(), list(selectors(query))

        assert found
        for name, labels in found:
            assert name in known, query
            assert labels <= known[name], query

    def test_no_label_of_ours_is_one_that_prometheus_sets(self) -> None:
        """It would be renamed to `exported_job`, and no query would find it."""
        metrics = ServiceMetrics(list, disks=[DiskWatch(folder=Path("/"), free_size_bytes=1, size_bytes=2)])
        metrics.emit(
            UpkeepFinished(job="verify", streams=1, objects=1, size_bytes=1, seconds=1.0, error=None)
        )

        assert not {"job", "instance"} & {
            label for family in metrics.registry.collect() for each in family.samples for label in each.labels
        }

    def test_each_alert_says_what_failed_what_to_run_and_whom_it_wakes(self) -> None:
        for rule in rules():
            assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
            assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
            for page in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["description"]):
                assert (ROOT / page).exists(), rule["alert"]

    def test_each_alert_is_seen_firing_by_promtool_and_described(self) -> None:
        names = [rule["alert"] for rule in rules()]
        tested = (SIDECAR / "prometheus" / "alerts_test.yml").read_text()
        page = (ROOT / "docs" / "monitor.md").read_text()

        assert [name for name in names if name not in tested] == []
        assert sorted(re.findall(r"^\| `(Offload\w+)` \|", page, re.MULTILINE)) == sorted(names)

    def test_promtool_sees_the_alerts_fire(self) -> None:
        folder = SIDECAR / "prometheus"
        ran("promtool", "check", "rules", ALERTS)
        ran("promtool", "check", "config", folder / "scrape.yml")
        ran("promtool", "test", "rules", folder / "alerts_test.yml")

    def test_promtool_can_parse_the_queries_of_the_dashboard(self, tmp_path: Path) -> None:
        recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
        (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))

        ran("promtool", "check", "rules", tmp_path / "rules.yml")

    def test_the_dashboard_is_that_of_its_program(self) -> None:
        made = runpy.run_path(str(SIDECAR / "grafana" / "make_dashboard.py"))["dashboard"]()

        assert made == DASHBOARD, "run: python examples/sidecar/grafana/make_dashboard.py"

    def test_no_panel_of_the_dashboard_covers_another(self) -> None:
        cells = [
            (x, y)
            for at in (panel["gridPos"] for panel in DASHBOARD["panels"])
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]

        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24
        assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
