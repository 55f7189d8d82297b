"""Kill the process after every step of an open, then go either way: nothing is lost.

Source: reference/collections_catalog_storage.md, section 6.2.
"""

from __future__ import annotations

import pytest

from tests.support.catalog.interventions import compact, migrate, open_in_an_emergency, roll_back, run_in_child
from tests.support.homes import Home
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.protocol import ANNOUNCE, PROTOCOL
from tidemark.catalog.persist import persist as persist_catalog
from tidemark.catalog.stash import stash
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.maintenance import log_consolidation

pytestmark = pytest.mark.crash

# Where a process dies between two durable steps; reads leave what the step before them left.
POINTS = {
    Direction.MIGRATE: (
        "catalog.after-fence-stash",
        *stash.FAIL_POINTS,
        *persist_catalog.FAIL_POINTS,
        "catalog.after-write-persist",
        "catalog.after-set-tombstone",
    ),
    Direction.ROLLBACK: ("catalog.after-fence-persist", "catalog.after-write-stash"),
    Direction.EMERGENCY: ("catalog.after-clear-tombstone",),
}


OPEN = {Direction.MIGRATE: migrate, Direction.ROLLBACK: roll_back, Direction.EMERGENCY: open_in_an_emergency}


@pytest.mark.parametrize(("direction", "point"), [(each, point) for each in POINTS for point in POINTS[each]])
def test_a_killed_open_loses_nothing_whichever_way_it_goes_on(home: Home, direction: Direction, point: str) -> None:
    if direction is Direction.MIGRATE:
        home.open_stash(add=["row"])
    else:
        home.open(Direction.ROLLBACK, add=["row"])
        home.open(Direction.MIGRATE)
    assert run_in_child(OPEN[direction], home, fail_point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    for then in (Direction.MIGRATE, Direction.ROLLBACK, Direction.MIGRATE):
        home.open(then)
        assert (home.truth(), home.setting_names()) == ("persist" if then is Direction.MIGRATE else "stash", {"row"})


def test_every_step_of_every_direction_is_followed_by_a_fail_point() -> None:
    """And dying at the last one is as good as not dying: the open is complete."""
    for steps in PROTOCOL.values():
        assert steps[-1] is ANNOUNCE
        assert len({step.fail_point for step in steps}) == len(steps)


@pytest.mark.parametrize("point", log_consolidation.FAIL_POINTS)
def test_a_killed_compaction_leaves_the_contents(home: Home, point: str) -> None:
    home.open(Direction.MIGRATE, add=["a"])
    home.open(Direction.MIGRATE, add=["b"])
    for fail_point, code in ((point, FAIL_POINT_EXIT), ("", 0)):
        assert run_in_child(compact, home, fail_point=fail_point) == code
        assert home.setting_names() == {"a", "b"}
