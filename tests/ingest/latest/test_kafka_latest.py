"""Kafka as a table: tombstones delete, and changes of a PostgreSQL table in Debezium's envelope end equal to it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ingest.latest.test_latest_crash import POINTS
from tests.support.crash import run_command
from tests.support.dying import Crash, dying_at
from tests.support.exploration import draw_seed
from tests.support.homes import Home
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.ingest.latest import commit, ingest
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka

PARTITIONS = 3


class Changes:
    """A topic that producers write changes to, by key."""

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self.uri = f"kafka://{broker.address}/{name}"
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result()
        self._name, self._producer = name, Producer({"bootstrap.servers": broker.address, "log_level": "0"})

    def write(self, key: object, value: object, *, partition: int) -> None:
        """Write a message; a value of None is a tombstone."""
        payload = None if value is None else json.dumps(value).encode()
        self._producer.produce(self._name, key=json.dumps(key).encode(), value=payload, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


@pytest.fixture
def changes(kafka: KafkaBroker, unique_name: str) -> Changes:
    return Changes(kafka, unique_name)


@pytest.fixture
def ingesting(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path, now_ms=1_000_000)


def test_tombstones_delete_their_keys(ingesting: Home, changes: Changes) -> None:
    ingesting.declare_latest(source={"buffer": changes.uri})
    for id_ in range(6):
        changes.write({"id": id_}, {"id": id_, "name": f"{id_}"}, partition=id_ % PARTITIONS)
    changes.write({"id": 1}, None, partition=1)
    changes.flush()
    assert ingesting.ingest().inserted == 5
    changes.write(2, None, partition=2)
    changes.write({"schema": {"type": "struct"}, "payload": {"id": 3}}, None, partition=0)
    changes.write({"ID": 4}, None, partition=1)
    changes.write({"id": 1}, {"id": 1, "name": "again"}, partition=1)
    changes.flush()
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 1, 2)
    assert ingesting.tuples("events") == [(0, "0"), (1, "again"), (4, "4"), (5, "5")]
    assert [(row[0], row[2], row[3]) for row in ingesting.bad()] == [(1, "change-unknown", None)]
    assert check_invariant(ingesting.shard()).holds


def test_an_append_only_collection_keeps_taking_tombstones_for_bad(ingesting: Home, changes: Changes) -> None:
    ingesting.declare_reader(source={"buffer": changes.uri})
    changes.write({"id": 1}, None, partition=0)
    changes.flush()
    ingesting.ingest()
    assert [row[2] for row in ingesting.bad()] == ["payload-missing"]


def test_an_ingest_that_is_killed_between_two_steps_does_all_of_a_commit_or_nothing(
    ingesting: Home, changes: Changes
) -> None:
    ingesting.declare_latest(source={"buffer": changes.uri})

    def write(name: str, *, deletes: int) -> list[tuple[int, str]]:
        """Change three keys, one in each partition, and delete one of them; a change of no key is bad."""
        for id_ in range(PARTITIONS):
            changes.write({"id": id_}, {"id": id_, "name": name}, partition=id_)
        changes.write({"id": deletes}, None, partition=deletes)
        changes.write({"ID": 4}, None, partition=1)
        changes.flush()
        return [(id_, name) for id_ in range(PARTITIONS) if id_ != deletes]

    before = write("first", deletes=0)
    ingesting.ingest()
    for number, point in enumerate(POINTS, start=1):
        after = write(point, deletes=number % PARTITIONS)
        died = run_command(ingesting.settings, "buffer", "ingest", "events", point=point)
        assert died == FAIL_POINT_EXIT, f"{point} was never reached"
        assert ingesting.tuples("events") in (before, after), point
        ingesting.ingest()
        assert ingesting.tuples("events") == after, point
        before = after
    assert len(ingesting.bad()) == 1 + len(POINTS)
    assert ingesting.branches() == set()
    assert check_invariant(ingesting.shard()).holds


class Captured:
    """A table whose changes are written as Debezium writes them: in the order of commits, by primary key."""

    def __init__(self, database: psycopg.Connection[Any], changes: Changes, draw: random.Random) -> None:
        self.database, self.changes, self.draw = database, changes, draw
        database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text, size double precision, paid boolean)")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.database.execute("SELECT id, name, size, paid FROM orders").fetchall())

    def transact(self) -> None:
        """Change some rows in one transaction, and write what it did once it is committed."""
        events = [self._change() for _ in range(self.draw.randint(1, 5))]
        self.database.commit()
        for before, after in (event for event in events if event != (None, None)):
            self._write(before, after)

    def _change(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        id_, what = self.draw.randint(1, 40), self.draw.choice(["upsert", "upsert", "upsert", "delete"])
        before = self._row(id_)
        if what == "delete":
            self.database.execute("DELETE FROM orders WHERE id = %s", (id_,))
        else:
            values = (
                id_,
                self.draw.choice([None, "", "a", "ü'\"\\", "x" * 50]),
                self.draw.choice([None, 0.0, 0.1, 1e300]),
                self.draw.choice([None, True, False]),
            )
            self.database.execute(
                "INSERT INTO orders VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET (name, size, paid) = "
                "(EXCLUDED.name, EXCLUDED.size, EXCLUDED.paid)",
                values,
            )
        return before, self._row(id_)

    def _row(self, id_: int) -> dict[str, Any] | None:
        found = self.database.execute("SELECT id, name, size, paid FROM orders WHERE id = %s", (id_,)).fetchone()
        return None if found is None else dict(zip(("id", "name", "size", "paid"), found, strict=True))

    def _write(self, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        id_ = (before or after or {})["id"]
        op = "d" if after is None else self.draw.choice(["c", "r"]) if before is None else "u"
        tells_before = self.draw.choice([True, False])  # as REPLICA IDENTITY FULL does, or DEFAULT
        value: dict[str, Any] = {"before": before if tells_before else None, "after": after, "op": op}
        value["source"] = {"table": "orders", "lsn": 1}
        key: dict[str, Any] = {"id": id_}
        if self.draw.choice([True, False]):
            value, key = {"schema": {}, "payload": value}, {"schema": {}, "payload": key}
        self.changes.write(key, value, partition=id_ % PARTITIONS)
        if op == "d" and self.draw.choice([True, False]):
            self.changes.write(key, None, partition=id_ % PARTITIONS)  # so that Kafka compacts the key away


@pytest.mark.postgres
def test_changes_of_a_table_end_equal_to_the_table(
    ingesting: Home, changes: Changes, postgres: PostgresServer, unique_name: str
) -> None:
    ingesting.declare_latest(
        schema="id bigint, name string, size double, paid boolean",
        source={"buffer": changes.uri, "envelope": "debezium"},
    )
    draw = random.Random(draw_seed())  # noqa: S311 -- the same changes in every run
    points = [None, None, *commit.FAIL_POINTS, *ingest.FAIL_POINTS]
    with psycopg.connect(postgres.create_database(unique_name[-50:])) as database:
        captured = Captured(database, changes, draw)
        for _ in range(12):
            for _ in range(10):
                captured.transact()
            changes.flush()
            try:
                with dying_at(draw.choice(points)):
                    ingesting.ingest(max_entries=draw.choice([None, 20]))
            except Crash:
                continue
        while ingesting.ingest().outcome is not Outcome.UNCHANGED:
            pass
        assert ingesting.tuples("events") == captured.rows()
    assert ingesting.bad() == []
    assert check_invariant(ingesting.shard()).holds
