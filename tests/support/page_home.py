"""A home with something for each view of the status page, made without a JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.clock import SteppedClock
from tests.support.events import append_numbers, create_events
from tests.support.homes import Home
from tests.support.rows import correction
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.system.recorder import record_run
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.rows import Row
    from tidemark.settings import Settings

DAY_MS = 86_400_000
REFUSED = ErrorReport(
    kind="GuardRefused",
    message="3 of 4 rows would go, and max_delete_ratio is 0.5",
    hint="see what the source has lost; then `tidemark reconcile flights --max-delete-ratio 1`",
    sample=[{"id": 7, "name": "<b>AA 7</b>"}],
    exit_code=ExitCode.REFUSED,
)


class PageHome:
    """The home; ``now_ms`` is when the last run was. Source ``flights`` was refused then."""

    def __init__(self, settings: Settings, *, now_ms: int, days: int = 3) -> None:
        self.settings, self.now_ms = settings, now_ms
        self.home = Home(settings, schema="id bigint, name string", now_ms=now_ms - days * DAY_MS)
        guards: dict[str, Any] = {"key": ["id"], "guards": {"max_delete_ratio": 0.25}}
        self.home.apply(self.home.declaration("planes", **guards), self.home.declaration("flights", **guards))
        self.home.switch(Mode.READ_WRITE)
        self.publish("planes", insert=[(1, "Boeing 737"), (2, "Airbus A320"), (3, "Embraer 190")], days_ago=days)
        for day in range(days, 0, -1):
            self.record("reconcile", days_ago=day, planes=corrected(3 * day), flights=corrected(day))

    def change_planes(self) -> None:
        """Change a row of planes, add one and remove one, as a reconcile of last night."""
        self.publish("planes", retract=[(2, "Airbus A320")], insert=[(2, "Airbus A321"), (4, "<b>Concorde</b>")])
        self.publish("planes", retract=[(3, "Embraer 190")], days_ago=0.01)

    def declare_late(self, name: str, *, days_ago: int) -> None:
        """Declare a collection that ran every day, and last so many days ago."""
        self.home.apply(self.home.declaration(name, key=["id"]))
        for day in range(days_ago + 4, days_ago - 1, -1):
            self.record("reconcile", days_ago=day, **{name: corrected(1)})

    def refuse_flights(self) -> None:
        """Let the last run refuse flights, and keep its report as a DAG does."""
        refused = CollectionReport(outcome=Outcome.REFUSED, error=REFUSED, seconds=0.5)
        report = self.record("reconcile", planes=corrected(5), flights=refused)
        self.settings.reports.mkdir(exist_ok=True)
        (self.settings.reports / "reconcile_collections.json").write_text(json.dumps(report.to_json()))

    def ingest_events(self) -> None:
        """Ingest five rows through a buffer, and leave three there."""
        self.home.declare_reader()
        self.home.send_rows(0, 3)
        self.home.send_rows(1, 2)
        report = self.home.ingest_all("events")
        record_run(self.home.deployment, report, clock=SteppedClock(self.now_ms))
        self.home.send_rows(0, 3)

    def ingest_visits(self) -> None:
        """Ingest rows of two days, by event time."""
        self.home.declare_reader("visits", schema="id bigint, at timestamp", event_time="at")
        for day in (1, 1, 2):
            self.home.send(0, f'{{"id": {day}, "at": "2023-01-0{day}T12:00:00Z"}}'.encode())
        self.home.ingest_all("visits")

    def carry_planes(self) -> None:
        """Carry planes into files once, with a hold that is soon overdue."""
        folder = self.settings.home / "copies"
        self.home.declare_sink("copies", "planes", mode="changes", to={"path": str(folder)}, warn_after="1s")
        self.home.run_sink("copies")

    def stage_weather(self) -> None:
        """Stage two batches, while the deployment is read-only."""
        declaration = {"name": "weather", "kind": "append-only", "schema": self.home.schema}
        shard = create_events(self.settings, "weather")
        registry = self.home.registry
        registry.replace([Declaration.model_validate(declaration)], seen=registry.read())
        self.home.switch(Mode.READ_ONLY)
        for start in (0, 10):
            append_numbers(shard, self.settings, start, start + 10)

    def stand_by(self) -> int:
        """Let deployment 2 reconcile all beside the leader, and find nothing to correct; the time of its run."""
        beside, at_ms = self.home.of_generation(2), self.now_ms - 120_000
        found = {
            name: CollectionReport(outcome=Outcome.UNCHANGED, lower=self.home.upper(name))
            for name in self.home.registry.read().declarations
        }
        report = Report(operation="reconcile", started_at=at_ms, finished_at=at_ms, generation=2, collections=found)
        record_run(beside.deployment, report, clock=SteppedClock(at_ms))
        return at_ms

    def publish(
        self, name: str, *, insert: Iterable[Row] = (), retract: Iterable[Row] = (), days_ago: float = 0.5
    ) -> None:
        """Commit a correction of that time."""
        shard, time = self.home.shard(name), self.now_ms - int(days_ago * DAY_MS)
        writer = Writer.join(shard, self.settings.generation)
        head = shard.load()
        assert isinstance(head.state.upper, int)
        batch = correction(head, insert=insert, retract=retract, time=time)
        writer.publish(batch, lower=head.state.upper, new_upper=time + 1)

    def record(self, operation: str, *, days_ago: float = 0, **results: CollectionReport) -> Report:
        """Record a run of that time, as the DAGs do."""
        at_ms = self.now_ms - int(days_ago * DAY_MS)
        report = Report(
            operation=operation,
            started_at=at_ms - 1_000,
            finished_at=at_ms,
            generation=self.settings.generation,
            collections=results,
        )
        record_run(self.home.deployment, report, clock=SteppedClock(at_ms))
        return report


def corrected(rows: int) -> CollectionReport:
    return CollectionReport(outcome=Outcome.CORRECTED, inserted=rows, seconds=1.5)
