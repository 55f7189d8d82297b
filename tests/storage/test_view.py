"""What people see of the board: who leads an object, and what is not run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.collections.objects.standing import ObjectState, Standing
from tidemark.storage.board import Entry
from tidemark.storage.dataflows.dataflow import News
from tidemark.storage.sharing import outlives, place_of
from tidemark.storage.view import view_of, with_declared

if TYPE_CHECKING:
    from collections.abc import Mapping


def entry(index: int, *ids: str, **more: Any) -> Entry:
    dataflows = {id_: {"name": id_, "started_at": 0, **News().to_json()} for id_ in ids}
    told = {"writer": "host:1", "began_ms": 0, "mode": "read-write", "dataflows": dataflows, "ended": "", **more}
    return Entry(place_of(index), 1, 1, told, written_ms=0)


def test_one_worker_carries_a_sink_and_all_share_a_collection() -> None:
    view = view_of([entry(0, "collection-1", "sink-2"), entry(1, "collection-1", "sink-2")], now_ms=0)
    shared, carried = view["objects"]
    assert shared["workers"] == [0, 1]
    assert carried["workers"] == [carried["holder"]]


RESTING = Standing(state=ObjectState.SUSPENDED, since_ms=0, error="Refused", reason="bad", retry_at_ms=10)


@pytest.mark.parametrize(
    ("entries", "standings", "state"),
    [
        ([], {}, "not run: no worker"),
        ([entry(0)], {}, "not run yet"),
        ([entry(0, stalled={"collection-1": "damaged"})], {}, "not run: damaged"),
        ([entry(0, mode="read-only")], {}, "not run: the deployment is read-only"),
        ([entry(0, "a")], {}, "running"),
        ([entry(0)], {"a": RESTING}, str(RESTING)),
        ([entry(0)], {"a": replace(RESTING, retry_at_ms=1)}, "not run yet"),
    ],
)
def test_each_object_that_declares_every_is_shown_with_its_state(
    entries: list[Entry], standings: Mapping[str, Standing], state: str
) -> None:
    (shown,) = with_declared(view_of(entries, now_ms=0), {"a": "collection-1"}, standings, now_ms=5)["objects"]
    assert (shown["name"], shown["state"]) == ("a", state)


@pytest.mark.parametrize(("until_ms", "than_ms", "longer"), [(None, 9, True), (30_010, 9, True), (30_009, 9, False)])
def test_a_worker_outlives_one_that_ends_earlier(until_ms: int | None, than_ms: int, *, longer: bool) -> None:
    assert outlives(entry(0, until_ms=until_ms), than_ms) is longer
    assert not outlives(entry(0, until_ms=until_ms), None)
    assert not outlives(entry(0), than_ms), "an older program, which is replaced"
