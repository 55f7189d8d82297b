"""Hours of a read-only deployment's work: whatever the leader owns is the same afterwards, byte for byte.

Two full listings are compared: every row of the catalog's database and of the stash, and every file in the home with
its size and time.
Only what read-only staging declares may differ: staging branches with the snapshots and files that they alone name, the
versions of a table's metadata that say so, and a quarantine that did not exist, with nothing in it to see.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from tests.collections.maintenance.test_maintain import declare
from tests.support.clock import SteppedClock
from tests.support.events import append_numbers, create_events, numbers, rows_table, switch
from tests.support.homes import Home
from tests.support.rows import local_path
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.stash.stash import Stash
from tidemark.collections.append.file import FileBatch, append_file
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.maintenance.retain import retain_all
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ReadOnly
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import COLLECTIONS, SYSTEM, Shards
from tidemark.interval import HOUR_MS
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from tidemark.report import Report
    from tidemark.settings import Settings

HOURS = 4
STAGED = "staged/"


@dataclass(frozen=True)
class Listing:
    """Everything durable, in two parts: what the leader owns, and what is only staged."""

    rows: dict[str, list[tuple[object, ...]]]  # of the catalog, by table; without where the metadata is
    stash: list[str]  # every record of it: declarations, mode, audit
    tables: dict[str, dict[str, object]]  # metadata, less what is staged
    files: dict[Path, tuple[int, int]]  # size and time of change
    staged_files: frozenset[Path]


def list_everything(settings: Settings) -> Listing:
    shards = Shards.connect(settings)
    tables, staged = {}, set()
    for namespace in (COLLECTIONS, SYSTEM):
        for name in shards.names(namespace):
            table = shards.open(name, namespace).load().table
            tables[f"{namespace}.{name}"] = of_the_leader(table)
            staged |= files_of(table, staged_snapshots(table)) - files_of(table, owned_snapshots(table))
    assert settings.home is not None
    files = {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in settings.home.rglob("*")
        if path.is_file()
        and not path.name.endswith(".metadata.json")
        and path.suffix not in {".db", ".db-wal", ".db-shm"}
    }
    return Listing(catalog_rows(settings), list(Stash.of(settings).dump()), tables, files, frozenset(staged))


def catalog_rows(settings: Settings) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(settings.catalog_path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    # The last two columns say where the metadata is and was: another version is what staging makes.
    return {name: [row[:3] if name == "iceberg_tables" else row for row in rows] for name, rows in found.items()}


def owned_snapshots(table: Table) -> set[int]:
    """The snapshots that a ref of the leader's can reach, and all that no staging branch can."""
    return {each.snapshot_id for each in table.metadata.snapshots} - staged_snapshots(table)


def staged_snapshots(table: Table) -> set[int]:
    found = set()
    for name, ref in table.metadata.refs.items():
        snapshot = table.metadata.snapshot_by_id(ref.snapshot_id) if name.startswith(STAGED) else None
        while snapshot is not None:
            found.add(snapshot.snapshot_id)
            snapshot = table.metadata.snapshot_by_id(snapshot.parent_snapshot_id or -1)
    return found


def of_the_leader(table: Table) -> dict[str, object]:
    owned = owned_snapshots(table)
    metadata = table.metadata
    return {
        "properties": metadata.properties,
        "schemas": [metadata.current_schema_id, metadata.schemas],
        "specs": [metadata.default_spec_id, metadata.partition_specs, metadata.sort_orders],
        "refs": {name: ref for name, ref in metadata.refs.items() if not name.startswith(STAGED)},
        "snapshots": [each for each in metadata.snapshots if each.snapshot_id in owned],
        "statistics": [each for each in metadata.statistics if each.snapshot_id in owned],
        "history": [each for each in metadata.snapshot_log if each.snapshot_id in owned],
    }


def files_of(table: Table, snapshot_ids: set[int]) -> set[str]:
    found = {each.statistics_path for each in table.metadata.statistics if each.snapshot_id in snapshot_ids}
    for each in table.metadata.snapshots:
        if each.snapshot_id in snapshot_ids:
            found.add(each.manifest_list)
            for manifest in each.manifests(table.io):
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                found |= {entry.data_file.file_path for entry in entries}
    return found


def assert_only_staged(before: Listing, after: Listing, settings: Settings, *, quarantine: str) -> None:
    own = f"{COLLECTIONS}.{quarantine}"
    made = after.tables.keys() - before.tables.keys()
    assert made <= {own}
    assert {name: after.tables[name] for name in before.tables} == before.tables
    rows = {
        name: [row for row in rows if own not in {f"{row[1]}.{row[2]}"} or name != "iceberg_tables"]
        for name, rows in after.rows.items()
    }
    assert rows == before.rows
    assert after.stash == before.stash
    assert {path: after.files.get(path) for path in before.files} == before.files
    staged = {local_path(each) for each in after.staged_files}
    staged |= {f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.crc" for path in staged}
    new = {str(path) for path in after.files.keys() - before.files.keys() if f"/{quarantine}/" not in str(path)}
    assert new <= staged
    if made:
        assert Shards.connect(settings).open(quarantine).load().row_count == 0


class Hours:
    """What a deployment does every hour."""

    def __init__(self, home: Settings, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.installation = Home(home, folder)
        self.clock = SteppedClock(10**12)
        self.installation.write_rows("planes", [(1, "one"), (2, "two")])
        self.installation.apply(self.installation.declaration("planes"))
        events = create_events(home)
        create_events(home, "rejecting")
        # Both kinds of retention have something to do, if they were let.
        retentions = {
            "staged_retention": {"age": "1s", "include_leader": True},
            "retention": {"last_n": 1, "key": ["name"], "order_by": ["id"]},
        }
        declare(home, "events", expect={"not_null": ["id"]}, **retentions)
        switch(home, Mode.READ_WRITE)
        for start in range(0, 6, 2):
            append_numbers(events, home, start, start + 2)

    def work(self, spark: SparkSession | None, settings: Settings, hour: int) -> None:
        self.clock.step(HOUR_MS)
        shards = Shards.connect(settings)
        if spark is not None:
            self.installation.write_rows("planes", [(1, f"hour {hour}"), (3 + hour % 2, "three")])
            report = reconcile_all(spark, deployment_of(settings), ["planes"], clock=self.clock).collections["planes"]
            assert report.outcome is Outcome.STAGED
        self._append_file(shards, settings, hour)
        appenders = Appenders(shards, deployment_of(settings), self.clock, producer="web")
        appenders.register("events")
        appenders.register("rejecting", on_read_only=OnReadOnly.REJECT)
        assert appenders.monotonic_appender("events").append(rows_table(numbers(0, 2))).outcome is Outcome.STAGED
        for refused in (
            lambda: appenders.monotonic_appender("rejecting").append(rows_table(numbers(0, 2))),
            lambda: appenders.blind_write("events", rows_table(numbers(0, 2))),
            lambda: flush_all(shards, deployment_of(settings), [], clock=self.clock),
        ):
            with pytest.raises(ReadOnly):
                refused()
        appenders.close()
        self._assert_left_alone(maintain_all(None, deployment_of(settings), [], clock=self.clock))
        retained = deployment_of(settings).registry.get("events")
        self._assert_left_alone(retain_all(shards, deployment_of(settings), [retained], clock=self.clock))

    def _append_file(self, shards: Shards, settings: Settings, hour: int) -> None:
        path = self.folder / f"{hour}.csv"
        path.write_text(f"id,name\n{hour},a\nno number,b\n", encoding="utf-8")
        name = BatchName("noaa", Range(hour, hour + 1))
        batch = FileBatch(path=path)
        for outcome in (Outcome.STAGED, Outcome.STAGED):
            done = append_file(
                shards, shards.open("events"), name, batch, deployment=deployment_of(settings), clock=self.clock
            )
            assert done.outcome is outcome

    @staticmethod
    def _assert_left_alone(report: Report) -> None:
        """Refused, or, beside a leader that does the work, skipped."""
        assert report.collections
        assert all(
            each.outcome is Outcome.SKIPPED or (each.error is not None and each.error.kind == "ReadOnly")
            for each in report.collections.values()
        )


@pytest.fixture
def hours(home: Settings, tmp_path: Path) -> Hours:
    return Hours(home, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("generation", [1, 2], ids=["of the leader", "of a newer deployment"])
def test_hours_of_appends_and_maintenance_change_nothing_of_the_leaders(
    hours: Hours, home: Settings, generation: int
) -> None:
    if generation == 1:
        switch(home, Mode.READ_ONLY)
    settings = replace(home, generation=generation)
    before = list_everything(settings)
    for hour in range(HOURS):
        hours.work(None, settings, hour)
    after = list_everything(settings)
    assert len(after.staged_files) > len(before.staged_files) == 0
    assert_only_staged(before, after, settings, quarantine="events_quarantine")


@pytest.mark.spark
def test_hours_of_reconciles_too(hours: Hours, home_spark: SparkSession, home: Settings) -> None:
    reconcile_all(home_spark, deployment_of(home), ["planes"], clock=hours.clock)
    switch(home, Mode.READ_ONLY)
    before = list_everything(home)
    for hour in range(HOURS - 1):
        hours.work(home_spark, home, hour)
    assert_only_staged(before, list_everything(home), home, quarantine="events_quarantine")


@pytest.mark.slow
@pytest.mark.parametrize("slip", ["token", "rows", "file"])
def test_listings_show_what_is_more_than_staged(hours: Hours, home: Settings, slip: str) -> None:
    before = list_everything(home)
    events = Shards.connect(home).open("events")
    if slip == "token":
        Writer.raise_token(events, 1)
    elif slip == "rows":
        append_numbers(events, home, 100, 101)
    else:
        path = next(path for path in before.files if path.suffix == ".parquet")
        path.write_bytes(path.read_bytes())
    with pytest.raises(AssertionError):
        assert_only_staged(before, list_everything(home), home, quarantine="events_quarantine")
