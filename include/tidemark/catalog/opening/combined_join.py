"""How tasks take part: they join the leader that the last complete open left, and are fenced by the next open.

A list of steps, like ``combined_open``, and tried by the same model. Joining commits nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.catalog.opening.protocol import Direction, Opening, Step
from tidemark.errors import NotLed

if TYPE_CHECKING:
    from tidemark.catalog.opening.protocol import BackEnds


def _read_truth(ends: BackEnds, opening: Opening) -> Opening:
    """See who is the truth. A hint only: the garbage never bears the announcement of its own epoch."""
    tombstone = ends.stash.head().tombstone
    direction = Direction.MIGRATE if tombstone else Direction.ROLLBACK
    return replace(opening, direction=direction, tombstone=tombstone)


def _join_truth(ends: BackEnds, opening: Opening) -> Opening:
    if opening.tombstone:
        return replace(opening, persist_handle=ends.persist.join(generation=ends.generation, clock=ends.clock))
    return replace(opening, stash_handle=ends.stash.join(generation=ends.generation, clock=ends.clock))


def _check_announced(_ends: BackEnds, opening: Opening) -> Opening:
    """Refuse the token of an open that is not complete: it may be about to copy what the task would add to."""
    truth = opening.truth
    announced = truth.transact(lambda transaction: transaction.config(LEADER_EPOCH))
    if announced != truth.epoch:
        raise NotLed.at(truth.epoch, truth.name, last=announced)
    return replace(opening, is_announced=True)


JOIN: Final = (
    Step("read-truth", _read_truth),
    Step("join-truth", _join_truth),
    Step("check-announced", _check_announced),
)
