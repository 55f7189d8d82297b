"""Maintenance removes what dropped objects left, after a grace, and not before the last hold ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.collections.objects.test_drop import EVENTS, append, drop_names, ids_in
from tests.support.clock import SteppedClock
from tests.support.homes import Home
from tidemark.catalog.items.kinds import SINK, NamedKey, SinkValue
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance import dropped_tables
from tidemark.collections.maintenance.dropped_tables import GRACE_MS, REMOVERS, Remains, remove_dropped
from tidemark.collections.maintenance.maintain import MaintenancePolicy, maintain_all
from tidemark.collections.objects.standing import ObjectKind
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.shard.state import NEVER
from tidemark.iceberg.shards import DROPPED
from tidemark.locations import to_path
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shards import Shards
    from tidemark.report import Report
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

NOW_MS = 1_000  # of the drop


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    place = Home(home, tmp_path, now_ms=NOW_MS)
    place.declare(EVENTS)
    append(place, 0, 2)
    return place


def remove_at(place: Home, now_ms: int) -> Report:
    return remove_dropped(place.shards, place.deployment, clock=SteppedClock(now_ms))


def test_a_table_goes_after_the_grace_with_all_its_files(place: Home) -> None:
    drop_names(place, "events")
    folder = to_path(place.shards.iceberg.load_table((DROPPED, "events_1")).location())
    assert folder is not None
    report = remove_at(place, NOW_MS + GRACE_MS - 1)
    [(name, waiting)] = report.collections.items()
    assert (name, waiting.outcome, waiting.strategy) == ("dropped.events_1", Outcome.UNCHANGED, "dropped")
    assert "its table is dropped.events_1: goes after 1970-01-08 00:00:01" in waiting.details["waits"]
    assert ids_in(place, "events_1") == [0, 1]
    removed = remove_at(place, NOW_MS + GRACE_MS).collections["dropped.events_1"]
    assert (removed.strategy, removed.details["removed"]) == (
        "removed",
        "collection 'events', dropped 1970-01-01 00:00:01",
    )
    assert (place.shards.names(DROPPED), place.deployment.objects.dropped(), folder.exists()) == ([], [], False)
    assert remove_at(place, NOW_MS + GRACE_MS).collections == {}


def test_a_live_hold_keeps_the_table_until_its_end(place: Home) -> None:
    later = NOW_MS + GRACE_MS
    hold(place.shard(), "a-job", expires_at_ms=later + 5_000)
    drop_names(place, "events")
    waiting = remove_at(place, later).collections["dropped.events_1"]
    assert waiting.details["waits"].endswith("held by a-job until 1970-01-08 00:00:06 UTC")
    assert ids_in(place, "events_1") == [0, 1]
    assert remove_at(place, later + 5_000).collections["dropped.events_1"].strategy == "removed"


def test_the_hold_of_a_sink_does_not_keep_a_table_that_no_sink_carries(place: Home) -> None:
    hold(place.shard(), "sink-gone", expires_at_ms=NEVER)
    drop_names(place, "events")
    assert remove_at(place, NOW_MS + GRACE_MS).collections["dropped.events_1"].strategy == "removed"


def test_a_clock_that_is_ahead_of_the_stores_removes_nothing_too_early(
    place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_names(place, "events")
    monkeypatch.setattr(dropped_tables, "store_now_ms", lambda _: NOW_MS)
    assert remove_at(place, 10**15).collections["dropped.events_1"].strategy == "dropped"


def test_maintenance_of_everything_removes_and_says_so(place: Home) -> None:
    drop_names(place, "events")
    place.declare(EVENTS)
    append(place, 5, 6)
    policy, clock = MaintenancePolicy(dropped_ms=0), SteppedClock(10**12)
    named = maintain_all(None, place.deployment, ["events"], policy=policy, clock=clock)
    assert list(named.collections) == ["events"]
    report = maintain_all(None, place.deployment, [], policy=policy, clock=clock)
    assert report.outcome == "ok"
    assert report.collections["dropped.events_1"].strategy == "removed"
    assert place.ids() == [5]


def test_a_read_only_deployment_removes_nothing(place: Home) -> None:
    drop_names(place, "events")
    place.switch(Mode.READ_ONLY)
    report = remove_at(place, 10**13)
    assert report.collections["dropped.events_1"].error is not None
    assert place.shards.names(DROPPED) == ["events_1"]


def test_the_remains_of_a_sink_wait_for_what_can_clean_up_after_it(place: Home) -> None:
    with place.catalog.join() as handle:
        value = SinkValue(id=7, collection="events", definition={})
        handle.transact(lambda transaction: transaction.put(SINK, NamedKey(name="seats"), value))
    objects = place.deployment.objects
    objects.drop(objects.look(["seats"]))
    waiting = remove_at(place, 10**13).collections["dropped.seats_1"]
    assert "sink 'seats', dropped" in waiting.details["waits"]
    assert len(place.deployment.objects.dropped()) == 1
    cleaned: list[str] = []

    def clean(_shards: Shards, _deployment: Deployment, remains: Remains, _now_ms: int) -> None:
        cleaned.append(remains.dropped.name)

    removers = {**REMOVERS, ObjectKind.SINK: clean}
    remove_dropped(place.shards, place.deployment, clock=place.clock, removers=removers)
    assert (cleaned, place.deployment.objects.dropped()) == (["seats"], [])


def test_a_damaged_collection_is_dropped_and_removed_too(place: Home) -> None:
    with place.shard().load_table().manage_snapshots() as refs:
        refs.remove_tag("tidemark-main")
    drop_names(place, "events")
    assert (place.shards.names(), place.shards.names(DROPPED)) == ([], ["events_1"])
    removed = remove_at(place, NOW_MS + GRACE_MS).collections["dropped.events_1"]
    assert (removed.error, removed.strategy, place.shards.names(DROPPED)) == (None, "removed", [])
