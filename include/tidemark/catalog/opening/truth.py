"""What can be told of the catalog before it is opened: asked of the truth, in any data version, in milliseconds.

Source: reference/collections_catalog_storage.md, section 6.3.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.catalog.items.kinds import CATALOG_KIND, LEADER_EPOCH, SETTINGS_SYNCED_KEY, CatalogKind
from tidemark.catalog.opening.lost_side import is_persist_lost, persist_lost
from tidemark.catalog.opening.protocol import Direction
from tidemark.errors import ConflictsUnsettled, NotPossible, NotWritable

if TYPE_CHECKING:
    from tidemark.catalog.back_end import BackEnd, Head
    from tidemark.catalog.opening.protocol import BackEnds

log = logging.getLogger(__name__)
_LOOKS = 5  # an open takes longer than a look


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
        """The generation that opened the truth last.

        Raises:
            Uninitialized: If nobody did.
        """
        return self.head.deployment_generation(f"the {self.name}")

    @property
    def has_settings_synced_once(self) -> bool:
        return self.head.config.get(SETTINGS_SYNCED_KEY) == 1

    @property
    def catalog_kind(self) -> CatalogKind | None:
        """What the next open is asked to do; None if nothing is.

        Raises:
            NotPossible: If it is a kind that this program does not know.
        """
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
        """Whether there ever was a complete open, of this back end or of the one that it was copied from."""
        return LEADER_EPOCH in self.head.config

    @property
    def direction(self) -> Direction:
        """What an open without a word from its caller does: the stored wish, else it leaves the truth where it is."""
        stays = Direction.MIGRATE if self.tombstone else Direction.ROLLBACK
        if self.catalog_kind is CatalogKind.SHADOW:
            log.error("catalog_kind shadow is not supported: the %s stays the truth", self.name)
            return stays
        wished = {
            CatalogKind.STASH: Direction.ROLLBACK,
            CatalogKind.PERSIST: Direction.MIGRATE,
            CatalogKind.EMERGENCY_STASH: Direction.EMERGENCY,
        }
        return stays if self.catalog_kind is None else wished[self.catalog_kind]


def find_truth(ends: BackEnds) -> TruthHead | None:
    """Return the head of the truth; None if nobody ever opened the catalog, not even half.

    Raises:
        NotWritable: If the stash was never opened, and the persist catalog was: then this is not its stash, or that
            one is lost, and with it the word on which side is the truth.
        CorruptState: If the persist catalog is the truth, and there is none.
        Others as ``read_truth``.
    """
    truth = read_truth(ends.stash, ends.persist)
    if is_persist_lost(truth.head, tombstone=truth.tombstone):
        raise persist_lost()
    if truth.epoch is not None:
        return truth
    if ends.persist.head().epoch is None:
        return None
    # The first open fences the stash before it makes the persist catalog: look again, it may be under way.
    truth = read_truth(ends.stash, ends.persist)
    if truth.epoch is not None:
        return truth
    raise NotWritable(
        "the catalog has a persist side, and its stash was never opened: can be recovered by opening writable",
        hint="check TIDEMARK_STASH_URI; only if the stash is lost: `tidemark catalog open`",
    )


def read_truth(stash: BackEnd, persist: BackEnd) -> TruthHead:
    """Return the head of the truth; a stash that is not there has no tombstone, and is the truth.

    What is returned was the truth at one instant of the call. For the stash that is one transaction, which sees the
    tombstone and the rest. The persist catalog was the truth while it was read if the stash is afterwards at the epoch
    of before: whoever makes the stash the truth again fences it first.

    Raises:
        Unreachable: If the stash does not answer, or, with the persist catalog as the truth, that one.
        ConflictsUnsettled: If the catalog was opened again and again meanwhile.
    """
    head = stash.head()
    for _ in range(_LOOKS):
        if not head.tombstone:
            return TruthHead(stash.name, head, head.tombstone)
        truth, seen = persist.head(), head
        head = stash.head()
        if (head.epoch, head.tombstone) == (seen.epoch, seen.tombstone):
            return TruthHead(persist.name, truth, seen.tombstone)
    raise ConflictsUnsettled("the catalog was opened again and again while it was looked at", hint="run it again")
