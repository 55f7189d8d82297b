"""Which hold is overdue, and who may take and release holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.dying import interrupted_at
from tests.support.events import create_events, switch
from tests.support.rows import SCHEMA, correction
from tests.support.sinks import declare_sink
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections import holds
from tidemark.collections.deployment import Mode
from tidemark.collections.holds import HISTORY_MS, list_holds, read_sink_holds, release_dead, release_hold, take_hold
from tidemark.errors import Fenced, NotYetAvailable, ReadOnly, UsageError
from tidemark.frontier import EMPTY
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import NEVER, CommitKind, Hold, ShardKind, ShardState
from tidemark.iceberg.shard.token import Token
from tidemark.iceberg.shards import Shards
from tidemark.interval import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from tidemark.settings import Settings

NOW_MS = 400 * DAY_MS
START_MS = 300 * DAY_MS
FUTURE_MS = NOW_MS + 1


OF_SINK = {("planes", "sink-out"): 3 * HOUR_MS}


def state(*, upper: int = NOW_MS, **readers: Hold) -> ShardState:
    return ShardState(
        layout=ShardKind.DIFFERENTIAL, kind=CommitKind.ADVANCE, lower=0, upper=upper, since=0, changed=0,
        token=Token(1, 0), writer="w", commit_id="c", schema_id=0,
        holds={reader.replace("_", "-"): held for reader, held in readers.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("held", "upper", "is_overdue"),
    [
        (Hold(NOW_MS - DAY_MS, NEVER), NOW_MS, False),
        (Hold(NOW_MS - DAY_MS - 1, NEVER), NOW_MS, True),
        (Hold(NOW_MS - 9 * DAY_MS, NEVER), NOW_MS - 9 * DAY_MS + 1, False),  # everything final is seen
        (Hold(NOW_MS - 9 * DAY_MS, NEVER), NOW_MS - 9 * DAY_MS, False),
        (Hold(NOW_MS - 9 * DAY_MS, NEVER), NOW_MS - 9 * DAY_MS + 2, True),
        (Hold(NOW_MS + DAY_MS, NEVER), NOW_MS, False),
        (Hold(NOW_MS - HISTORY_MS, FUTURE_MS), NOW_MS, False),  # as maintenance keeps it
        (Hold(NOW_MS - HISTORY_MS - 1, FUTURE_MS), NOW_MS, True),
        (Hold(NOW_MS - HISTORY_MS - 1, NOW_MS), NOW_MS, False),  # it has ended: the next maintenance removes it
    ],
)
def test_a_hold_is_overdue_when_it_keeps_more_than_its_owner_wants(held: Hold, upper: int, *, is_overdue: bool) -> None:
    (found,) = list_holds("planes", state(upper=upper, feed=held), START_MS, now_ms=NOW_MS, sink_holds={})
    assert found.is_overdue is is_overdue


def test_history_is_no_older_than_its_collection() -> None:
    held = {"feed": Hold(0, NEVER)}
    (young,) = list_holds("planes", state(**held), NOW_MS - HOUR_MS, now_ms=NOW_MS, sink_holds={})
    assert (young.age_ms, young.is_overdue) == (HOUR_MS, False), "from the genesis on, which was an hour ago"


def test_a_sink_declares_when_somebody_should_look() -> None:
    since = NOW_MS - 4 * HOUR_MS
    held = state(sink_out=Hold(since, NEVER), sink_gone=Hold(since, NEVER), feed=Hold(since, NEVER))
    found = list_holds("planes", held, START_MS, now_ms=NOW_MS, sink_holds=OF_SINK)
    (overdue,) = [each for each in found if each.is_overdue]
    assert (overdue.reader, overdue.warn_after_ms) == ("sink-out", 3 * HOUR_MS)
    assert "keeps 4 h of history" in overdue.warning
    assert "`tidemark resume out`" in overdue.hint, "a paused sink is not run"
    assert "`tidemark sink run out`" in overdue.hint
    stale = state(sink_gone=Hold(START_MS, NEVER))
    (left_behind,) = list_holds("planes", stale, START_MS, now_ms=NOW_MS, sink_holds=OF_SINK)
    assert left_behind.is_overdue
    assert "`tidemark hold release planes sink-gone`" in left_behind.hint, "there is no such sink to run"


def test_a_hold_that_a_new_sink_takes_during_the_release_of_a_dead_one_stays(home: Settings) -> None:
    shard, deployment = create_events(home), deployment_of(home)
    hold(shard, "sink-out", expires_at_ms=NEVER)

    def apply_and_run() -> None:
        declare_sink(home, "out", "events")
        hold(shard, "sink-out", expires_at_ms=NEVER)

    with interrupted_at("publish.before-commit", apply_and_run):
        assert not release_dead(shard, deployment)
    assert set(shard.load().state.holds) == {"sink-out"}


def test_a_time_without_a_date_is_shown_as_a_number() -> None:
    far = state(feed=Hold(10**17, 10**18))
    (held,) = list_holds("planes", far, START_MS, now_ms=NOW_MS, sink_holds={})
    assert (held.expires_at_ms, held.to_json()["since"]) == (10**18, 10**17)
    assert str(10**17) in held.warning


def test_an_unused_history_ends_with_the_seal() -> None:
    sealed = ShardState.parse({**state().properties(), "tidemark.upper": str(EMPTY)}, shard="s")
    assert list_holds("planes", sealed, START_MS, now_ms=NOW_MS, sink_holds={}) == []


def test_a_hold_is_taken_renewed_moved_and_released(home: Settings) -> None:
    switch(home, Mode.READ_WRITE)
    shard, deployment = create_events(home), deployment_of(home)
    Writer.lead(shard, 1).advance(lower=0, new_upper=50)
    assert take_hold(shard, "feed", since=10, expires_at_ms=100, deployment=deployment) == 10
    assert take_hold(shard, "feed", since=None, expires_at_ms=NEVER, deployment=deployment) == 10
    assert shard.load().state.holds == {"feed": Hold(10, NEVER)}
    assert take_hold(shard, "feed", since=20, expires_at_ms=200, deployment=deployment) == 20
    assert shard.load().state.holds == {"feed": Hold(20, 200)}
    assert release_hold(shard, "feed", deployment=deployment) is True
    assert release_hold(shard, "feed", deployment=deployment) is False


def test_a_hold_of_times_that_have_not_come_is_refused(home: Settings) -> None:
    switch(home, Mode.READ_WRITE)
    shard, deployment = create_events(home), deployment_of(home)
    Writer.lead(shard, 1).advance(lower=0, new_upper=50)
    take_hold(shard, "feed", since=50, expires_at_ms=100, deployment=deployment)
    with pytest.raises(NotYetAvailable, match="ends at 50"):
        take_hold(shard, "feed", since=51, expires_at_ms=100, deployment=deployment)
    assert shard.load().state.holds == {"feed": Hold(50, 100)}


def test_the_hold_of_a_sink_is_the_sinks_own(home: Settings) -> None:
    switch(home, Mode.READ_WRITE)
    shards = Shards.connect(home)
    planes, deployment = shards.create("planes", schema=SCHEMA, key=["id"]), deployment_of(home)
    Writer.lead(planes, 1).publish(correction(planes.load(), insert=[(1, "x")], time=0), lower=0, new_upper=1)
    with pytest.raises(UsageError, match="name of a sink's hold"):
        take_hold(planes, "sink-out", since=None, expires_at_ms=100, deployment=deployment)
    events = create_events(home)
    for shard in (planes, events):
        hold(shard, "sink-out", expires_at_ms=NEVER)
    declare_sink(home, "out", "planes")
    assert dict(read_sink_holds(deployment.registry)) == {("planes", "sink-out"): 2 * DAY_MS}
    with pytest.raises(UsageError, match="the sink 'out' needs the history") as caught:
        release_hold(planes, "sink-out", deployment=deployment)
    assert "tidemark drop out" in caught.value.hint
    assert release_hold(events, "sink-out", deployment=deployment), "the sink of that name carries another collection"


def test_a_read_only_deployment_takes_and_releases_leased_holds_alone(home: Settings) -> None:
    switch(home, Mode.READ_WRITE)
    shard, deployment = create_events(home), deployment_of(home)
    take_hold(shard, "durable", since=None, expires_at_ms=NEVER, deployment=deployment)
    switch(home, Mode.READ_ONLY)
    assert take_hold(shard, "leased", since=None, expires_at_ms=100, deployment=deployment) == 0
    for refused in (
        lambda: take_hold(shard, "other", since=None, expires_at_ms=NEVER, deployment=deployment),
        lambda: take_hold(shard, "durable", since=None, expires_at_ms=100, deployment=deployment),
        lambda: release_hold(shard, "durable", deployment=deployment),
    ):
        with pytest.raises(ReadOnly, match="no durable hold"):
            refused()
    assert release_hold(shard, "leased", deployment=deployment)
    assert shard.load().state.holds == {"durable": Hold(0, NEVER)}


def test_a_switch_to_read_only_fences_whoever_was_about_to_take_a_durable_hold(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(home, Mode.READ_WRITE)
    shard, deployment = create_events(home), deployment_of(home)
    real = holds.lead_to_write

    def lead_and_lose(*arguments: object, **keywords: object) -> Writer:
        writer = real(*arguments, **keywords)  # type: ignore[arg-type]
        switch(home, Mode.READ_ONLY)
        return writer

    monkeypatch.setattr(holds, "lead_to_write", lead_and_lose)
    with pytest.raises(Fenced):
        take_hold(shard, "late", since=None, expires_at_ms=NEVER, deployment=deployment)
    assert shard.load().state.holds == {}
