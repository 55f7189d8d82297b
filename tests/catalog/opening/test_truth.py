"""What is told of the catalog without opening it is of one instant, whoever flips the truth meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.items.kinds import DEPLOYMENT, DeploymentKey, DeploymentState, DeploymentValue
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.truth import read_truth
from tidemark.collections.deployment import Mode
from tidemark.errors import ConflictsUnsettled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home
    from tidemark.catalog.back_end import BackEnd, Head
    from tidemark.catalog.items.transaction import Transaction

LEADER = DeploymentValue(state=DeploymentState.IS_LEADER, mode=Mode.READ_ONLY, since_ms=7, who="w")


class Overtaken:
    """A back end whose head is read, and then something happens before the answer arrives."""

    def __init__(self, end: BackEnd, happens: Callable[[], object]) -> None:
        self.name, self._end, self._happens = end.name, end, happens

    def head(self) -> Head:
        head = self._end.head()
        self._happens()
        return head


def put_leader(home: Home, value: DeploymentValue) -> None:
    def change(transaction: Transaction) -> None:
        transaction.put(DEPLOYMENT, DeploymentKey(generation=1), value)

    with home.catalog.join() as handle:
        handle.transact(change)


def deployments(head: Head) -> dict[int, DeploymentValue]:
    return {
        DEPLOYMENT.parse_key(key).generation: DEPLOYMENT.parse_value(text) for key, text in head.deployments.items()
    }


def test_the_head_of_either_side_shows_the_deployments_as_of_its_last_commit(any_home: Home) -> None:
    any_home.open()
    assert deployments(any_home.catalog.truth().head) == {}
    put_leader(any_home, LEADER)
    assert deployments(any_home.ends.stash.head()) == {1: LEADER}
    any_home.open(Direction.MIGRATE)
    assert deployments(any_home.ends.persist.head()) == {1: LEADER}, "a copy shows what it holds"
    later = LEADER.model_copy(update={"mode": Mode.READ_WRITE, "since_ms": 8})
    put_leader(any_home, later)
    any_home.open()
    assert deployments(any_home.ends.persist.head()) == {1: later}, "and so does a fence"
    any_home.open(Direction.ROLLBACK)
    assert deployments(any_home.ends.stash.head()) == {1: later}


def test_a_rollback_while_the_persist_catalog_is_read_is_noticed(home: Home) -> None:
    home.open(Direction.MIGRATE)
    put_leader(home, LEADER)
    rest = [lambda: home.open(Direction.ROLLBACK)]
    seen = read_truth(home.ends.stash, Overtaken(home.ends.persist, lambda: rest and rest.pop()()))
    assert (seen.name, seen.epoch) == ("stash", home.epochs()[0])


def test_a_catalog_that_never_rests_is_not_guessed_at(home: Home) -> None:
    home.open(Direction.MIGRATE)
    with pytest.raises(ConflictsUnsettled):
        read_truth(home.ends.stash, Overtaken(home.ends.persist, home.open))
