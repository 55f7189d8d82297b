"""The dashboard and the alerts ask for metrics that are sent, under the names that Prometheus has them by."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.events import create_events
from tidemark.iceberg.shard.state_reader import read_states
from tidemark.orchestration.metrics import send_result, send_staged
from tidemark.orchestration.storage_worker import GAUGES
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from tests.orchestration.conftest import StatsdServer
    from tidemark.settings import Settings

DOCS = PROJECT_ROOT / "docs"
AIRFLOWS_OWN = {"airflow_ti_failures_total"}


@pytest.fixture
def sent(statsd: StatsdServer, home: Settings) -> set[str]:
    """The names in Prometheus of all that is sent, through the mapping."""
    result = {"name": "planes", "operation": "ingest", "outcome": "failed", "error": {"kind": "Unreachable"}}
    send_result(result | {"seconds": 1, "inserted": 1, "retracted": 1, "details": {"lag_ms": 1}})
    create_events(home)
    send_staged(read_states(home), now_ms=0)
    names = {name.partition(",")[0] for name in statsd.received()} | {f"tidemark.storage.{gauge}" for gauge in GAUGES}
    rules = yaml.safe_load((DOCS / "grafana" / "statsd_mapping.yml").read_text())["mappings"]
    mapped = {rule["match"]: rule["name"] for rule in rules}
    return {mapped.get(f"airflow.{name}", f"airflow_{name.replace('.', '_')}") for name in names}


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "grafana" / "tidemark.json").read_text())
    return found


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\bairflow_\w+", query))


def test_each_panel_asks_for_what_is_sent_and_all_that_is_sent_is_shown(
    sent: set[str], dashboard: dict[str, Any]
) -> None:
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = [metrics_in(query) for query in queries]
    assert all(shown), "a query without a metric"
    assert set().union(*shown) == sent


def test_the_variables_ask_for_what_is_sent(sent: set[str], dashboard: dict[str, Any]) -> None:
    (asked,) = (each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query")
    assert metrics_in(asked)
    assert metrics_in(asked) <= sent


def test_panels_stand_side_by_side(dashboard: dict[str, Any]) -> None:
    """Grafana moves panels that overlap, so that the page looks otherwise than it was made."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_alerts_ask_for_what_is_sent(sent: set[str]) -> None:
    queries = re.findall(r"```promql\n(.*?)```", (DOCS / "alerts.md").read_text(), re.DOTALL)
    assert queries
    for query in queries:
        assert metrics_in(query)
        assert metrics_in(query) <= sent | AIRFLOWS_OWN


def test_the_mapping_has_no_rule_for_what_nobody_sends_or_asks_for(sent: set[str]) -> None:
    rules = yaml.safe_load((DOCS / "grafana" / "statsd_mapping.yml").read_text())["mappings"]
    assert {rule["name"] for rule in rules} <= sent | AIRFLOWS_OWN
