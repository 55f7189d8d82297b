"""An open that goes on in another process: one task of a workflow fences, others copy, flip and announce.

What they hand on is the epoch of each fence. A task may be killed, cleared, or run twice at once: whatever another open
has fenced since fails, and a copy that comes after the announcement is refused by the back end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.catalog.combined_open import Opening
from include.errors import FencedByEpoch

if TYPE_CHECKING:
    from include.catalog.back_end import BackEnd, Handle
    from include.catalog.combined_open import BackEnds, Direction


def resume(ends: BackEnds, direction: Direction, *, stash_epoch: int, persist_epoch: int) -> Opening:
    """Take over the fences that an open has taken; its next step is to read the tombstone. To be closed.

    Args:
        ends: Both back ends; of the deployment that fenced.
        direction: Where the open goes.
        stash_epoch: The epoch at which it fenced the stash.
        persist_epoch: The epoch at which it fenced the persist catalog.

    Raises:
        FencedByEpoch: If either has been opened since: start over, with new fences.
        Others as ``BackEnd.join``.
    """
    opening = Opening(
        direction=direction,
        # Read anew: what was announced on either side tells whether the flip is in the audit already.
        heads=(ends.stash.head(), ends.persist.head()),
        stash_handle=_take_over(ends, ends.stash, stash_epoch),
    )
    try:
        persist = _take_over(ends, ends.persist, persist_epoch)
    except BaseException:
        opening.close()
        raise
    return Opening(direction=direction, heads=opening.heads, stash_handle=opening.stash_handle, persist_handle=persist)


def _take_over(ends: BackEnds, end: BackEnd, epoch: int) -> Handle:
    handle = end.join(generation=ends.generation, clock=ends.clock)
    if handle.epoch != epoch:
        found = handle.epoch
        handle.close()
        raise FencedByEpoch(
            f"the {end.name} is at epoch {found}, this open fenced it at {epoch}: somebody opened it since",
            hint="start over from the task that fences: everything before it is void",
        )
    return handle
