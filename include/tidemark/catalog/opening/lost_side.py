"""A side of the catalog that is not where the settings say, although the other side shows that there was one.

An open makes what is missing, and a copy replaces all of its destination: because of a mistyped address, the two would
write nothing over the only copy that is left. So an open looks first. What is refused here is nothing that an open,
wherever it died, can leave, so that the look needs no fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.errors import CorruptState, NotPossible

if TYPE_CHECKING:
    from tidemark.catalog.back_end import Head
    from tidemark.catalog.opening.protocol import BackEnds


def read_heads(ends: BackEnds, *, replaces_persist: bool) -> tuple[Head, Head]:
    """Return the heads of the stash and of the persist catalog, if what is missing was never there.

    Args:
        ends: Both.
        replaces_persist: Whether the stash may be copied over the persist catalog.

    Raises:
        CorruptState: If the persist catalog is the truth and is missing.
        NotPossible: If a stash that is missing would be copied over a persist catalog that was led.
    """
    stash, persist = ends.stash.head(), ends.persist.head()
    if is_persist_lost(persist, tombstone=stash.tombstone):
        raise persist_lost()
    if replaces_persist and _is_stash_lost(stash, persist):
        stash = ends.stash.head()  # the first open of all may have come between the two looks
        if _is_stash_lost(stash, persist):
            raise NotPossible(
                "the persist catalog was led, and its stash was never opened: to migrate would empty it",
                hint="check TIDEMARK_STASH_URI; only if the stash is lost: `tidemark catalog dump --side persist` to "
                "keep what is there, then `tidemark catalog open`, which starts with an empty stash",
            )
    return stash, persist


def is_persist_lost(persist: Head, *, tombstone: bool | None) -> bool:
    """Tell whether the persist catalog is the truth and missing: before it becomes that, it is initialised."""
    return tombstone is True and not persist.is_initialized


def persist_lost() -> CorruptState:
    """Build the error for a persist catalog that is the truth and missing."""
    return CorruptState(
        "the stash says that the persist catalog is the truth, and there is none",
        hint="check TIDEMARK_CATALOG_URI; only if it is lost: `tidemark catalog emergency`, which goes back to what "
        "the stash held",
    )


def _is_stash_lost(stash: Head, persist: Head) -> bool:
    # Only an open that had the stash initialised first, and its tombstone set, announces a leader there.
    return not stash.is_initialized and LEADER_EPOCH in persist.config
