"""Which columns get other names, and what a table keeps of it until the declarations with the new names are stored.

The ``renames`` of a declaration are one mapping, which happens all at once: columns can swap their names, and an old
name can be used again. So names alone do not say what is done. A table property does: it comes with the columns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.errors import CatalogOutOfSync, CorruptState

RENAMED: Final = "tidemark.renamed"  # the table property with a ``Renaming``


@dataclass(frozen=True, slots=True)
class Renaming:
    """The last renames of a table's columns.

    ``declared`` are all ``renames`` of the declaration that asked for them. Until one with these is registered,
    ``moved`` leads from the names of columns in registered declarations to those in the table; then it says nothing.
    """

    declared: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Renaming:
        """Return what the properties of a table say. Raises ``CorruptState`` if that cannot be read."""
        if (text := properties.get(RENAMED)) is None:
            return cls()
        try:
            found = json.loads(text)
            return cls(dict(found["declared"]), dict(found["moved"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"the table property {RENAMED!r} cannot be read: {text!r}",
                hint="somebody edited it: remove it, unless an apply that renames columns died since",
            ) from error

    def __str__(self) -> str:
        return json.dumps({"declared": self.declared, "moved": self.moved})

    def is_pending(self, registered: Mapping[str, str]) -> bool:
        """Tell whether the registered declaration, with the renames ``registered``, has the names from before."""
        return bool(self.moved) and self.declared != registered


@dataclass(frozen=True, slots=True)
class ColumnRenames:
    """The renames of an apply: those that the table ``needed`` still, and what the table says of them then."""

    needed: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)  # as in ``Renaming``
    said: Renaming = field(default_factory=Renaming)
    is_news: bool = False  # whether the table says something else yet


def plan_renames(
    renames: Mapping[str, str], present: Collection[str], *, registered: Mapping[str, str] | None, said: Renaming
) -> ColumnRenames:
    """Return what the declared ``renames`` ask of a table with the columns ``present``, which ``said`` what it has had.

    A rename is done once its new name is there, unless the column of that name gets another name itself. Of a circle
    every name is there, before and after: it is done if it is among the renames of the ``registered`` declaration, or
    among those that an apply made which died before it registered one. Without a registered declaration, the table
    was just made, with the new names.
    """
    is_pending = registered is not None and said.is_pending(registered)
    done = {**(renames if registered is None else registered), **(said.declared if is_pending else {})}
    asked = {old: new for old, new in renames.items() if old in present}
    needed: dict[str, str] = {}
    for circle in _circles(asked):
        if not circle.items() <= done.items():
            needed |= circle
    while begun := {
        old: new for old, new in asked.items() if old not in needed and (new not in present or new in needed)
    }:
        needed |= begun
    needed = {old: new for old, new in renames.items() if old in needed}
    before = said.moved if is_pending else {}
    moved = {old: needed.get(new, new) for old, new in before.items()}
    for old, new in needed.items():
        if old not in before.values():
            moved.setdefault(old, new)
    moved = {old: new for old, new in moved.items() if old != new}
    if not needed and not is_pending and renames == registered:
        return ColumnRenames(said=said)  # what the table says of the past is not mistaken
    after = Renaming(dict(renames), moved) if moved else Renaming()
    return ColumnRenames(needed, moved, after, is_news=after != said)


def refuse_if_pending(
    names: Iterable[str], properties: Mapping[str, str], *, renames: Mapping[str, str], collection: str
) -> None:
    """Raise ``CatalogOutOfSync`` if one of the ``names`` means another column by now than when they were declared.

    ``renames`` are those of the declaration that the caller goes by, ``properties`` those of the table.
    """
    said = Renaming.read(properties)
    if said.is_pending(renames) and (old := sorted(said.moved.keys() & {*names})):
        raise CatalogOutOfSync(
            f"an apply renamed columns of {collection!r}, {', '.join(map(repr, old))} among them, and has not stored "
            "its declarations yet",
            hint="run again; if that does not help, the apply died: run `tidemark apply` with the same files again",
        )


def _circles(renames: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the renames that lead back to where they began; a column that keeps its name is no circle."""
    circles = []
    for first in renames:
        circle, last = [first], renames[first]
        while last in renames and last not in circle:
            circle.append(last)
            last = renames[last]
        if last == first and len(circle) > 1:
            circles.append({old: renames[old] for old in circle})
    return circles
