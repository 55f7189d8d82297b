"""The protocol that opens the two back ends as one catalog, as a list of steps over the ``BackEnd`` interface.

At every moment exactly one back end is the truth: the persist catalog if the stash's tombstone is true, else the stash.
The other is garbage, even if it is identical. So writing to the garbage is always safe and always done from the start;
only the flip of the tombstone changes anything, it comes last, and it is one transaction of one back end.

Each step is at most one transaction of one back end, and takes all that it knows from the ``Opening`` before it. So the
process may die after any step, the next opener may go either way, and the same list runs over the real back ends, over
a savepoint, and over a model that tries every schedule (``tests/catalog/migration/test_migration_model.py``). What must
not be changed about it, and why, is said at each step; the model finds the lost write if it is changed all the same.

Source: reference/collections_catalog_storage.md §6.2, and §6.4 for ``EMERGENCY``. ``announce`` is our addition: see
there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.kinds import CATALOG_KIND, LEADER_EPOCH, TOMBSTONE, CatalogKind
from tidemark.catalog.opening.flip_audit import audit_flip, audited_truth, may_be_unaudited
from tidemark.catalog.opening.lost_side import read_heads
from tidemark.errors import FencedByEpoch
from tidemark.fail_points import fail_point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tidemark.catalog.back_end import BackEnd, Handle, Head, Replaced
    from tidemark.catalog.items.contents import Contents
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.clock import Clock


class Direction(StrEnum):
    """Which back end an open is to leave as the truth."""

    MIGRATE = "migrate"  # the persist catalog
    ROLLBACK = "rollback"  # the stash
    EMERGENCY = "emergency"  # the stash, as the last rollback or migration left it, without a look at the persist side

    @property
    def truth(self) -> str:
        """The name of the back end that this direction leads to."""
        return "persist" if self is Direction.MIGRATE else "stash"

    @property
    def kind(self) -> CatalogKind:
        """The stored wish that this direction fulfils; an emergency is not to be repeated at the next open."""
        return CatalogKind.PERSIST if self is Direction.MIGRATE else CatalogKind.STASH


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEnds:
    """Both back ends, and who opens them."""

    stash: BackEnd
    persist: BackEnd
    generation: int
    clock: Clock
    who: str = ""  # the person or process, for the audit
    mode: OpenMode = OpenMode.WRITABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What one opener knows after some of its steps; later steps need nothing else."""

    direction: Direction
    heads: tuple[Head, Head] | None = None  # of the stash and of the persist catalog, before anything was fenced
    stash_handle: Handle | None = None
    persist_handle: Handle | None = None
    tombstone: bool | None = None
    contents: Contents | None = None  # of the truth, while they are carried over
    replaced: Replaced | None = None  # what the copy came to; None if there was nothing to copy
    flipped: bool = False
    is_announced: bool = False

    @property
    def stash(self) -> Handle:
        if self.stash_handle is None:
            raise TypeError("the stash is not open yet")  # a list of steps that is out of order
        return self.stash_handle

    @property
    def persist(self) -> Handle:
        if self.persist_handle is None:
            raise TypeError("the persist catalog is not open yet")
        return self.persist_handle

    @property
    def truth(self) -> Handle:
        """The handle of the truth, once the direction was gone."""
        return self.persist if self.direction is Direction.MIGRATE else self.stash

    def close(self) -> None:
        """Let go of both back ends."""
        for handle in (self.stash_handle, self.persist_handle):
            if handle is not None:
                handle.close()


def _always(_opening: Opening) -> bool:
    return True


class Step(NamedTuple):
    """One step: its name, what it does, and whether there is anything for it to do."""

    name: str
    run: Callable[[BackEnds, Opening], Opening]
    applies: Callable[[Opening], bool] = _always

    @property
    def fail_point(self) -> str:
        return f"catalog.after-{self.name}"


# -- fence, then look ----------------------------------------------------------------------------------------------


def _read_heads(ends: BackEnds, opening: Opening) -> Opening:
    """See both epochs, and that neither side is lost: the next steps would make it anew."""
    heads = read_heads(ends, replaces_persist=opening.direction is Direction.MIGRATE)
    return replace(opening, heads=heads)


def _epoch_before(opening: Opening, place: int) -> int:
    return 0 if opening.heads is None else opening.heads[place].epoch or 0


def _fence_stash(ends: BackEnds, opening: Opening) -> Opening:
    """Depose everybody on the stash; a leader on the persist catalog goes on until the next step."""
    handle = ends.stash.open(
        ends.mode,
        generation=ends.generation,
        clock=ends.clock,
        epoch_lower_bound=_epoch_before(opening, 1) + 1,
    )
    return replace(opening, stash_handle=handle)


def _fence_persist(ends: BackEnds, opening: Opening) -> Opening:
    """Depose everybody on the persist catalog, which may be initialised or brought to the present format by this.

    Its epoch is not below the one that the stash got: with the stash's epoch of before, as the reference has it, a
    leader could follow others, who opened the stash alone in between, with an epoch that is not larger than theirs.
    Nor is it above: that happens where several open at once, and whoever led with it would leave the stash at a smaller
    one, from which another opener, who looked at both before, could lead with the same epoch once more.

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
    """Read who is the truth: after both fences, and fenced itself.

    Read before, it could be flipped by whoever fenced last, and read without a check it could be that of an open which
    has been overtaken: in both cases two processes would each hold a truth of their own.
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
    """Replace ALL of the persist catalog: whatever is there is garbage, of which nothing may survive.

    Refused if this very epoch was announced: then this is a second run of a task, the first one's copy has become the
    truth, and tasks have written to it.
    """
    return replace(opening, replaced=opening.persist.replace_all(_carried(opening)), contents=None)


def _set_tombstone(_ends: BackEnds, opening: Opening) -> Opening:
    """Flip: from here on the persist catalog is the truth. Fenced, so it fails if anybody opened since the read."""

    def retire_stash(transaction: Transaction) -> None:
        transaction.set_config(TOMBSTONE, 1)

    opening.stash.transact(retire_stash)
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
    replaced = opening.stash.replace_all(_carried(opening), tombstone=False)
    return replace(opening, replaced=replaced, contents=None, tombstone=False, flipped=True)


READ_PERSIST = Step("read-persist", _read_persist, _persist_is_truth)
WRITE_STASH = Step("write-stash", _write_stash, _persist_is_truth)


# -- emergency -----------------------------------------------------------------------------------------------------


def _clear_tombstone(ends: BackEnds, opening: Opening) -> Opening:
    """Make the stash the truth again as it is, so that the next open sees what is written to it in the emergency.

    Audited here and not with the announcement, before which the process may die: of a copy the announcements on both
    sides tell the next opener, and here there is none.
    """

    def revive_stash(transaction: Transaction) -> bool:
        was_retired = transaction.config(TOMBSTONE) == 1
        if was_retired:
            transaction.set_config(TOMBSTONE, 0)
            audit_flip(transaction, ends, opening.direction, epoch=opening.stash.epoch)
        return was_retired

    if opening.stash.transact(revive_stash):
        return replace(opening, tombstone=False, flipped=True)
    return opening


CLEAR_TOMBSTONE = Step("clear-tombstone", _clear_tombstone)


# -- let others join -----------------------------------------------------------------------------------------------


def _announce(ends: BackEnds, opening: Opening) -> Opening:
    """Say in the truth that its present epoch has come to the end of its open, so that tasks may join it.

    Without this a task could take the token of an opener that is about to copy: the copy would miss what the task
    writes, and the flip would make that garbage. No progress marker: what an open does never depends on it.
    """
    truth, before = opening.truth, _way_to_truth_before(opening)
    is_doubtful = opening.heads is not None and may_be_unaudited(*opening.heads, tombstone=opening.tombstone)

    def say(transaction: Transaction) -> None:
        if transaction.config(LEADER_EPOCH) == truth.epoch:
            return  # a second run of a task: what others have set since stands
        transaction.set_config(LEADER_EPOCH, truth.epoch)
        stored = transaction.config(CATALOG_KIND)
        if stored is not None and stored != opening.direction.kind:  # else the next open would go back at once
            transaction.set_config(CATALOG_KIND, opening.direction.kind)
        if is_doubtful and audited_truth(transaction, set(Direction)) != before.truth:
            audit_flip(transaction, ends, before, epoch=truth.epoch)  # of an open that died
        if opening.flipped and opening.direction is not Direction.EMERGENCY:
            audit_flip(transaction, ends, opening.direction, epoch=truth.epoch)

    truth.transact(say)
    return replace(opening, is_announced=True)


def _way_to_truth_before(opening: Opening) -> Direction:
    """Return the direction that leads to where the truth was when this open began."""
    was_persist = (opening.direction is Direction.MIGRATE) is not opening.flipped
    return Direction.MIGRATE if was_persist else Direction.ROLLBACK


ANNOUNCE = Step("announce", _announce)

FENCE: Final = (READ_HEADS, FENCE_STASH, FENCE_PERSIST, READ_TOMBSTONE)
PROTOCOL: Final[Mapping[Direction, tuple[Step, ...]]] = {
    Direction.MIGRATE: (*FENCE, READ_STASH, WRITE_PERSIST, SET_TOMBSTONE, ANNOUNCE),
    Direction.ROLLBACK: (*FENCE, READ_PERSIST, WRITE_STASH, ANNOUNCE),
    Direction.EMERGENCY: (FENCE_STASH, CLEAR_TOMBSTONE, ANNOUNCE),
}
FAIL_POINTS: Final = tuple(dict.fromkeys(step.fail_point for steps in PROTOCOL.values() for step in steps))


def _carried(opening: Opening) -> Contents:
    if opening.contents is None:
        raise TypeError("nothing was read yet")  # a list of steps that is out of order
    return opening.contents


def run_steps(ends: BackEnds, opening: Opening, steps: Sequence[Step]) -> Opening:
    """Run ``steps`` one after the other; both back ends are closed if one of them fails.

    Raises:
        Fenced: If another opener came in between; start over.
        Others as the methods of ``BackEnd`` and ``Handle``.
    """
    try:
        for step in steps:
            if step.applies(opening):
                opening = step.run(ends, opening)
                fail_point(step.fail_point)
    except BaseException:
        opening.close()
        raise
    return opening
