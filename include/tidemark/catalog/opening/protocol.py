"""The protocol that opens the two back ends as one catalog, as a list of steps over the ``BackEnd`` interface.

At every moment exactly one back end is the truth: the persist catalog if the stash's tombstone is true, else the stash.
The other one is garbage, even if its items are equal. So a write to the garbage is always safe, and a copy always
starts from the beginning; only the flip of the tombstone changes anything. The flip comes last, in one transaction.

A step is at most one transaction of one back end, and reads its arguments from the ``Opening`` alone. So the process
may die after any step, the next opener may go either way, and the same list runs over the real back ends, over a
savepoint, and over a model that tries every schedule (``tests/catalog/migration/test_migration_model.py``). Each step
says why it must stay as it is; the model finds the lost write if somebody changes the step.

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
    """Read both epochs, and refuse if a side is lost: the next steps would create an empty one in its place."""
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

    Both sides come to the same epoch. A smaller one here, which the reference allows (its bound is the stash's old
    epoch), might not be larger than the epochs of others who opened the stash alone in between. A larger one, which
    appears when several processes open at once, would leave the stash at a smaller epoch: another opener, who read
    both heads before, could lead with the same epoch once more.

    Raises ``FencedByEpoch`` if others opened the catalog at the same time.
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

    Before the fences, the last opener could still flip the tombstone. Without the check of the fence, an overtaken
    open could read a value that is no longer true. In both cases two processes would hold different truths.
    """
    value = opening.stash.transact(lambda transaction: transaction.config(TOMBSTONE))
    return replace(opening, tombstone=None if value is None else bool(value))


READ_HEADS = Step("read-heads", _read_heads)
FENCE_STASH = Step("fence-stash", _fence_stash)
FENCE_PERSIST = Step("fence-persist", _fence_persist)
READ_TOMBSTONE = Step("read-tombstone", _read_tombstone)


# -- copy and flip: only from the side that is the truth, in whichever list a step stands ---------------------------


def _stash_is_truth(opening: Opening) -> bool:
    return opening.tombstone is not True


def _persist_is_truth(opening: Opening) -> bool:
    return opening.tombstone is True


def _write_persist(_ends: BackEnds, opening: Opening) -> Opening:
    """Replace ALL of the persist catalog: whatever is stored there is garbage, and none of it may survive.

    ``replace_all`` refuses if this very epoch was announced: then a task runs for the second time, the copy of its
    first run has become the truth, and other tasks have written to that truth.
    """
    return replace(opening, replaced=opening.persist.replace_all(_contents(opening)), contents=None)


def _set_tombstone(_ends: BackEnds, opening: Opening) -> Opening:
    """Flip: the persist catalog is the truth now. Fenced: the flip fails if anybody opened since the read."""
    opening.stash.transact(lambda transaction: transaction.set_config(TOMBSTONE, 1))
    return replace(opening, tombstone=True, flipped=True)


def _write_stash(_ends: BackEnds, opening: Opening) -> Opening:
    """Replace ALL of the stash and flip, in one transaction; never the flip first."""
    replaced = opening.stash.replace_all(_contents(opening), tombstone=False)
    return replace(opening, replaced=replaced, contents=None, tombstone=False, flipped=True)


def _contents(opening: Opening) -> Contents:
    if opening.contents is None:
        raise TypeError("nothing was read yet")  # a list of steps that is out of order
    return opening.contents


READ_STASH = Step("read-stash", lambda _, opening: replace(opening, contents=opening.stash.snapshot()), _stash_is_truth)
WRITE_PERSIST = Step("write-persist", _write_persist, _stash_is_truth)
SET_TOMBSTONE = Step("set-tombstone", _set_tombstone, _stash_is_truth)
READ_PERSIST = Step(
    "read-persist", lambda _, opening: replace(opening, contents=opening.persist.snapshot()), _persist_is_truth
)
WRITE_STASH = Step("write-stash", _write_stash, _persist_is_truth)


# -- emergency -----------------------------------------------------------------------------------------------------


def _clear_tombstone(ends: BackEnds, opening: Opening) -> Opening:
    """Make the stash the truth again without a copy, so that the next open sees what the emergency writes there.

    The same transaction audits the flip, because the process may die before the announcement. After a copy, the
    announcements on both sides tell the next opener of the flip; an emergency copies nothing.
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

    Without the announcement a task could take the token of an opener that is about to copy: the copy would miss the
    task's writes, and the flip would turn them into garbage. No open depends on the announcement.
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
    """End an open early: let tasks join the present ``truth``. The stored ``catalog_kind`` stays as it is."""
    leads_there = Direction.MIGRATE if opening.tombstone else Direction.ROLLBACK

    def lead(transaction: Transaction) -> None:
        transaction.set_config(LEADER_EPOCH, truth.epoch)
        _audit_missing_flip(transaction, ends, opening, leads_there, epoch=truth.epoch)

    truth.transact(lead)


def _audit_missing_flip(
    transaction: Transaction, ends: BackEnds, opening: Opening, present: Direction, *, epoch: int
) -> None:
    """Write the event of a flip whose open died before its announcement, unless the audit has the event.

    A copy carries over the announcement of the other side, or its absence, and each open announces once. So equal
    announcements mean: nobody announced since the last copy. The audit tells whether a flip followed that copy. An
    emergency copies nothing, and the transaction that flips audits the flip.

    ``present`` is the direction that leads to the truth as the dead open left it; ``epoch`` is the epoch of the open
    that writes the event.
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
    """Write the event of a flip in ``direction``; ``epoch`` is the epoch of the open that writes the event."""
    transaction.audit(
        direction.value,
        kind=DEPLOYMENT,
        subject=f"generation {ends.generation}",
        who=ends.who,
        details={"epoch": epoch, "truth": direction.truth},
    )


# -- join ----------------------------------------------------------------------------------------------------------


def _read_truth(ends: BackEnds, opening: Opening) -> Opening:
    """Read which side is the truth: a hint, because garbage never holds the announcement of its own epoch."""
    tombstone = ends.stash.head().tombstone
    direction = Direction.MIGRATE if tombstone else Direction.ROLLBACK
    return replace(opening, direction=direction, tombstone=tombstone)


def _join_truth(ends: BackEnds, opening: Opening) -> Opening:
    handle = ends.truth(tombstone=opening.tombstone).join(generation=ends.generation, clock=ends.clock)
    return replace(opening, persist_handle=handle) if opening.tombstone else replace(opening, stash_handle=handle)


def _check_announced(_ends: BackEnds, opening: Opening) -> Opening:
    """Refuse the token of an incomplete open, whose copy would miss the items that the task adds."""
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
