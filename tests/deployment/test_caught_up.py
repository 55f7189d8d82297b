"""Whether a deployment that stands by could lead: the rules over one object, and the state that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.catalog.items.kinds import DeploymentState
from tidemark.collections.deployment import Mode, StatusKind, StoredMode
from tidemark.collections.system.findings import Finding
from tidemark.deployment.caught_up import Judgement, Progress, Rules, Watched, find_state, judge
from tidemark.frontier import EMPTY
from tidemark.interval import DAY_MS, HOUR_MS

NOW = 100 * DAY_MS
RULES = Rules(allowed_lag_ms=1_000, stable_ms=60_000)
FOUND = Finding(
    object_id=1, definition="now", program="1.0", upper=NOW - 5_000, found_ms=NOW - 10, well_since_ms=NOW - 60_000
)
PLANES = Watched(
    name="planes", kind=StatusKind.COLLECTION, object_id=1, definition="now", changed=NOW - 5_000, finding=FOUND
)
EVENTS = replace(PLANES, name="events", kind=StatusKind.INGESTION)
COPIES = Watched(name="copies", kind=StatusKind.SINK, object_id=1, changed=NOW - 5_000, is_loaded=True)


def judged(watched: Watched, **more: Any) -> Judgement:
    return judge(replace(watched, **more), RULES, now_ms=NOW)


def finding(**more: Any) -> Finding:
    return replace(FOUND, **more)


@pytest.mark.parametrize("watched", [PLANES, EVENTS, COPIES], ids=lambda each: each.name)
def test_an_object_that_is_up_to_date_is_caught_up(watched: Watched) -> None:
    found = judged(watched)
    assert (found.progress, found.lag_ms, found.why) == (Progress.CAUGHT_UP, 0, "")


@pytest.mark.parametrize(
    ("finding_", "why"),
    [
        (None, "no run of this deployment has looked at it yet"),
        (finding(object_id=2), "no run of this deployment has looked at it yet"),
        (finding(found_ms=NOW - 2 * DAY_MS - 1), "or not for two days"),
        (finding(found_ms=NOW + 60_001), "the clock of its last run was 60 s ahead: what it found tells nothing"),
        (finding(definition="before"), "it was altered since this deployment's last run over it"),
        (finding(error="SchemaMismatch: no column 'a'", hint="add the column"), "SchemaMismatch: no column 'a'"),
        (finding(well_since_ms=NOW - 59_999), "its runs go well for 59 s now: 60 s are wanted"),
        (finding(well_since_ms=None), "its runs go well for 0 s now"),
        (finding(upper=0, found_ms=NOW - 6_001), "the leader has changed it 1 s after this deployment's last run"),
    ],
    ids=["never", "another object", "long ago", "ahead", "altered", "failed", "unstable", "never well", "stale"],
)
def test_a_collection_catches_up_until_its_runs_go_well_for_a_while(finding_: Finding | None, why: str) -> None:
    found = judged(PLANES, finding=finding_)
    assert (found.progress, why in found.why) == (Progress.CATCHING_UP, True), found.why
    assert found.hint, "what to do"


def test_a_lag_within_what_is_allowed_is_told_and_holds_nothing_up() -> None:
    found = judged(PLANES, finding=finding(upper=0, found_ms=NOW - 6_000))
    assert (found.progress, found.lag_ms) == (Progress.CAUGHT_UP, 1_000)


def test_a_clock_that_is_ahead_by_a_minute_holds_nothing_up() -> None:
    assert judged(PLANES, finding=finding(found_ms=NOW + 60_000)).progress is Progress.CAUGHT_UP


def test_it_does_not_matter_how_old_the_contents_are_that_a_run_saw() -> None:
    assert judged(PLANES, changed=NOW - DAY_MS, finding=finding(upper=NOW - DAY_MS)).lag_ms == 0
    assert judged(PLANES, finding=finding(upper=NOW - DAY_MS)).lag_ms == 0, "changed before the run, which saw less"


def test_an_ingest_has_seen_what_had_come_when_it_ran() -> None:
    late = finding(upper=0, found_ms=NOW - 6_001)
    assert judged(EVENTS, finding=late).progress is Progress.CATCHING_UP
    assert judged(EVENTS, finding=replace(late, found_ms=NOW - 6_000)).progress is Progress.CAUGHT_UP


def test_a_run_has_seen_what_lies_below_the_upper_although_the_leaders_clock_is_ahead() -> None:
    changed = NOW + 3 * HOUR_MS
    for watched in (PLANES, EVENTS):
        assert judged(watched, changed=changed, finding=finding(upper=changed + 1)).progress is Progress.CAUGHT_UP
        assert judged(watched, changed=changed, finding=finding(upper=changed - 1)).progress is Progress.CATCHING_UP


def test_a_sealed_collection_is_not_late() -> None:
    assert judged(PLANES, changed=EMPTY).lag_ms == 0


def test_what_cannot_be_read_holds_the_promotion_up() -> None:
    found = judged(PLANES, damage="it cannot be read: a newer Tidemark wrote it")
    assert (found.progress, found.why) == (Progress.CATCHING_UP, "it cannot be read: a newer Tidemark wrote it")


@pytest.mark.parametrize("watched", [PLANES, EVENTS, COPIES], ids=lambda each: each.name)
def test_what_the_leader_does_not_run_either_is_left_out(watched: Watched) -> None:
    found = judged(watched, resting="paused since yesterday", finding=None)
    assert (found.progress, found.why) == (Progress.LEFT_OUT, "paused since yesterday")


def test_what_no_run_tries_out_needs_no_finding() -> None:
    found = judged(PLANES, needs_no_run="appends go on at once", finding=None)
    assert (found.progress, found.why) == (Progress.CAUGHT_UP, "appends go on at once")


@pytest.mark.parametrize(
    ("uncarried", "progress"),
    [
        (None, Progress.CAUGHT_UP),
        (NOW - 1_000, Progress.CAUGHT_UP),
        (NOW - 1_001, Progress.CATCHING_UP),
        (NOW - DAY_MS, Progress.CATCHING_UP),
        (NOW - DAY_MS - 1, Progress.LEFT_OUT),
    ],
)
def test_a_sink_is_as_late_as_its_target_under_the_leader(uncarried: int | None, progress: Progress) -> None:
    assert judged(COPIES, uncarried=uncarried).progress is progress
    assert judged(COPIES, uncarried=uncarried, is_loaded=False).progress is Progress.CAUGHT_UP


def test_corrections_that_the_leader_outran_a_moment_ago_hold_nothing_up() -> None:
    """Both deployments may run at the same hour, each day anew; the flush reconciles what does not fit any more."""
    found = judged(PLANES, staged=1, stale=1)
    assert (found.progress, found.stale) == (Progress.CAUGHT_UP, 1)


def leader(generation: int, *led: int) -> StoredMode:
    return StoredMode(generation=generation, mode=Mode.READ_WRITE, led=frozenset(led))


@pytest.mark.parametrize(
    ("stored", "progress", "flags", "state"),
    [
        (leader(3, 3), Progress.CAUGHT_UP, "run", DeploymentState.DEPOSED),
        (leader(2, 1, 2), Progress.CATCHING_UP, "", DeploymentState.IS_LEADER),
        (leader(2), Progress.CATCHING_UP, "", DeploymentState.IS_LEADER),
        (leader(2, 1), Progress.CAUGHT_UP, "run", DeploymentState.PROMOTING),
        (leader(2), Progress.CAUGHT_UP, "promoting", DeploymentState.PROMOTING),
        (leader(1, 1), Progress.CATCHING_UP, "", DeploymentState.INITIALIZING),
        (leader(1, 1), Progress.CATCHING_UP, "run", DeploymentState.CATCHING_UP),
        (leader(1, 1), Progress.CAUGHT_UP, "run", DeploymentState.READY_TO_PROMOTE),
        (leader(1, 1), Progress.LEFT_OUT, "", DeploymentState.READY_TO_PROMOTE),
    ],
)
def test_the_state_of_a_deployment(stored: StoredMode, progress: Progress, flags: str, state: DeploymentState) -> None:
    judgements = [Judgement(name="planes", kind=StatusKind.COLLECTION, progress=progress)]
    found = find_state(stored, 2, judgements, has_run="run" in flags, is_promoting="promoting" in flags)
    assert found is state
