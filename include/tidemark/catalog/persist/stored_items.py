"""The stored items of the persist catalog, also if somebody edited its table without the catalog's code.

While the persist catalog is garbage it may hold anything, and damage must stop nobody: it is fenced, read and replaced
as a whole. If its items are damaged, the config is taken from the table's head, which each commit of the catalog sets.
Reading damaged items as the truth is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change, net
from tidemark.catalog.items.replace_all import replacement_changes, replacement_of_damaged
from tidemark.catalog.persist.records import SHOWN, WHERE
from tidemark.errors import CorruptState


class StoredItems:
    """Items with their multiplicities at one time, sound or damaged; changes can be applied.

    ``stored`` are all updates in any order; ``shown`` are the items in the table's head, of the kinds in ``SHOWN``.
    """

    def __init__(self, stored: Iterable[Change], *, shown: Contents) -> None:
        changes = list(stored)
        self._contents = Contents()
        self._damage: CorruptState | None = None
        self._damaged: list[Change] = []  # all stored items, if they are damaged
        self._shown = shown
        try:
            self._contents.apply(changes)
            _check_shown(self._contents, shown)
        except CorruptState as damage:
            self._damage, self._damaged = damage, net(changes)

    @property
    def is_damaged(self) -> bool:
        return self._damage is not None

    @property
    def contents(self) -> Contents:
        """All items. Raises ``CorruptState`` if they contradict each other, or the head shows another config."""
        if self._damage is not None:
            raise CorruptState(str(self._damage), hint=self._damage.hint) from self._damage
        return self._contents

    @property
    def shown(self) -> Contents:
        """The valid items of the kinds in ``SHOWN``."""
        return self._shown if self.is_damaged else self._contents.of_kinds(SHOWN)

    def stored(self) -> Sequence[Change]:
        """Return all items with their multiplicities."""
        return self._damaged if self.is_damaged else self._contents.insertions()

    def replacement(self, wanted: Contents, *, generation: int) -> list[Change]:
        """Return the net changes that leave exactly ``wanted``. Raises as ``replacement_changes``."""
        if self.is_damaged:
            return replacement_of_damaged(self._damaged, wanted, own=self._shown, generation=generation)
        return replacement_changes(self._contents, wanted, generation=generation)

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that belong to one time; to damaged items only changes that make the items sound.

        Raises ``CorruptState`` if the changes contradict the items; then nothing is applied.
        """
        if not self.is_damaged:
            self._contents.apply(changes)
            return
        self._contents, self._damage, self._damaged = self._sound_after(changes), None, []

    def shown_after(self, changes: Sequence[Change]) -> Contents:
        """Return the items that the head must show after ``apply``. Raises as ``apply``."""
        if self.is_damaged:
            return self._sound_after(changes).of_kinds(SHOWN)
        shown = self.shown
        shown.apply(change for change in changes if change.item.kind in SHOWN)
        return shown

    def _sound_after(self, changes: Iterable[Change]) -> Contents:
        sound = Contents()
        sound.apply([*self._damaged, *changes])
        return sound


def _check_shown(contents: Contents, shown: Contents) -> None:
    """Raise ``CorruptState`` if the head differs from the items: every commit sets both."""
    if differing := shown.difference(contents.of_kinds(SHOWN)):
        (kind, key, _), _ = differing[0]
        raise CorruptState(
            f"{WHERE} has another {kind} {key[:200]} than its head shows",
            hint="somebody else wrote to its table: restore it, or see *Emergency* in docs/catalog-migration.md",
        )
