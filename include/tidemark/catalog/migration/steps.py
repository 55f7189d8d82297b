"""A migration or a rollback in parts, for the tasks of a workflow: each part may die, come late, or come twice.

The parts run the steps of ``opening/protocol.py``, and hand on the fences (``opening/resume.py``) and the digest of the
approved plan. Nothing else is remembered: the tombstone decides what a part does, as in an open within one process. A
part that comes after the open is complete changes nothing; a part fails if its fences are not the present ones.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from tidemark.catalog.back_end import Handle
from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.catalog.migration.copy import check_not_given_up
from tidemark.catalog.migration.plan import plan_digest, present_digest
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import (
    ANNOUNCE,
    FENCE,
    FENCE_PERSIST,
    FENCE_STASH,
    READ_HEADS,
    SET_TOMBSTONE,
    give_up,
)
from tidemark.catalog.opening.resume import START_OVER, Fences, resume
from tidemark.catalog.opening.side_contents import SideContents, carried
from tidemark.errors import CorruptState, FencedByEpoch, NotPossible, Refused
from tidemark.fail_points import fail_point

FAIL_POINTS = ("migration.after-plan", "migration.after-giving-up")
ASK_AGAIN = "ask again: clear the task that plans, with everything after it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of the catalog once both back ends were fenced."""

    tombstone: bool | None
    copies: bool  # whether there is anything to copy


def fence(catalog: Catalog, direction: Direction, *, approved: str) -> Fences:
    """Fence the stash, then the persist catalog, if ``approved`` is still the digest of the plan.

    Raises:
        Refused: If the plan has changed since, or there is nothing left to do; nothing was changed.
        Others as ``Catalog.open``.
    """
    if present_digest(catalog, direction) != approved:
        raise Refused("the catalog is not what it was when the plan was approved", hint=ASK_AGAIN)
    truth = catalog.truth()
    # Check this, too: the digest of a plan that only makes a leader is the same after its execution.
    if truth.is_led and truth.name == direction.truth:
        raise Refused(f"the {truth.name} is the truth, and led: there is nothing left to do", hint=ASK_AGAIN)
    fail_point("migration.after-plan")
    steps = (READ_HEADS, FENCE_STASH, FENCE_PERSIST)
    with closing(run_steps(catalog.ends, Opening(direction=direction), steps)) as opening:
        return Fences.of(opening)


def look(catalog: Catalog, direction: Direction, fences: Fences, *, approved: str) -> Seen:
    """Read the tombstone, and check that the truth holds the approved items, now that nobody can change the truth.

    If it does not, the open is given up, and tasks go on: the epoch of this open leads on the side that is the truth.
    That side may be either one: between the check of the plan and the fences, somebody else may have moved the truth,
    and tasks may have written to it.

    Raises:
        Refused: If something changed between the check of the plan and the fences.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        copies = not opening.has_arrived
        if copies:
            check_not_given_up(opening, fences)
        elif _is_announced(opening, fences):
            return Seen(tombstone=opening.tombstone, copies=False)  # complete, and changed by tasks since
        source = opening.source
        truth = source if copies else opening.truth
        digest = carried(truth.snapshot()).digest()
        # The approved plan may describe the truth before or after the flip: accept either digest.
        plans = {plan_digest(direction, truth_before=before.name, contents=digest) for before in (truth, source)}
        if approved not in plans:
            give_up(catalog.ends, opening, truth)
            fail_point("migration.after-giving-up")
            raise Refused("the catalog was changed just before it was fenced, after the approval", hint=ASK_AGAIN)
    return Seen(tombstone=opening.tombstone, copies=copies)


def verify(catalog: Catalog, direction: Direction, fences: Fences, *, approved: str) -> Fences:
    """Compare both sides item by item, without the code that copied; return the fences under which they are equal.

    If the truth was already there when the plan was made, nothing was copied, and the other side may hold anything.

    Raises:
        CorruptState: If they differ, or are not what was approved.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        if opening.has_arrived and _is_announced(opening, fences):
            return fences  # complete, and changed by tasks since
        sides = {handle.name: SideContents.of(handle).carried() for handle in (opening.stash, opening.persist)}

        def is_approved(before: Handle) -> bool:
            digest = sides[before.name].digest()  # None if damaged
            return digest is not None and plan_digest(direction, truth_before=before.name, contents=digest) == approved

        if opening.has_arrived and is_approved(opening.truth):
            return fences  # the approved plan found the truth there already
        if different := len(sides["stash"].changes_to(sides["persist"])):
            raise CorruptState(
                f"{different} items differ between the stash and the persist catalog after the copy",
                hint="nobody has joined: see `tidemark catalog diff`, and run the task that copies again",
            )
        copied = opening.persist if direction is Direction.MIGRATE else opening.stash
        if (damage := sides[copied.name].damage) is not None:  # such as a table head that shows other items
            raise CorruptState(f"what was copied would be refused: {damage}", hint="run the task that copies again")
        if not is_approved(opening.source):
            raise CorruptState("what was copied is not what was approved", hint=ASK_AGAIN)
    return fences


def flip(catalog: Catalog, fences: Fences, *, verified: Fences) -> bool:
    """Make the persist catalog the truth; return whether that was done now. A rollback flips with its copy.

    ``verified`` are the fences under which the copy was verified; if they are equal, no open came in between.

    Raises ``FencedByEpoch`` if the copy was verified under other fences, or somebody opened the catalog since.
    """
    if fences != verified:
        raise FencedByEpoch("the copy was verified under other fences than the present ones", hint=START_OVER)
    with closing(resume(catalog.ends, Direction.MIGRATE, fences, stash_alone=True)) as opening:
        if opening.has_arrived:
            return False
        check_not_given_up(opening, fences)
        return run_steps(catalog.ends, opening, (SET_TOMBSTONE,)).flipped


def announce(catalog: Catalog, direction: Direction, fences: Fences, *, copied: bool) -> None:
    """Let tasks join the truth where it is now, and write the audit event.

    ``copied`` (``Seen.copies``) says whether there was anything to copy under these fences: then this open has flipped.
    If not, the flip came before this open, and the audit tells whether an event of it is missing.

    Raises:
        NotPossible: If the truth is not where ``direction`` takes it.
        FencedByEpoch: If somebody opened the catalog since.
    """
    with closing(resume(catalog.ends, direction, fences)) as opening:
        if not opening.has_arrived:
            raise NotPossible(
                f"the tombstone is {opening.tombstone}: the {direction.value} has not come to its end",
                hint="run the tasks before this one, from the copy on",
            )
        run_steps(catalog.ends, replace(opening, flipped=copied), (ANNOUNCE,))


def lead_again(catalog: Catalog, direction: Direction, fences: Fences, *, is_verified: bool) -> bool:
    """Lead the catalog where the truth is, after a part of this open failed; return whether nobody led it before.

    The new epoch also fences parts that still run: with the old one, a copy that outlives its task could take the truth
    away from tasks that have joined meanwhile.

    Raises ``NotPossible`` if a rollback has flipped and nobody verified the copy: a person has to look.
    """
    truth, epoch = catalog.truth(), catalog.ends.stash.head().epoch or 0
    # One epoch more: an earlier try died after its own fence. Beyond that, somebody else is opening the catalog.
    if truth.is_led or epoch - fences.stash_epoch not in {0, 1}:
        return False
    if direction is Direction.ROLLBACK and truth.name == direction.truth and not is_verified:
        raise NotPossible(
            "the stash is the truth since the copy, which was not verified: nobody leads, so that nobody joins it",
            hint="clear `verify` with everything after it; or `tidemark catalog diff`, then `tidemark catalog open`",
        )
    with closing(run_steps(catalog.ends, Opening(direction=direction), FENCE)) as opening:
        if opening.has_arrived:
            run_steps(catalog.ends, opening, (ANNOUNCE,))
        else:
            give_up(catalog.ends, opening, opening.source)
    return True


def check_after(catalog: Catalog, direction: Direction) -> dict[str, Any]:
    """Join as any task would, and return the truth, its epoch, and the number of items by kind.

    Raises:
        NotPossible: If another open has taken the truth elsewhere since.
        StaleState: If another open is under way.
    """
    truth = catalog.truth()
    if truth.name != direction.truth:
        raise NotPossible(
            f"the truth is the {truth.name}, not the {direction.truth}: somebody went back since",
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


def _is_announced(opening: Opening, fences: Fences) -> bool:
    epoch = fences.persist_epoch if opening.direction is Direction.MIGRATE else fences.stash_epoch
    return opening.truth.transact(lambda transaction: transaction.config(LEADER_EPOCH)) == epoch
