"""Bad rows that somebody puts aside while the collection is dropped never come to what is made anew under the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tidemark.collections.append.file import QUARANTINE_COLUMNS, set_aside
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects.drop import drop, finish_drops, plan_drop
from tidemark.collections.objects.quarantine import OWNER, find_quarantine
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import Dropped
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import DROPPED

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written
EVENTS = 'version: 1\ncollections:\n  events: {kind: append-only, schema: "id bigint, name string"}\n'


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    place = Home(home, tmp_path)
    place.declare(EVENTS)
    return place


def put_aside(place: Home, shard: Shard, content: str) -> None:
    rejected, name = [RejectedRow(1, "bad", content)], BatchName("p", Range(0, 1))
    set_aside(place.shards, shard, name, rejected, file="f", deployment=place.deployment, clock=place.clock)


def put_aside_late(place: Home, content: str) -> None:
    """Put a row aside as a process that has looked at the collection before somebody drops it."""
    old = place.shard()
    plans = plan_drop(place.shards, place.deployment, ["events"], clock=place.clock)
    put_aside(place, old, content)
    drop(place.shards, place.deployment, plans, clock=place.clock)
    with pytest.raises(Dropped):
        put_aside(place, old, "even later")


def contents(place: Home, name: str = "events_quarantine", namespace: str = "collections") -> list[str]:
    rows = place.shards.iceberg.load_table((namespace, name)).scan().to_arrow().to_pylist()
    return [row["content"] for row in rows]


def test_a_quarantine_that_is_made_meanwhile_goes_with_the_dropped_table(place: Home) -> None:
    put_aside_late(place, "old")
    assert place.shards.names() == []
    (aside,) = set(place.shards.names(DROPPED)) - {"events_1"}
    assert contents(place, aside, DROPPED) == ["old"], "for whoever wants the rows still"
    place.declare(EVENTS)
    assert find_quarantine(place.shards, place.shard()) is None
    put_aside(place, place.shard(), "new")
    assert contents(place) == ["new"]
    remove_dropped(place.shards, place.deployment, clock=place.clock, grace_ms=0)
    assert (place.shards.names(DROPPED), contents(place)) == ([], ["new"])


def test_one_that_is_made_after_the_new_collection_is_not_adopted(place: Home) -> None:
    put_aside(place, place.shard(), "old")
    owner = place.shard("events_quarantine").load().table.properties[OWNER]
    plans = plan_drop(place.shards, place.deployment, ["events"], clock=place.clock)
    drop(place.shards, place.deployment, plans, clock=place.clock)
    place.declare(EVENTS)
    # As a process leaves it that looked at the old table, slept over drop and apply, and then made the quarantine.
    schema, layout = to_iceberg(QUARANTINE_COLUMNS), ShardKind.APPEND_ONLY
    place.shards.create("events_quarantine", schema=schema, layout=layout, properties={OWNER: owner})
    assert find_quarantine(place.shards, place.shard()) is None
    put_aside(place, place.shard(), "new")
    assert contents(place) == ["new"]
    finish_drops(place.shards, place.deployment, clock=place.clock)
    assert contents(place) == ["new"], "it belongs to the collection that is there"
