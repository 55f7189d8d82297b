"""Each query of docs/alerts.md that needs no metrics, over a home with just such a situation in it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from tests.support.clock import SteppedClock
from tests.support.homes import Home
from tests.support.page_home import REFUSED, PageHome, corrected
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.collections.system.declarations import STATISTICS, STATUS
from tidemark.collections.system.recorder import record_drops, record_run
from tidemark.errors import CorruptState, TidemarkError, Unreachable, UpperMismatch
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

MINUTE_MS, DAY_MS = 60_000, 86_400_000
PAGE = PROJECT_ROOT / "docs" / "alerts.md"
# The objects, or deployments, that each query is to name; nothing else may be there, and `planes` is well.
FOUND = {
    "Late": [["copies", "lagging"], ["overdue"]],
    "Failed": [["away", "contended", "damaged", "refused"]],
    "Refused by a guard": [["refused"]],
    "Deployment was replaced": [[1]],
    "Damaged": [["damaged"]],
    "Conflicts, again and again": [["contended"]],
    "Sink is behind": [["copies"]],
    "Worker is gone": [["paced"]],
}


def queries() -> dict[str, list[str]]:
    """Return the queries in SQL by the heading that they stand below."""
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    found = {
        heading: re.findall(r"```sql\n(.*?)```", body, re.DOTALL)
        for heading, body in zip(sections[::2], sections[1::2], strict=True)
    }
    return {heading: listed for heading, listed in found.items() if listed}


def failed(error: TidemarkError) -> CollectionReport:
    return CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(error))


def ingested(lag_ms: int) -> CollectionReport:
    return CollectionReport(outcome=Outcome.APPENDED, inserted=1, details={"lag_ms": lag_ms})


class Recorded:
    """A home whose runs are recorded as the DAGs record them."""

    def __init__(self, settings: Settings) -> None:
        self.now_ms = SystemClock().now_ms()
        self.home = Home(settings, schema="id bigint, name string", now_ms=self.now_ms - 3 * DAY_MS)

    def declare(self, *names: str) -> None:
        self.home.apply(*(self.home.declaration(name, key=["id"]) for name in names))

    def record(self, operation: str, *, minutes_ago: float, **results: CollectionReport) -> None:
        at_ms = self.now_ms - int(minutes_ago * MINUTE_MS)
        report = Report(
            operation=operation,
            started_at=at_ms - 1_000,
            finished_at=at_ms,
            generation=self.home.settings.generation,
            collections=results,
        )
        record_run(self.home.deployment, report, clock=SteppedClock(at_ms))

    def tables(self) -> dict[str, pa.Table]:
        return {name: read_arrow(self.home.shards.open(name)) for name in (STATUS, STATISTICS)}


@pytest.fixture
def troubled(home: Settings) -> Recorded:
    """Every situation at once, each of another object; and `planes`, `stopped` and `removed`, which need nobody."""
    troubled = Recorded(home)
    ill = ("lagging", "overdue", "refused", "damaged", "contended", "away", "paced")
    troubled.declare("planes", "stopped", "removed", *ill)
    troubled.home.declare_sink("copies", "planes", mode="changes", to={"path": str(home.home / "copies")})
    everything = dict.fromkeys(("planes", "stopped", "removed", *ill), corrected(1))
    troubled.record("reconcile", minutes_ago=2_000, **everything)
    well_since = {name: each for name, each in everything.items() if name not in {"stopped", "removed", "overdue"}}
    troubled.record("reconcile", minutes_ago=300, **well_since)
    for minutes_ago in range(50, 20, -2):
        troubled.record("ingest", minutes_ago=minutes_ago, paced=ingested(0))
    for minutes_ago in (30, 20, 10):
        conflict = failed(UpperMismatch(1, 2))
        troubled.record("reconcile", minutes_ago=minutes_ago, contended=conflict)
    troubled.record("ingest", minutes_ago=9, lagging=ingested(20 * MINUTE_MS))
    behind = CollectionReport(outcome=Outcome.CARRIED, inserted=1, details={"lag_ms": 2 * 60 * MINUTE_MS})
    troubled.record("sink", minutes_ago=8, copies=behind)
    troubled.home.deployment.objects.pause(["stopped"], why="a test")
    troubled.record("reconcile", minutes_ago=7, stopped=CollectionReport(outcome=Outcome.SKIPPED))
    objects, known = troubled.home.deployment.objects, troubled.home.registry.objects()
    objects.drop(objects.look(["removed"]))
    dropped = {"removed": known["removed"]}
    record_drops(troubled.home.deployment, dropped, who="ada", clock=SteppedClock(troubled.now_ms - 6 * MINUTE_MS))
    newer = troubled.home.of_generation(2)
    newer.switch(Mode.READ_WRITE)
    troubled.home = newer
    refused = CollectionReport(outcome=Outcome.REFUSED, error=REFUSED)
    damaged, away = failed(CorruptState("a file is gone")), failed(Unreachable("no answer"))
    troubled.record("reconcile", minutes_ago=5, planes=corrected(1), refused=refused, damaged=damaged, away=away)
    return troubled


@pytest.mark.slow
def test_each_query_names_what_is_in_that_situation_and_nothing_else(troubled: Recorded) -> None:
    with duckdb.connect() as engine:
        for name, table in troubled.tables().items():
            engine.register(name, table)
        found = {
            heading: [sorted(row[0] for row in engine.sql(query).fetchall()) for query in listed]
            for heading, listed in queries().items()
        }
    assert found == FOUND


@pytest.mark.slow
def test_python_that_asks_a_query_runs_as_shown(troubled: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(troubled.home.settings.home))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown: dict[str, Any] = {}
    exec(block, shown)  # noqa: S102 -- our own page
    assert shown["query"].strip() == queries()["Late"][0].strip()
    at = {
        name: datetime.fromtimestamp((troubled.now_ms - minutes_ago * MINUTE_MS) / 1000, tz=UTC)
        for name, minutes_ago in (("copies", 8), ("lagging", 9))
    }
    lags = {"copies": 120 * MINUTE_MS, "lagging": 20 * MINUTE_MS}
    assert sorted(shown["late"]) == [(name, lags[name], at[name]) for name in at]


@pytest.mark.spark
def test_spark_takes_the_queries_as_they_are(troubled: Recorded, home_spark: SparkSession) -> None:
    for name in (STATUS, STATISTICS):
        home_spark.table(f"tidemark.system.{name}").createOrReplaceTempView(name)
    found = {
        heading: [sorted(row[0] for row in home_spark.sql(query).collect()) for query in listed]
        for heading, listed in queries().items()
    }
    assert found == FOUND


@pytest.mark.slow
def test_the_commands_name_what_is_staged_and_who_holds_history(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PageHome(home, now_ms=SystemClock().now_ms())
    page.carry_planes()
    page.stage_weather()
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    commands = re.findall(r"```\ntidemark (.*)\n```", PAGE.read_text(encoding="utf-8"))
    capsys.readouterr()
    answers = []
    for command in commands:
        assert app(command.split()) == 0, command
        answers.append(json.loads(capsys.readouterr().out))
    staged, holds = answers
    assert {each["collection"] for each in staged["batches"]} == {"weather"}
    assert [(each["collection"], each["reader"]) for each in holds["holds"]] == [("planes", "sink-copies")]
