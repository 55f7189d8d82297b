"""The contents of one side of the catalog, to compare both sides; damage of garbage is reported, not raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.catalog.back_end import Handle
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change, Item, net
from tidemark.catalog.items.kinds import CONFIG, GENERATION_KEY, KINDS, LEADER_EPOCH, TOMBSTONE, ConfigKey
from tidemark.errors import CorruptState, IncompatibleDataVersion

# Each back end has its own value of these config keys; a migration makes all other items equal.
_OWN = {CONFIG.key_text(ConfigKey(key)) for key in (TOMBSTONE, GENERATION_KEY, LEADER_EPOCH)}


def carried(contents: Contents) -> Contents:
    """Return the items that a migration carries over: all but the config keys that belong to one back end."""
    return Contents(item for item in contents if _is_carried(item))


def _is_carried(item: Item) -> bool:
    return item.kind != CONFIG.name or item.key not in _OWN


@dataclass(frozen=True, slots=True)
class SideContents:
    """The items of one side; if there is ``damage``, ``contents`` is None and ``stored`` are all items."""

    contents: Contents | None
    stored: Sequence[Change] = ()
    damage: CorruptState | None = None  # the error for everybody who reads this side as the truth

    @classmethod
    def of(cls, handle: Handle) -> SideContents:
        """Read everything. Raises as ``Handle.snapshot``, but for items that contradict each other."""
        try:
            return cls(handle.snapshot())
        except CorruptState as damage:
            return cls(None, handle.stored_items(), damage)

    def carried(self) -> SideContents:
        """Return only the items that a migration carries over."""
        if self.contents is not None:
            return SideContents(carried(self.contents))
        return SideContents(None, [change for change in self.stored if _is_carried(change.item)], self.damage)

    def digest(self) -> str | None:
        """Return the digest of the contents; None if they contradict each other."""
        return None if self.contents is None else self.contents.digest()

    def counts(self) -> dict[str, int]:
        """Return the number of items by kind, without kinds that have none; an item stored twice counts once."""
        if self.contents is not None:
            return self.contents.counts()
        return dict(sorted(Counter(item.kind for item, _ in self.stored).items()))

    def changes_to(self, other: SideContents) -> list[Change]:
        """Return the net changes that turn this into ``other``, retractions first; empty if both hold the same."""
        if self.contents is not None and other.contents is not None:
            return self.contents.difference(other.contents)
        return net([*(Change(item, -diff) for item, diff in self._all()), *other._all()])

    def count_inconsistent(self, changes: Sequence[Change]) -> int:
        """Return the number of items that contradict others or that ``changes`` retract and nobody can read.

        An item contradicts others if its multiplicity is not 1, or if it is one of several values of a key.
        """
        values = Counter((item.kind, item.key) for item, _ in self.stored)
        odd = {item for item, diff in self.stored if diff != 1 or values[item.kind, item.key] > 1}
        return len(odd | {item for item, diff in changes if diff < 0 and not _is_readable(item)})

    def _all(self) -> Sequence[Change]:
        return self.stored if self.contents is None else self.contents.insertions()


def _is_readable(item: Item) -> bool:
    if item.kind not in KINDS:
        return False
    try:
        KINDS[item.kind].parse_key(item.key)
        KINDS[item.kind].parse_value(item.value)
    except (CorruptState, IncompatibleDataVersion):
        return False
    return True
