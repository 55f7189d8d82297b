"""A drop frees the name at once, and nothing of the old table and of the one made anew under the name ever mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.events import rows_table
from tests.support.homes import Home
from tests.support.leases import forget_leases
from tests.support.sinks import declare_sink
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.objects.drop import drop, finish_drops, left_over, plan_drop
from tidemark.collections.publish import publish
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import AppliedMeanwhile, Dropped, Refused, StillRead, UnknownCollection
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import DROPPED
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.files import stage_files
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

EVENTS = 'version: 1\ncollections:\n  events: {kind: append-only, schema: "id bigint, name string"}\n'
LATER_MS = 10**15


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    place = Home(home, tmp_path)
    place.declare(EVENTS)
    append(place, 0, 2)
    return place


def append(place: Home, start: int, end: int, *, mark: str = "p", name: str = "events") -> Outcome:
    rows = rows_table((number, mark) for number in range(start, end))
    batch = BatchName("p", Range(start, end))
    return append_rows(place.shard(name), batch, rows, deployment=place.deployment, clock=place.clock).outcome


def drop_names(place: Home, *names: str) -> None:
    plans = plan_drop(place.shards, place.deployment, names, clock=place.clock)
    drop(place.shards, place.deployment, plans, clock=place.clock)


def uuid(place: Home, name: str = "events", namespace: str = "collections") -> str:
    return str(place.shards.open(name, namespace).load_table().metadata.table_uuid)


def ids_in(place: Home, name: str) -> list[int]:
    """Return the rows of a dropped table, as any engine reads them."""
    rows = place.shards.iceberg.load_table((DROPPED, name)).scan().to_arrow().to_pylist()
    return sorted(row["id"] for row in rows)


def test_the_name_is_free_at_once_and_the_rows_stay_for_a_while(place: Home) -> None:
    before = uuid(place)
    drop_names(place, "events")
    assert (place.shards.names(), place.registry.read().declarations) == ([], {})
    assert (uuid(place, "events_1", DROPPED), ids_in(place, "events_1")) == (before, [0, 1])
    state = place.shards.open("events_1", DROPPED).load().state
    assert state.is_sealed
    place.declare(EVENTS)
    assert append(place, 0, 2, mark="q") is Outcome.APPENDED, "another ledger"
    assert (place.ids(), ids_in(place, "events_1")) == ([0, 1], [0, 1])
    drop_names(place, "events")
    assert place.shards.names(DROPPED) == ["events_1", "events_2"]


@pytest.mark.postgres
def test_it_is_the_same_on_a_server(postgres_home: Settings, tmp_path: Path) -> None:
    place = Home(postgres_home, tmp_path)
    place.declare(EVENTS)
    append(place, 0, 2)
    writer = Writer.join(place.shard(), 1)
    recreate(place)
    with pytest.raises(Dropped):
        Writer.raise_token(writer.shard, 1)
    append(place, 5, 6)
    assert (place.ids(), ids_in(place, "events_1")) == ([5], [0, 1])
    assert remove_dropped(place.shards, place.deployment, clock=place.clock, grace_ms=0).outcome == "ok"
    assert (place.ids(), place.shards.names(DROPPED)) == ([5], [])


def test_the_plan_says_what_goes(place: Home) -> None:
    shard = place.shard()
    hold(shard, "a-job", expires_at_ms=LATER_MS)
    hold(shard, "ended", expires_at_ms=1)
    hold(shard, "sink-out", expires_at_ms=LATER_MS)
    declare_sink(place.settings, "out", "events")
    with pytest.raises(UnknownCollection):
        plan_drop(place.shards, place.deployment, ["event"], clock=place.clock)
    plan, sink = plan_drop(place.shards, place.deployment, ["events", "out"], clock=place.clock)
    assert str(plan) == (
        "collection 'events': 2 rows of 'events'; its table stays until nobody holds its history any more; now: a-job"
    ), "the hold of a sink goes with the sink"
    assert str(sink) == "sink 'out': its declaration, and its hold on history; what is in its target stays there"
    release(shard, "sink-out")
    drop_names(place, "events", "out")
    state = place.shards.open("events_1", DROPPED).load().state
    assert (state.is_sealed, list(state.holds), state.since) == (True, ["a-job"], 0), "what the hold needs is kept"


def test_a_collection_with_readers_stays(place: Home) -> None:
    sql = "{inputs: {events: {collection: events}}, sql: 'SELECT id FROM events'}"
    place.declare(EVENTS + f'  big: {{kind: differential, schema: "id bigint", source: {sql}}}\n')
    with pytest.raises(StillRead, match="'big' reads 'events'"):
        drop_names(place, "events")
    assert place.ids() == [0, 1]
    drop_names(place, "events", "big")
    assert place.shards.names() == []


def test_an_ingestion_goes_with_its_quarantine_and_starts_over_when_it_is_made_anew(home: Settings) -> None:
    place = Home(home)
    place.declare_reader()
    place.send(0, b'{"id": 1, "name": "a"}', b"no row")
    place.ingest_all()
    assert (place.ids(), len(place.bad())) == ([1], 1)
    [plan] = plan_drop(place.shards, place.deployment, ["events"], clock=place.clock)
    assert "1 rows of 'events_quarantine'" in str(plan)
    assert "stays there" in str(plan)
    drop_names(place, "events")
    assert place.shards.names() == []
    assert place.shards.names(DROPPED) == ["events_1", "events_quarantine_2"]
    place.declare_reader()
    assert place.ingest_all().outcome == "ok"
    assert (place.ids(), len(place.bad())) == ([1], 1), "the buffer has kept its entries"


# -- who was at work meanwhile ---------------------------------------------------------------------------------------


def recreate(place: Home) -> None:
    drop_names(place, "events")
    place.declare(EVENTS)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_publish_of_the_old_table_never_lands_in_the_new_one(place: Home, *, is_made_anew: bool) -> None:
    writer = Writer.join(place.shard(), 1)
    head = writer.shard.load()
    rows = rows_table([(9, "late")]).append_column("_producer", pa.array(["p"])).append_column("_batch", pa.array([9]))
    batch = Batch(added=tuple(write_rows(head.table, rows)), schema_id=0)
    drop_names(place, "events")
    if is_made_anew:
        place.declare(EVENTS)
        Writer.raise_token(place.shard(), 1)  # the very token that the old writer has
        assert Writer.join(place.shard(), 1).token >= writer.token
    with pytest.raises(Dropped, match="'events' was dropped"):
        publish(writer, head, [batch], clock=place.clock)
    assert ids_in(place, "events_1") == [0, 1]
    assert not is_made_anew or place.ids() == []


def test_a_drop_between_the_look_and_the_commit_stops_the_commit(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = place.shard()
    iceberg, real = type(shard.iceberg), type(shard.iceberg).stage_commit
    calls = 0

    def stage_then_drop(self: object, *arguments: object) -> object:
        nonlocal calls
        staged = real(self, *arguments)  # type: ignore[arg-type]
        calls += 1
        if calls == 1:
            recreate(place)
        return staged

    monkeypatch.setattr(iceberg, "stage_commit", stage_then_drop)
    with pytest.raises(Dropped):
        Writer.raise_token(shard, 1)
    assert place.ids() == []


def test_staged_files_of_the_old_table_do_not_reach_the_new_one(place: Home) -> None:
    shard = place.shard()
    rows = rows_table([(9, "late")]).append_column("_producer", pa.array(["p"])).append_column("_batch", pa.array([9]))
    files = write_rows(shard.load().table, rows)
    recreate(place)
    with pytest.raises(Dropped):
        stage_files(shard, files, branch=branch_name(generation=1, writer="w", batch="b"), fingerprint="f", schema_id=0)
    assert place.branches() == set()


def test_an_appender_of_a_long_lived_process_has_to_be_registered_anew(place: Home) -> None:
    appenders = Appenders(place.shards, place.deployment, place.clock, "web")
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    appender.append(rows_table([(7, "a")]))
    recreate(place)
    with pytest.raises(Dropped):
        appender.append(rows_table([(8, "b")]))
    appenders.unregister("events")
    appenders.register("events")
    appenders.monotonic_appender("events").append(rows_table([(9, "c")]))
    appenders.close()
    assert (place.ids(), ids_in(place, "events_1")) == ([9], [0, 1, 7])


def test_neither_table_loses_a_file_to_the_orphan_removal_of_the_other(place: Home) -> None:
    recreate(place)
    append(place, 10, 12)
    old, new = place.shards.open("events_1", DROPPED), place.shard()
    assert old.load().table.location() != new.load().table.location()
    forget_leases(place.settings)
    for shard in (old, new, old):
        remove_orphans(shard, older_than_ms=LATER_MS)
    assert (place.ids(), ids_in(place, "events_1")) == ([10, 11], [0, 1])


# -- drops that died -------------------------------------------------------------------------------------------------


def record_only(place: Home, names: Iterable[str]) -> None:
    """Drop as a process does that dies before it renames anything."""
    plans = plan_drop(place.shards, place.deployment, list(names), clock=place.clock)
    place.deployment.objects.drop([plan.leaving for plan in plans])


def test_an_apply_renames_what_a_dead_drop_left_and_makes_the_table_anew(place: Home) -> None:
    record_only(place, ["events"])
    assert left_over(place.shards, place.deployment) == {"events"}
    old = uuid(place)
    with pytest.raises(Dropped):
        append(place, 2, 3)
    plan = place.application().plan(load_declarations([place.declarations]))
    assert [step.action for step in plan.steps] == ["create", "register"], "a dry run sees the name as free"
    place.declare(EVENTS)
    assert uuid(place) != old == uuid(place, "events_1", DROPPED)
    assert (place.ids(), ids_in(place, "events_1")) == ([], [0, 1])


def test_a_table_that_was_made_anew_is_never_renamed_by_the_drop_of_the_old_one(place: Home) -> None:
    drop_names(place, "events")
    place.shards.drop("events_1", DROPPED)  # by hand
    place.declare(EVENTS)
    new = uuid(place)
    [dropped] = finish_drops(place.shards, place.deployment, clock=place.clock)
    assert dropped.name == "events"
    assert uuid(place) == new
    assert not place.shards.rename(("collections", "events"), (DROPPED, "events_1"), uuid=dropped.table_uuid)


def test_writers_that_keep_committing_do_not_stop_a_rename(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = type(place.shards.iceberg)
    real, left = catalog.move_table, 2

    def commit_first(self: object, *arguments: object) -> bool:
        nonlocal left
        if left:
            left -= 1
            Writer.raise_token(place.shard(), 1)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "move_table", commit_first)
    drop_names(place, "events")
    assert (left, place.shards.names(DROPPED)) == (0, ["events_1"])


def test_refusals_leave_everything_as_it_is(place: Home) -> None:
    with pytest.raises((Refused, UnknownCollection)):
        drop_names(place, "events", "nothing")
    assert place.ids() == [0, 1]


def test_a_stale_declaration_opens_no_table_that_was_made_anew(place: Home) -> None:
    stale = place.registry.get("events")
    assert open_applied(place.shards, place.deployment, stale).name == "events"
    drop_names(place, "events")
    with pytest.raises(UnknownCollection):
        open_applied(place.shards, place.deployment, stale)
    place.declare(EVENTS.replace("name string", "name string, more string"))
    with pytest.raises(AppliedMeanwhile, match="run it again"):
        open_applied(place.shards, place.deployment, stale)
    assert open_applied(place.shards, place.deployment, place.registry.get("events")).name == "events"
