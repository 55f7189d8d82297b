"""Reads the heads of both sides before the catalog is opened, in any data version, in milliseconds.

The heads say which side is the truth, and whether a side is lost: the other side shows that the lost side existed, and
the settings lead to nothing. An open creates a missing side, and a copy replaces all of its destination. So with a
mistyped address an open would replace the only copy by nothing; therefore every open reads the heads first. The reading
needs no fence: an open, wherever it dies, never leaves a state that is refused here.

Source: reference/collections_catalog_storage.md, section 6.3.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.catalog.back_end import BackEnd, Head
from tidemark.catalog.items.kinds import CATALOG_KIND, LEADER_EPOCH, CatalogKind
from tidemark.catalog.opening.opening import BackEnds, Direction
from tidemark.errors import ConflictsUnsettled, CorruptState, NotPossible, NotWritable

log = logging.getLogger(__name__)
_DIRECTIONS = {
    CatalogKind.STASH: Direction.ROLLBACK,
    CatalogKind.PERSIST: Direction.MIGRATE,
    CatalogKind.EMERGENCY_STASH: Direction.EMERGENCY,
}
_ATTEMPTS = 5  # to read both heads between two opens; an open takes longer than one attempt


@dataclass(frozen=True, slots=True)
class TruthHead:
    """The head of the truth, and which one it is."""

    name: str
    head: Head
    tombstone: bool | None

    @property
    def is_initialized(self) -> bool:
        return self.head.is_initialized

    @property
    def epoch(self) -> int | None:
        return self.head.epoch

    @property
    def deployment_generation(self) -> int:
        """The generation that opened the truth last. Raises ``Uninitialized`` if nobody opened it."""
        return self.head.deployment_generation(f"the {self.name}")

    @property
    def catalog_kind(self) -> CatalogKind | None:
        """The stored ``catalog_kind``, or None. Raises ``NotPossible`` if this program does not know the number."""
        stored = self.head.config.get(CATALOG_KIND)
        if stored is None:
            return None
        try:
            return CatalogKind(stored)
        except ValueError as error:
            raise NotPossible(
                f"the stored catalog_kind {stored} is unknown to this program",
                hint="open with a direction: tidemark catalog migrate, or rollback",
            ) from error

    @property
    def is_led(self) -> bool:
        """Whether the last open is complete, so that tasks may join."""
        return self.epoch is not None and self.head.config.get(LEADER_EPOCH) == self.epoch

    @property
    def was_led(self) -> bool:
        """Whether an open ever completed, of this back end or of the back end that its items were copied from."""
        return LEADER_EPOCH in self.head.config

    @property
    def direction(self) -> Direction:
        """The direction of an open without an argument: the stored ``catalog_kind``, else the truth stays in place."""
        kind = self.catalog_kind
        if kind is CatalogKind.SHADOW:
            log.error("catalog_kind shadow is not supported: the %s stays the truth", self.name)
        if kind is None or kind is CatalogKind.SHADOW:
            return Direction.MIGRATE if self.tombstone else Direction.ROLLBACK
        return _DIRECTIONS[kind]


def find_truth(ends: BackEnds) -> TruthHead | None:
    """Return the head of the truth; None if nobody ever began to open the catalog.

    Raises:
        NotWritable: If the persist catalog was opened and the stash never was: this is the wrong stash, or the stash is
            lost, and with it the tombstone.
        CorruptState: If the persist catalog is the truth and is missing.
        Others as ``read_truth``.
    """
    truth = read_truth(ends.stash, ends.persist)
    if (loss := persist_loss(truth.head, tombstone=truth.tombstone)) is not None:
        raise loss
    if truth.epoch is not None:
        return truth
    if ends.persist.head().epoch is None:
        return None
    # The first open fences the stash before it makes the persist catalog. It may be under way: read again.
    truth = read_truth(ends.stash, ends.persist)
    if truth.epoch is not None:
        return truth
    raise NotWritable(
        "the catalog has a persist side, and its stash was never opened: can be recovered by opening writable",
        hint="check TIDEMARK_STASH_URI; only if the stash is lost: `tidemark catalog open`",
    )


def read_truth(stash: BackEnd, persist: BackEnd) -> TruthHead:
    """Return the head of the truth; a missing stash has no tombstone, and is the truth.

    The returned side was the truth at one instant of the call. For the stash, one transaction sees the tombstone and
    the rest. The persist catalog was the truth while it was read if the stash has the same epoch before and after,
    because an open that makes the stash the truth again fences the stash first.

    Raises:
        Unreachable: If the stash, or the persist catalog as the truth, does not answer.
        ConflictsUnsettled: If the catalog was opened again and again meanwhile.
    """
    head = stash.head()
    for _ in range(_ATTEMPTS):
        if not head.tombstone:
            return TruthHead(stash.name, head, head.tombstone)
        truth, before = persist.head(), head
        head = stash.head()
        if (head.epoch, head.tombstone) == (before.epoch, before.tombstone):
            return TruthHead(persist.name, truth, before.tombstone)
    raise ConflictsUnsettled("the catalog was opened again and again while it was looked at", hint="run it again")


def read_heads(ends: BackEnds, *, replaces_persist: bool) -> tuple[Head, Head]:
    """Return the heads of the stash and of the persist catalog, unless one of the two sides is lost.

    ``replaces_persist``: whether the stash may be copied over the persist catalog.

    Raises:
        CorruptState: If the persist catalog is the truth and is missing.
        NotPossible: If a missing stash would be copied over a persist catalog that was led.
    """
    stash, persist = ends.stash.head(), ends.persist.head()
    if (loss := persist_loss(persist, tombstone=stash.tombstone)) is not None:
        raise loss
    if replaces_persist and _is_stash_lost(stash, persist):
        stash = ends.stash.head()  # the first open of all may have come between the two looks
        if _is_stash_lost(stash, persist):
            raise NotPossible(
                "the persist catalog was led, and its stash was never opened: to migrate would empty it",
                hint="check TIDEMARK_STASH_URI; only if the stash is lost: `tidemark catalog dump --side persist` to "
                "keep what is there, then `tidemark catalog open`, which starts with an empty stash",
            )
    return stash, persist


def persist_loss(persist: Head, *, tombstone: bool | None) -> CorruptState | None:
    """Return the error to raise if the persist catalog is the truth and is missing; None if it is not lost."""
    if tombstone is not True or persist.is_initialized:  # an open initialises it before it becomes the truth
        return None
    return CorruptState(
        "the stash says that the persist catalog is the truth, and there is none",
        hint="check TIDEMARK_CATALOG_URI; only if it is lost: `tidemark catalog emergency`, which goes back to what "
        "the stash held",
    )


def _is_stash_lost(stash: Head, persist: Head) -> bool:
    # An open initialises the stash, and sets its tombstone, before it announces a leader on the persist catalog.
    return not stash.is_initialized and LEADER_EPOCH in persist.config
