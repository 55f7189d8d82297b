"""What a migration and a task refuse, whatever the stores are: so on back ends in memory, in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.catalog.memory_back_ends import MemoryEnd, memory_catalog
from tests.support.homes import MIGRATE, ROLLBACK, put
from tidemark.catalog.migration import steps as migration
from tidemark.catalog.migration.plan import plan_digest, present_digest
from tidemark.catalog.migration.steps import fence, look
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import ANNOUNCE, PROTOCOL
from tidemark.errors import NotLed, Refused

if TYPE_CHECKING:
    from tidemark.catalog.opening.catalog import Catalog


@pytest.fixture
def catalog() -> Catalog:
    """A catalog with a leader and one row, the stash being the truth."""
    catalog = memory_catalog(MemoryEnd("stash"), MemoryEnd("persist"))
    catalog.open(MIGRATE).close()
    opening = catalog.open(ROLLBACK)
    put(opening.truth, "row")
    return catalog


def epochs(catalog: Catalog) -> tuple[int | None, int | None]:
    return catalog.ends.stash.head().epoch, catalog.ends.persist.head().epoch


def test_a_plan_that_changed_after_its_approval_fences_nobody(catalog: Catalog) -> None:
    approved, before = present_digest(catalog, MIGRATE), epochs(catalog)
    with catalog.join() as task:
        put(task, "another")
    with pytest.raises(Refused, match="when the plan was approved"):
        fence(catalog, MIGRATE, approved=approved)
    assert epochs(catalog) == before
    fence(catalog, MIGRATE, approved=present_digest(catalog, MIGRATE))


def test_an_approval_is_of_one_direction_one_truth_and_one_content(catalog: Catalog) -> None:
    approved = present_digest(catalog, MIGRATE)
    assert approved == present_digest(catalog, MIGRATE)
    assert approved != present_digest(catalog, ROLLBACK)
    digests = {
        plan_digest(direction, truth_before=truth, contents=contents)
        for direction in Direction
        for truth in ("stash", "persist")
        for contents in ("a", "b")
    }
    assert len(digests) == len(Direction) * 4


def test_a_change_between_the_plan_and_the_fences_gives_the_open_up(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: str) -> None:
        with catalog.join() as task:
            put(task, "written just before the fences")

    approved = present_digest(catalog, MIGRATE)
    with monkeypatch.context() as patch:
        patch.setattr(migration, "fail_point", write)
        fences = fence(catalog, MIGRATE, approved=approved)
    with pytest.raises(Refused, match="changed just before it was fenced"):
        look(catalog, MIGRATE, fences, approved=approved)
    with catalog.join() as task:  # the given-up open leads on
        assert (task.name, task.epoch) == ("stash", fences.stash_epoch)


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_a_task_does_not_join_an_open_that_is_not_complete(catalog: Catalog, direction: Direction) -> None:
    if direction is ROLLBACK:
        catalog.open(MIGRATE).close()
    steps = PROTOCOL[direction]
    opening = Opening(direction=direction)
    for step in steps[: steps.index(ANNOUNCE)]:
        opening = run_steps(catalog.ends, opening, [step])
        if opening.stash_handle and opening.persist_handle:  # from here on nobody leads
            with pytest.raises(NotLed):
                catalog.join()
    run_steps(catalog.ends, opening, [ANNOUNCE])
    assert catalog.join().epoch == opening.truth.epoch
