"""What stands before the copy of a migration: it waits until both back ends show the fences to everybody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred

from tests.support.homes import MIGRATE, ROLLBACK
from tidemark.catalog.migration.plan import make_plan
from tidemark.catalog.migration.steps import fence
from tidemark.catalog.opening.protocol import FENCE_STASH
from tidemark.catalog.opening.resume import Fences
from tidemark.errors import FencedByEpoch
from tidemark.orchestration.sensors.fences import FencesSensor

if TYPE_CHECKING:
    from tests.support.homes import Home

PLAN = {"truth_before": "stash", "truth": "persist"}


def sensor(fences: Fences, **arguments: Any) -> FencesSensor:
    return FencesSensor(task_id="see_fences", plan=PLAN, fences=fences.to_json(), timeout=60, **arguments)


def fenced(home: Home) -> Fences:
    home.open(ROLLBACK)
    return fence(home.catalog, MIGRATE, approved=make_plan(home.catalog, MIGRATE).digest)


@pytest.mark.parametrize("deferrable", [True, False])
def test_both_fences_are_seen_from_outside(home: Home, context: Any, *, deferrable: bool) -> None:
    fences = fenced(home)
    seen = sensor(fences, deferrable=deferrable).execute(context)
    assert seen == {"stash_epoch": fences.stash_epoch, "persist_epoch": fences.persist_epoch, "truth": "stash"}


def test_it_waits_for_the_second_fence(home: Home, context: Any) -> None:
    epoch = home.open(ROLLBACK)
    home.die_after(MIGRATE, FENCE_STASH)
    fences = Fences(stash_epoch=epoch + 1, stash_mark="", persist_epoch=epoch + 1, persist_mark="")
    with pytest.raises(TaskDeferred) as deferred:
        sensor(fences).execute(context)
    path, arguments = deferred.value.trigger.serialize()
    assert path == "tidemark_triggers.FencesTrigger"
    assert (arguments["fences"], arguments["truths"]) == (fences.to_json(), ["persist", "stash"])
    with pytest.raises(
        AirflowSensorTimeout, match=rf"the persist stayed at epoch {epoch}, where {epoch + 1} is wanted"
    ):
        sensor(fences).execute_complete(context, {}, 1_000)
    later = home.open(MIGRATE)
    with pytest.raises(FencedByEpoch, match="somebody opened it since"):
        sensor(fences).execute(context)
    now = replace(fences, stash_epoch=later, persist_epoch=later)
    assert sensor(now).execute(context)["truth"] == "persist", "cleared after the flip"


def test_it_waits_until_the_truth_is_where_the_plan_has_it(home: Home, context: Any) -> None:
    fences = fenced(home)
    waiting = sensor(fences)
    waiting.plan = {"truth_before": "persist", "truth": "persist"}
    with pytest.raises(AirflowSensorTimeout, match="the truth stayed the stash, where the plan has the persist"):
        waiting.execute_complete(context, {}, 1_000)
