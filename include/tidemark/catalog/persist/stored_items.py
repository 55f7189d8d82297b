"""The items of the persist catalog as they are stored, also where somebody wrote them past the catalog's own code.

While the persist catalog is garbage it may hold anything, and its contents must stop nobody: it is fenced, read and
replaced as a whole. Until then the config is taken from the table's head, which each commit of the catalog sets to the
config that it leaves. Damaged contents are refused as soon as they are read as the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change, net
from tidemark.catalog.items.replace_all import replacement_changes, replacement_of_damaged
from tidemark.catalog.persist.records import SHOWN, WHERE
from tidemark.errors import CorruptState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class StoredItems:
    """Items with their multiplicities, at one time; changes are applied to it."""

    def __init__(self, stored: Iterable[Change], *, shown: Contents) -> None:
        """Hold what is stored, whatever it is.

        Args:
            stored: Every stored update, in any order, not necessarily consolidated.
            shown: What the table's head shows: all items of the kinds in ``SHOWN``.
        """
        changes = list(stored)
        self._contents = Contents()
        self._damage: CorruptState | None = None
        self._damaged: list[Change] = []  # everything that is stored, where it contradicts itself
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
        """All items.

        Raises:
            CorruptState: If an item is there more than once, a key has two values, or the head shows another config.
        """
        if self._damage is not None:
            raise CorruptState(str(self._damage), hint=self._damage.hint) from self._damage
        return self._contents

    @property
    def shown(self) -> Contents:
        """The items of the kinds in ``SHOWN`` that count."""
        return self._shown if self.is_damaged else _of_shown_kinds(self._contents)

    def stored(self) -> Sequence[Change]:
        """Return all items with their multiplicities."""
        return self._damaged if self.is_damaged else self._contents.insertions()

    def replacement(self, wanted: Contents, *, generation: int) -> list[Change]:
        """Return the net changes after which exactly ``wanted`` is held, whatever is held now.

        Raises:
            As ``replacement_changes``.
        """
        if self.is_damaged:
            return replacement_of_damaged(self._damaged, wanted, own=self._shown, generation=generation)
        return replacement_changes(self._contents, wanted, generation=generation)

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that belong to one time; to damaged items only what makes them sound, a replacement.

        Raises:
            CorruptState: If they contradict what is held; nothing is applied then.
        """
        if not self.is_damaged:
            self._contents.apply(changes)
            return
        self._contents, self._damage, self._damaged = self._sound_after(changes), None, []

    def shown_after(self, changes: Sequence[Change]) -> Contents:
        """Return what the head is to show once ``apply`` has been done.

        Raises:
            As ``apply``.
        """
        if self.is_damaged:
            return _of_shown_kinds(self._sound_after(changes))
        shown = self.shown
        shown.apply(change for change in changes if change.item.kind in SHOWN)
        return shown

    def _sound_after(self, changes: Iterable[Change]) -> Contents:
        sound = Contents()
        sound.apply([*self._damaged, *changes])
        return sound


def _of_shown_kinds(contents: Contents) -> Contents:
    return contents.of_kinds(SHOWN)


def _check_shown(contents: Contents, shown: Contents) -> None:
    """Compare what the head shows with the items: each commit sets both.

    Raises:
        CorruptState: If they differ.
    """
    if differing := shown.difference(_of_shown_kinds(contents)):
        (kind, key, _), _ = differing[0]
        raise CorruptState(
            f"{WHERE} has another {kind} {key[:200]} than its head shows",
            hint="somebody else wrote to its table: restore it, or see *Emergency* in docs/catalog-migration.md",
        )
