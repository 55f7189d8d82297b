"""Processes that die at every point of a drop, and of the removal of a table: whoever comes next completes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.collections.objects.test_drop import EVENTS, append, drop_names, ids_in, uuid
from tests.support.clock import SteppedClock
from tests.support.crash import die_at, real_first, run_command
from tests.support.homes import Home
from tests.support.leftovers import stored_files
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.maintenance import dropped_tables
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects import drop as drop_steps
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.maintenance import removal
from tidemark.iceberg.shards import DROPPED, Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

GRACE_MS = 10**12


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    place = Home(home, tmp_path)
    place.declare(EVENTS)
    append(place, 0, 2)
    return place


@pytest.mark.parametrize("then", ["apply", "drop", "again", "maintain"])
@pytest.mark.parametrize(("point", "run"), real_first(drop_steps.FAIL_POINTS))
def test_a_killed_drop_is_completed_by_whoever_comes_next(
    place: Home, point: str, run: Callable[..., int], then: str
) -> None:
    old = uuid(place)
    place.declare(EVENTS.replace("events", "others"))
    assert run(place.settings, "drop", "events", "--yes", point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert list(place.registry.read().declarations) == ["others"], "gone from the catalog, whatever comes next"
    if then == "apply":
        assert place.declare(EVENTS).steps[0].action == "create"
        assert append(place, 5, 7, mark="q") is Outcome.APPENDED
        assert (place.ids(), uuid(place) == old) == ([5, 6], False)
    elif then == "drop":
        drop_names(place, "others")
    elif then == "again":
        assert run_command(place.settings, "drop", "events", "--yes") == ExitCode.USAGE, "it is gone already"
    else:
        assert remove(place.settings) == 0
    assert (uuid(place, "events_1", DROPPED), ids_in(place, "events_1")) == (old, [0, 1])
    remove(place.settings)
    assert place.shards.open("events_1", DROPPED).load().state.is_sealed, "maintenance seals what is open still"


def remove(settings: Settings, grace_ms: int = GRACE_MS) -> int:
    shards, clock = Shards.connect(settings), SteppedClock(10**11)
    report = remove_dropped(shards, deployment_of(settings), clock=clock, grace_ms=grace_ms)
    return int(report.exit_code)


@pytest.mark.parametrize("point", [*removal.FAIL_POINTS, *dropped_tables.FAIL_POINTS])
def test_a_killed_removal_is_completed_by_the_next(place: Home, point: str) -> None:
    drop_names(place, "events")
    place.declare(EVENTS)
    append(place, 5, 7)
    folder = place.shards.iceberg.load_table((DROPPED, "events_1")).location().removeprefix("file://")
    assert die_at(point, remove, place.settings, 0) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert len(place.deployment.objects.dropped()) == 1
    assert remove(place.settings, 0) == 0
    assert (place.shards.names(DROPPED), place.deployment.objects.dropped()) == ([], [])
    left = {path for path in stored_files(place.settings) if str(path).startswith(f"{folder}/")}
    assert {path.suffix for path in left} <= ({".json"} if point == "removal.name-gone" else set())
    assert place.ids() == [5, 6]
    assert run_command(place.settings, "doctor") in {ExitCode.OK, ExitCode.CONFIGURATION}
