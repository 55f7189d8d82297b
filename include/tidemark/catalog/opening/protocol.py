"""The protocol that opens the two back ends as one catalog, as a list of steps over the ``BackEnd`` interface.

At every moment exactly one back end is the truth: the persist catalog if the stash's tombstone is true, else the stash.
The other one is garbage, even if it is identical. So a write to the garbage is always safe, and a copy always starts
from the beginning; only the flip of the tombstone changes anything. The flip comes last, in one transaction.

A step is at most one transaction of one back end, and takes all that it knows from the ``Opening``. So the process may
die after any step, the next opener may go either way, and the same list runs over the real back ends, over a savepoint,
and over a model that tries every schedule (``tests/catalog/migration/test_migration_model.py``). Each step says what
must not change, and why; the model finds the lost write if somebody changes the step all the same.

Source: reference/collections_catalog_storage.md §6.2, and §6.4 for ``EMERGENCY``. ``announce`` and ``JOIN`` are our
additions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tidemark.catalog.back_end import Handle, OpenMode
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.kinds import AUDIT_EVENT, CATALOG_KIND, DEPLOYMENT, LEADER_EPOCH, TOMBSTONE
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, Step
from tidemark.catalog.opening.truth import read_heads
from tidemark.errors import FencedByEpoch, NotLed

# -- fence, then look ----------------------------------------------------------------------------------------------


def _read_heads(ends: BackEnds, opening: Opening) -> Opening:
    """Read both epochs, and refuse if a side is lost: the next steps would make the lost side anew."""
    return replace(opening, heads=read_heads(ends, replaces_persist=opening.direction is Direction.MIGRATE))


def _epoch_before(opening: Opening, place: int) -> int:
    return 0 if opening.heads is None else opening.heads[place].epoch or 0


def _fence_stash(ends: BackEnds, opening: Opening) -> Opening:
    """Depose everybody on the stash; a leader on the persist catalog goes on until the next step."""
    least = _epoch_before(opening, 1) + 1
    handle = ends.stash.open(ends.mode, generation=ends.generation, clock=ends.clock, epoch_lower_bound=least)
    return replace(opening, stash_handle=handle)


def _fence_persist(ends: BackEnds, opening: Opening) -> Opening:
    """Depose everybody on the persist catalog; this may initialise it or bring it to the present format.

    Its epoch is not below the stash's new epoch. With the stash's old epoch as the bound, as in the reference, a leader
    could follow others, who opened the stash alone in between, with an epoch that is not larger than theirs. Nor is it
    above the stash's new epoch: that happens when several processes open at once. Whoever led with the larger epoch
    would leave the stash at a smaller one, and another opener, who read both heads before, could lead with the same
    epoch once more.

    Raises:
        FencedByEpoch: If others opened the catalog at the same time.
    """
    stash = opening.stash_handle
    least = max(_epoch_before(opening, 0) + 1, 0 if stash is None else stash.epoch)
    handle = ends.persist.open(ends.mode, generation=ends.generation, clock=ends.clock, epoch_lower_bound=least)
    if ends.mode is OpenMode.WRITABLE and stash is not None and handle.epoch != stash.epoch:
        handle.close()
        raise FencedByEpoch(
            f"the persist catalog came to epoch {handle.epoch}, the stash to {stash.epoch}: others open it, too",
            hint="start over, one after the other",
        )
    return replace(opening, persist_handle=handle)


def _read_tombstone(_ends: BackEnds, opening: Opening) -> Opening:
    """Read which side is the truth: after both fences, in a fenced transaction.

    Before the fences, whoever fenced last could still flip the tombstone. Without the check of the fence, the value
    could be that of an overtaken open. In both cases two processes would each hold a truth of their own.
    """
    value = opening.stash.transact(lambda transaction: transaction.config(TOMBSTONE))
    return replace(opening, tombstone=None if value is None else bool(value))


READ_HEADS = Step("read-heads", _read_heads)
FENCE_STASH = Step("fence-stash", _fence_stash)
FENCE_PERSIST = Step("fence-persist", _fence_persist)
READ_TOMBSTONE = Step("read-tombstone", _read_tombstone)


# -- migrate -------------------------------------------------------------------------------------------------------


def _stash_is_truth(opening: Opening) -> bool:
    return opening.tombstone is not True


def _read_stash(_ends: BackEnds, opening: Opening) -> Opening:
    return replace(opening, contents=opening.stash.snapshot())


def _write_persist(_ends: BackEnds, opening: Opening) -> Opening:
    """Replace ALL of the persist catalog: whatever is stored there is garbage, and none of it may survive.

    Refused if this very epoch was announced: then this is the second run of a task, the copy of the first run has
    become the truth, and tasks have written to it.
    """
    return replace(opening, replaced=opening.persist.replace_all(_contents(opening)), contents=None)


def _set_tombstone(_ends: BackEnds, opening: Opening) -> Opening:
    """Flip: from here on the persist catalog is the truth. Fenced, so it fails if anybody opened since the read."""
    opening.stash.transact(lambda transaction: transaction.set_config(TOMBSTONE, 1))
    return replace(opening, tombstone=True, flipped=True)


READ_STASH = Step("read-stash", _read_stash, _stash_is_truth)
WRITE_PERSIST = Step("write-persist", _write_persist, _stash_is_truth)
SET_TOMBSTONE = Step("set-tombstone", _set_tombstone, _stash_is_truth)


# -- roll back -----------------------------------------------------------------------------------------------------


def _persist_is_truth(opening: Opening) -> bool:
    return opening.tombstone is True


def _read_persist(_ends: BackEnds, opening: Opening) -> Opening:
    return replace(opening, contents=opening.persist.snapshot())


def _write_stash(_ends: BackEnds, opening: Opening) -> Opening:
    """Replace ALL of the stash and flip, in one transaction; never the flip first."""
    replaced = opening.stash.replace_all(_contents(opening), tombstone=False)
    return replace(opening, replaced=replaced, contents=None, tombstone=False, flipped=True)


READ_PERSIST = Step("read-persist", _read_persist, _persist_is_truth)
WRITE_STASH = Step("write-stash", _write_stash, _persist_is_truth)


def _contents(opening: Opening) -> Contents:
    if opening.contents is None:
        raise TypeError("nothing was read yet")  # a list of steps that is out of order
    return opening.contents


# -- emergency -----------------------------------------------------------------------------------------------------


def _clear_tombstone(ends: BackEnds, opening: Opening) -> Opening:
    """Make the stash the truth again without a copy, so that the next open sees what the emergency writes to it.

    The flip is audited here and not with the announcement, before which the process may die: after a copy the
    announcements on both sides tell the next opener of the flip, and here there is no copy.
    """

    def revive_stash(transaction: Transaction) -> bool:
        was_retired = transaction.config(TOMBSTONE) == 1
        if was_retired:
            transaction.set_config(TOMBSTONE, 0)
            _audit_flip(transaction, ends, opening.direction, epoch=opening.stash.epoch)
        return was_retired

    if opening.stash.transact(revive_stash):
        return replace(opening, tombstone=False, flipped=True)
    return opening


CLEAR_TOMBSTONE = Step("clear-tombstone", _clear_tombstone)


# -- let others join -----------------------------------------------------------------------------------------------


def _announce(ends: BackEnds, opening: Opening) -> Opening:
    """Write to the truth that the open of its present epoch is complete, so that tasks may join it.

    Without this a task could take the token of an opener that is about to copy: the copy would miss what the task
    writes, and the flip would turn the task's writes into garbage. Not a progress marker: no open depends on it.
    """
    truth = opening.truth
    was_persist = (opening.direction is Direction.MIGRATE) is not opening.flipped
    before = Direction.MIGRATE if was_persist else Direction.ROLLBACK  # leads to the truth as this open found it

    def say(transaction: Transaction) -> None:
        if transaction.config(LEADER_EPOCH) == truth.epoch:
            return  # the second run of a task: keep what others have set since the first
        transaction.set_config(LEADER_EPOCH, truth.epoch)
        stored = transaction.config(CATALOG_KIND)
        if stored is not None and stored != opening.direction.catalog_kind:  # else the next open would go back at once
            transaction.set_config(CATALOG_KIND, opening.direction.catalog_kind)
        _audit_missing_flip(transaction, ends, opening, before, epoch=truth.epoch)
        if opening.flipped and opening.direction is not Direction.EMERGENCY:
            _audit_flip(transaction, ends, opening.direction, epoch=truth.epoch)

    truth.transact(say)
    return replace(opening, is_announced=True)


ANNOUNCE = Step("announce", _announce)


def give_up(ends: BackEnds, opening: Opening, truth: Handle) -> None:
    """End an open early: let tasks join ``truth``, where it is. The stored ``catalog_kind`` stays as it is."""
    leads_there = Direction.MIGRATE if opening.tombstone else Direction.ROLLBACK

    def lead(transaction: Transaction) -> None:
        transaction.set_config(LEADER_EPOCH, truth.epoch)
        _audit_missing_flip(transaction, ends, opening, leads_there, epoch=truth.epoch)

    truth.transact(lead)


def _audit_missing_flip(
    transaction: Transaction, ends: BackEnds, opening: Opening, present: Direction, *, epoch: int
) -> None:
    """Write the event of a flip whose open died before its announcement, if that may have happened and was not audited.

    A copy carries over the announcement of the other side, or that there is none, and each announcement is made only
    once. So equal announcements mean: nobody announced since the last copy. The audit tells whether a flip followed
    that copy. An emergency copies nothing, and the transaction that flips audits it.

    ``present`` is the direction that leads to the truth as the dead open left it; ``epoch`` is that of the open which
    writes the event.
    """
    if opening.heads is None or opening.tombstone is None:
        return
    stash, persist = opening.heads
    if stash.config.get(LEADER_EPOCH) != persist.config.get(LEADER_EPOCH):
        return
    operations = set(Direction)
    flips = [(key.id, event) for key, event in transaction.items(AUDIT_EVENT) if event.operation in operations]
    audited = max(flips, key=lambda flip: flip[0])[1].details.get("truth") if flips else "stash"
    if audited != present.truth:
        _audit_flip(transaction, ends, present, epoch=epoch)


def _audit_flip(transaction: Transaction, ends: BackEnds, direction: Direction, *, epoch: int) -> None:
    """Write the event of a flip in ``direction``; ``epoch`` is that of the open which writes the event."""
    transaction.audit(
        direction.value,
        kind=DEPLOYMENT,
        subject=f"generation {ends.generation}",
        who=ends.who,
        details={"epoch": epoch, "truth": direction.truth},
    )


# -- join ----------------------------------------------------------------------------------------------------------


def _read_truth(ends: BackEnds, opening: Opening) -> Opening:
    """Read which side is the truth. A hint only: the garbage never holds the announcement of its own epoch."""
    tombstone = ends.stash.head().tombstone
    direction = Direction.MIGRATE if tombstone else Direction.ROLLBACK
    return replace(opening, direction=direction, tombstone=tombstone)


def _join_truth(ends: BackEnds, opening: Opening) -> Opening:
    handle = ends.truth(tombstone=opening.tombstone).join(generation=ends.generation, clock=ends.clock)
    return replace(opening, persist_handle=handle) if opening.tombstone else replace(opening, stash_handle=handle)


def _check_announced(_ends: BackEnds, opening: Opening) -> Opening:
    """Refuse the token of an incomplete open: its copy may be about to miss what the task would add."""
    truth = opening.truth
    announced = truth.transact(lambda transaction: transaction.config(LEADER_EPOCH))
    if announced != truth.epoch:
        raise NotLed.at(truth.epoch, truth.name, last=announced)
    return replace(opening, is_announced=True)


FENCE: Final = (READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE)
PROTOCOL: Final[Mapping[Direction, tuple[Step, ...]]] = {
    Direction.MIGRATE: (*FENCE, READ_STASH, WRITE_PERSIST, SET_TOMBSTONE, ANNOUNCE),
    Direction.ROLLBACK: (*FENCE, READ_PERSIST, WRITE_STASH, ANNOUNCE),
    Direction.EMERGENCY: (FENCE_STASH, CLEAR_TOMBSTONE, ANNOUNCE),
}
FAIL_POINTS: Final = tuple(dict.fromkeys(step.fail_point for steps in PROTOCOL.values() for step in steps))

# Tasks join the leader of the last complete open without a commit; the next open fences them.
JOIN: Final = (
    Step("read-truth", _read_truth),
    Step("join-truth", _join_truth),
    Step("check-announced", _check_announced),
)
