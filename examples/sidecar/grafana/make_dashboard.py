"""Write dashboard.json, a dashboard of `offload run` for Grafana 10 and later.

    python examples/sidecar/grafana/make_dashboard.py

`ROWS` is the dashboard: each row is a question, and each panel a part of its answer. The test in
tests/packaging compares the file with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

PLACE: Final = Path(__file__).with_name("dashboard.json")
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
HEIGHT: Final = 7


class Panel(NamedTuple):
    """One panel: a query, the name of its lines, and the unit as Grafana calls it."""

    title: str
    query: str
    legend: str = "{{instance}}"
    unit: str = "short"
    kind: str = "timeseries"
    red_from: float | None = None
    """The value from which the panel is red."""


ON: Final = 'instance=~"$instance"'
OF: Final = f'{ON}, stream=~"$stream"'
STREAM: Final = "{{tier}} {{stream}}"
FAILED: Final = 'outcome!~"ok|not_found|already_exists"'
"""To find no object, or one that is there already, is an ordinary answer."""

DAMAGE: Final = f"offload_damage_found_total{{{ON}}}"


def _of_streams(metric: str) -> str:
    """Return a query for the ten greatest values. Each process that knows a stream shows one of its own."""
    return f"topk(10, max by (tier, stream) ({metric}{{{OF}}}))"


ROWS: Final = {
    "Is it running?": (
        Panel("Processes", f'up{{job="offload", {ON}}}', kind="stat"),
        Panel(
            "Streams by state",
            f"sum by (state) (offload_stream_state{{{ON}}})",
            legend="{{state}}",
        ),
        Panel("Paused streams", f"sum(offload_paused_streams{{{ON}}})", "paused", kind="stat", red_from=1),
        Panel("Upkeep that failed last", f"offload_upkeep_failing{{{ON}}}", "{{instance}} {{task}}"),
    ),
    "How far behind is it?": (
        Panel("Oldest record that waits", _of_streams("offload_lag_seconds"), STREAM, "s"),
        Panel("Records that wait", _of_streams("offload_lag_records"), STREAM),
        Panel("Late streams", f"sum(offload_late_streams{{{ON}}})", "late", kind="stat", red_from=1),
    ),
    "What is it waiting for?": (
        Panel(
            "Streams that wait, by error", f"sum by (error) (offload_waiting_streams{{{ON}}})", "{{error}}"
        ),
        Panel("Streams without the broker's word", f"offload_held_back_streams{{{ON}}}"),
    ),
    "How does the store answer?": (
        Panel(
            "Requests that failed",
            f"sum by (operation, outcome) (rate(offload_store_requests_total{{{ON}, {FAILED}}}[5m]))",
            "{{operation}} {{outcome}}",
            "reqps",
        ),
        Panel(
            "Requests that were repeated",
            f"sum by (operation, outcome) (rate(offload_store_retries_total{{{ON}}}[5m]))",
            "{{operation}} after {{outcome}}",
            "reqps",
        ),
        Panel(
            "Requests that were throttled",
            f'sum(rate(offload_store_requests_total{{{ON}, outcome="throttled"}}[5m])) '
            f"/ sum(rate(offload_store_requests_total{{{ON}}}[5m]))",
            "throttled",
            "percentunit",
            red_from=0.05,
        ),
        Panel(
            "Time of requests, 99th percentile",
            "histogram_quantile(0.99, sum by (le, operation) "
            f"(rate(offload_store_request_seconds_bucket{{{ON}}}[5m])))",
            "{{operation}}",
            "s",
        ),
    ),
    "What could be lost?": (
        Panel(
            "Free space on the source's disk",
            f"offload_source_disk_free_bytes{{{ON}}} / offload_source_disk_size_bytes{{{ON}}}",
            "{{instance}} {{folder}}",
            "percentunit",
        ),
        Panel(
            "Damage found in 8 days",
            f"sum(increase({DAMAGE}[8d]) > 0 or ({DAMAGE} unless {DAMAGE} offset 8d))",
            "damages",
            kind="stat",
            red_from=1,
        ),
        Panel(
            "Oldest data that was not read",
            "min by (tier) (offload_oldest_unverified_seconds)",
            "{{tier}}",
            "s",
            kind="stat",
            red_from=16 * 86_400,
        ),
    ),
    "What does it cost?": (
        Panel("Uploaded", f"sum(rate(offload_uploaded_bytes_total{{{ON}}}[5m]))", "stored", "Bps"),
        Panel(
            "Bytes to and from the store",
            f"sum by (direction) (rate(offload_store_bytes_total{{{ON}}}[5m]))",
            "{{direction}}",
            "Bps",
        ),
        Panel(
            "Requests",
            f"sum by (operation) (rate(offload_store_requests_total{{{ON}}}[5m]))",
            "{{operation}}",
            "reqps",
        ),
        Panel(
            "Commits by outcome",
            f"sum by (outcome) (rate(offload_commits_total{{{ON}}}[5m]))",
            "{{outcome}}",
            "ops",
        ),
        Panel("Memory", f'process_resident_memory_bytes{{job="offload", {ON}}}', unit="bytes"),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the document."""
    return {
        "uid": "ledger-offload",
        "title": "ledger-offload",
        "tags": ["rabbitmq", "tiered-storage"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        at = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        found.append({"id": len(found) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": at})
        width = WIDTH // len(panels)
        for number, panel in enumerate(panels):
            at = {"h": HEIGHT, "w": width, "x": number * width, "y": y + 1}
            found.append({"id": len(found) + 1, "gridPos": at, **_panel(panel)})
        y += 1 + HEIGHT
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
    if panel.red_from is not None:
        steps.append({"value": panel.red_from, "color": "red"})
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend, "datasource": SOURCE}],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def _variables() -> list[dict[str, Any]]:
    found = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
    for name, query in (
        ("instance", 'label_values(up{job="offload"}, instance)'),
        ("stream", "label_values(offload_lag_seconds, stream)"),
    ):
        found.append(
            {
                "name": name,
                "type": "query",
                "query": query,
                "datasource": SOURCE,
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
                "refresh": 2,
            }
        )
    return found


if __name__ == "__main__":
    PLACE.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
