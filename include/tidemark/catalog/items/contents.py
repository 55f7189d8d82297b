"""The items of a catalog at one time: both back ends return them, transactions and migrations compare them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from tidemark.catalog.items.item import Change, Item, net
from tidemark.catalog.items.kinds import CONFIG, ConfigKey, ItemKind, kind_named
from tidemark.errors import CorruptState


class Snapshot(Protocol):
    """The items at one time; a back end may read them on demand.

    Keys and values are canonical texts. All answers of one snapshot are of one instant.
    """

    def get(self, kind: str, key: str) -> str | None:
        """Return the value under ``key``, or None."""

    def of_kind(self, kind: str) -> Mapping[str, str]:
        """Return all values of a kind by key. The caller must not change them."""

    def holder(self, kind: ItemKind[Any, Any], constraint: str, claimed: Hashable) -> str | None:
        """Return the key of the item whose ``kind.unique[constraint]`` is ``claimed``, or None."""


class Contents:
    """Items in memory, at most one value under each key; a ``Snapshot`` to which changes can be applied.

    Iterating gives the items in order of kind, key. Contents are equal if their items are.

    Raises ``CorruptState`` if the constructor gets two items with the same key.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._values: defaultdict[str, dict[str, str]] = defaultdict(dict)
        # By kind and constraint, if `holder` was ever asked for the constraint: key by claimed value.
        self._holders: dict[tuple[str, str], dict[Hashable, str]] = {}
        for item in items:  # the same as `apply`, in a quarter of its time
            values = self._values[item.kind]
            if item.key in values:
                raise _contradiction(item, 2 if values[item.key] == item.value else None)
            values[item.key] = item.value

    def get(self, kind: str, key: str) -> str | None:
        return self._values[kind].get(key) if kind in self._values else None

    def of_kind(self, kind: str) -> Mapping[str, str]:
        return self._values.get(kind, {})

    def of_kinds(self, kinds: Iterable[str]) -> Contents:
        """Return independent contents with all items of ``kinds``."""
        return Contents(Item(kind, *pair) for kind in kinds for pair in self.of_kind(kind).items())

    def holder(self, kind: ItemKind[Any, Any], constraint: str, claimed: Hashable) -> str | None:
        if (kind.name, constraint) not in self._holders:
            values = self.of_kind(kind.name).items()
            holders = {self._claimed(Item(kind.name, key, value), constraint): key for key, value in values}
            holders.pop(None, None)
            self._holders[kind.name, constraint] = holders
        return self._holders[kind.name, constraint].get(claimed)

    def apply(self, changes: Iterable[Change]) -> int:
        """Apply changes that belong to one time, in any order; return the number of changes after consolidation.

        Raises ``CorruptState`` if an item's multiplicity would be other than 0 or 1 ("unexpected multiplicity"), or a
        key would have two values ("duplicate keys"). Then nothing is applied.
        """
        consolidated = net(changes)
        retracted = {item for item, diff in consolidated if diff == -1}
        inserted: dict[tuple[str, str], str] = {}
        for item, diff in consolidated:
            present = self.get(item.kind, item.key)
            if diff != (-1 if present == item.value else 1):
                raise _contradiction(item, diff + (present == item.value))
            if diff == 1:
                remains = present is not None and Item(item.kind, item.key, present) not in retracted
                if remains or (item.kind, item.key) in inserted:
                    raise _contradiction(item, None)
                inserted[item.kind, item.key] = item.value
        self._move_holders(consolidated)
        for item, diff in consolidated:
            if diff == -1:
                del self._values[item.kind][item.key]
        for (kind, key), value in inserted.items():
            self._values[kind][key] = value
        return len(consolidated)

    def difference(self, wanted: Contents) -> list[Change]:
        """Return the net changes that turn these contents into ``wanted``; retractions first."""
        return [
            *(Change(item, -1) for item in self if wanted.get(item.kind, item.key) != item.value),
            *(Change(item, 1) for item in wanted if self.get(item.kind, item.key) != item.value),
        ]

    def insertions(self) -> list[Change]:
        """Return the changes that turn empty contents into these contents."""
        return [Change(item, 1) for item in self]

    def config(self, key: str) -> int | None:
        """Return the config value under the plain string ``key``, or None."""
        text = self.get(CONFIG.name, CONFIG.key_text(ConfigKey(key)))
        return None if text is None else CONFIG.parse_value(text).root

    def counts(self) -> dict[str, int]:
        """Return the number of items by kind, without kinds that have no item."""
        return {kind: len(values) for kind, values in sorted(self._values.items()) if values}

    def digest(self) -> str:
        """Return the SHA-256 of all items, in hex: equal exactly when the contents are equal."""
        total = hashlib.sha256()
        for item in self:
            for text in item:
                encoded = text.encode("utf-8", "surrogatepass")
                total.update(len(encoded).to_bytes(8, "big") + encoded)  # the length, so that texts cannot run together
        return total.hexdigest()

    def copy(self) -> Contents:
        """Return contents that change independently."""
        twin = Contents()
        twin._values.update({kind: dict(values) for kind, values in self._values.items()})
        return twin

    def __iter__(self) -> Iterator[Item]:
        for kind in sorted(self._values):
            for key, value in sorted(self._values[kind].items()):
                yield Item(kind, key, value)

    def __len__(self) -> int:
        return sum(len(values) for values in self._values.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contents):
            return NotImplemented
        theirs = {kind: values for kind, values in other._values.items() if values}
        return {kind: values for kind, values in self._values.items() if values} == theirs

    __hash__ = None  # type: ignore[assignment]  # contents can change

    def _move_holders(self, consolidated: list[Change]) -> None:
        for (kind, constraint), holders in self._holders.items():
            for item, diff in consolidated:
                if item.kind != kind or (claimed := self._claimed(item, constraint)) is None:
                    continue
                if diff == 1:
                    holders[claimed] = item.key
                elif holders.get(claimed) == item.key:
                    del holders[claimed]

    @staticmethod
    def _claimed(item: Item, constraint: str) -> Hashable | None:
        kind = kind_named(item.kind)
        return kind.unique[constraint](kind.parse_key(item.key), kind.parse_value(item.value))


def _contradiction(item: Item, multiplicity: int | None) -> CorruptState:
    """Build the error for the ``multiplicity`` of ``item``; None: its key has another value, too."""
    reason = "duplicate keys: a second value" if multiplicity is None else f"unexpected multiplicity {multiplicity}"
    return CorruptState(
        f"{reason} of {item.kind} {item.key[:200]}",
        hint="somebody else wrote to the catalog's tables: restore them from a dump",
    )
