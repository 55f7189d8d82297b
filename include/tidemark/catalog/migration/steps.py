"""A migration or a rollback in parts, each of which may die, come late, or come twice: what the tasks of a workflow do.

The parts are those of ``combined_open``, and hand on the fences (``combined_resume``) and the digest of the plan that
was approved. Nothing else is remembered: what a part does follows from the tombstone, as in an open that is made in
one go. A part that comes after the open is complete changes nothing; one whose fences are not the present ones fails.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.catalog.migration.copy import check_not_given_up
from tidemark.catalog.migration.plan import plan_digest, present_digest
from tidemark.catalog.opening.flip_audit import audit_flip, audited_truth, may_be_unaudited
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    FENCE_PERSIST,
    FENCE_STASH,
    READ_HEADS,
    READ_TOMBSTONE,
    SET_TOMBSTONE,
    Direction,
    Opening,
    run_steps,
)
from tidemark.catalog.opening.resume import START_OVER, Fences, resume, resume_on_stash
from tidemark.catalog.opening.side_contents import HeldBySide, carried
from tidemark.errors import CorruptState, FencedByEpoch, NotPossible, Refused
from tidemark.fail_points import fail_point

if TYPE_CHECKING:
    from tidemark.catalog.back_end import Handle
    from tidemark.catalog.items.contents import Contents
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.catalog import CombinedCatalog
    from tidemark.catalog.opening.protocol import BackEnds

FAIL_POINTS = ("migration.after-plan", "migration.after-giving-up")
ASK_AGAIN = "ask again: clear the task that plans, with everything after it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen once both back ends were fenced."""

    tombstone: bool | None
    copies: bool  # whether there is anything to copy


def fence(catalog: CombinedCatalog, direction: Direction, *, approved: str) -> Fences:
    """Fence the stash, then the persist catalog, if the plan is still the one that was approved.

    Args:
        catalog: The catalog.
        direction: ``MIGRATE`` or ``ROLLBACK``.
        approved: The digest of the plan.

    Raises:
        Refused: If the plan is another one by now, or there is nothing left to do; nothing was changed.
        Others as ``CombinedCatalog.open``.
    """
    if present_digest(catalog, direction) != approved:
        raise Refused("the catalog is not what it was when the plan was approved", hint=ASK_AGAIN)
    truth = catalog.truth()
    if truth.is_led and truth.name == direction.truth:  # a plan that only makes a leader does not change by its end
        raise Refused(f"the {truth.name} is the truth, and led: there is nothing left to do", hint=ASK_AGAIN)
    fail_point("migration.after-plan")
    with closing(
        run_steps(catalog.ends, Opening(direction=direction), (READ_HEADS, FENCE_STASH, FENCE_PERSIST))
    ) as opening:
        return Fences.of(opening)


def look(catalog: CombinedCatalog, direction: Direction, fences: Fences, *, approved: str) -> Seen:
    """Read the tombstone, and see that the truth holds what was approved, now that nobody changes it any more.

    If it does not, the open is given up: its epoch leads where the truth is, so that tasks go on. That is so wherever
    the truth is: somebody else may have moved it, and tasks written to it, between the last look and the fences.

    Raises:
        Refused: If something was changed between the last look at the plan and the fences.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        looked = run_steps(catalog.ends, opening, (READ_TOMBSTONE,))
        copies = not is_flipped(looked)
        if copies:
            check_not_given_up(looked, fences)
        elif _is_announced(looked, fences):
            return Seen(tombstone=looked.tombstone, copies=False)  # complete, and changed by tasks since
        source = _source(looked)
        truth = source if copies else looked.truth
        contents = carried(truth.snapshot())
        # Either the plan was to leave it there, or it was flipped under these fences.
        if approved not in {_digest(before.name, contents, direction) for before in (truth, source)}:
            _give_up(catalog.ends, looked, truth)
            fail_point("migration.after-giving-up")
            raise Refused("the catalog was changed just before it was fenced, after the approval", hint=ASK_AGAIN)
    return Seen(tombstone=looked.tombstone, copies=copies)


def verify(catalog: CombinedCatalog, direction: Direction, fences: Fences, *, approved: str) -> Fences:
    """Compare both sides, item by item, by another path than the one that copied; return the fences that it holds for.

    If the truth was there when the plan was made, nothing was copied, and the other side may hold anything.

    Raises:
        CorruptState: If they differ, or are not what was approved.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        looked = run_steps(catalog.ends, opening, (READ_TOMBSTONE,))
        if is_flipped(looked) and _is_announced(looked, fences):
            return fences  # complete, and changed by tasks since
        held = {handle.name: HeldBySide.of(handle).carried() for handle in (looked.stash, looked.persist)}

        def is_approved(before: Handle) -> bool:
            contents = held[before.name].contents
            return contents is not None and _digest(before.name, contents, direction) == approved

        if is_flipped(looked) and is_approved(looked.truth):
            return fences  # the plan was to leave it there
        if different := len(held["stash"].changes_to(held["persist"])):
            raise CorruptState(
                f"{different} items differ between the stash and the persist catalog after the copy",
                hint="nobody has joined: see `tidemark catalog diff`, and run the task that copies again",
            )
        copied = looked.persist if direction is Direction.MIGRATE else looked.stash
        if (damage := held[copied.name].damage) is not None:  # of what shows the items, for instance
            raise CorruptState(f"what was copied would be refused: {damage}", hint="run the task that copies again")
        if not is_approved(_source(looked)):
            raise CorruptState("what was copied is not what was approved", hint=ASK_AGAIN)
    return fences


def flip(catalog: CombinedCatalog, fences: Fences, *, verified: Fences) -> bool:
    """Make the persist catalog the truth; return whether that was done now. A rollback flips with its copy.

    Args:
        catalog: The catalog.
        fences: What the open has fenced.
        verified: The fences under which the copy was verified; data that lay there before are no copy.

    Raises:
        FencedByEpoch: If these are other fences, or somebody opened the catalog since.
    """
    if fences != verified:
        raise FencedByEpoch("the copy was verified under other fences than the present ones", hint=START_OVER)
    with closing(resume_on_stash(catalog.ends, Direction.MIGRATE, fences)) as opening:
        looked = run_steps(catalog.ends, opening, (READ_TOMBSTONE,))
        if is_flipped(looked):
            return False
        check_not_given_up(looked, fences)
        return run_steps(catalog.ends, looked, (SET_TOMBSTONE,)).flipped


def announce(catalog: CombinedCatalog, direction: Direction, fences: Fences, *, copied: bool) -> None:
    """Let tasks join the truth where it is now, and write the audit event.

    Args:
        catalog: The catalog.
        direction: ``MIGRATE`` or ``ROLLBACK``.
        fences: What the open has fenced.
        copied: Whether there was anything to copy under these fences (``Seen.copies``): then this open has flipped. If
            not, because it was looked at after the flip, the audit is asked whether it tells of one.

    Raises:
        NotPossible: If the truth is not where ``direction`` takes it.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        looked = run_steps(catalog.ends, opening, (READ_TOMBSTONE,))
        if not is_flipped(looked):
            raise NotPossible(
                f"the tombstone is {looked.tombstone}: the {direction.value} has not come to its end",
                hint="run the tasks before this one, from the copy on",
            )
        run_steps(catalog.ends, replace(looked, flipped=copied), (ANNOUNCE,))


def check_after(catalog: CombinedCatalog, direction: Direction) -> dict[str, Any]:
    """Join as any task would, and return what there is: the truth, its epoch, items by kind.

    Raises:
        NotPossible: If another open has taken the truth elsewhere since.
        StaleState: If another open is under way.
    """
    truth = catalog.truth()
    wanted = direction.truth
    if truth.name != wanted:
        raise NotPossible(
            f"the truth is the {truth.name}, not the {wanted}: somebody went back since",
            hint="see `tidemark catalog history` for who it was",
        )
    with catalog.join() as handle:
        contents = handle.snapshot()
        return {
            "truth": handle.name,
            "tombstone": truth.tombstone,
            "epoch": handle.epoch,
            "generation": handle.generation,
            "counts": contents.counts(),
            "digest": carried(contents).digest(),
        }


def is_flipped(looked: Opening) -> bool:
    """Return whether the truth is where the open goes, once the tombstone was read."""
    return bool(looked.tombstone) is (looked.direction is Direction.MIGRATE)


def _source(looked: Opening) -> Handle:
    """Return the handle that was the truth when the plan was made."""
    return looked.stash if looked.direction is Direction.MIGRATE else looked.persist


def _digest(truth_before: str, contents: Contents, direction: Direction) -> str:
    return plan_digest(direction, truth_before=truth_before, contents=contents.digest())


def _give_up(ends: BackEnds, looked: Opening, truth: Handle) -> None:
    """Let tasks join the truth where it is, and audit the flip of whoever died after it; what was wished for stands."""
    is_doubtful = looked.heads is not None and may_be_unaudited(*looked.heads, tombstone=looked.tombstone)
    way = Direction.MIGRATE if looked.tombstone else Direction.ROLLBACK

    def lead(transaction: Transaction) -> None:
        transaction.set_config(LEADER_EPOCH, truth.epoch)
        if is_doubtful and audited_truth(transaction, set(Direction)) != truth.name:
            audit_flip(transaction, ends, way, epoch=truth.epoch)

    truth.transact(lead)


def _is_announced(looked: Opening, fences: Fences) -> bool:
    def leader(transaction: Transaction) -> int | None:
        return transaction.config(LEADER_EPOCH)

    epoch = fences.persist_epoch if looked.direction is Direction.MIGRATE else fences.stash_epoch
    return looked.truth.transact(leader) == epoch
