"""Which columns get other names: the ``renames`` of a declaration are one mapping, in whose order nothing happens."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def find_column_renames(renames: Mapping[str, str], present: Collection[str]) -> dict[str, str]:
    """Return those of the ``renames``, from old to new names, that columns with the names ``present`` still need.

    A rename is done once its new name is there, unless the column of that name gets another name itself. So the old
    name may be used again, by a new column or by another rename. A circle of renames would look the same before and
    after, and never begins: see ``find_circle``.
    """
    needed: dict[str, str] = {}
    left = {old: new for old, new in renames.items() if old in present}
    while begun := {old: new for old, new in left.items() if new not in present or new in needed}:
        needed |= begun
        left = {old: new for old, new in left.items() if old not in begun}
    return {old: new for old, new in renames.items() if old in needed}


def find_circle(renames: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a circle, in which each gets the name of the next and the last that of the first.

    Empty if there is none; a column that keeps its name is none.
    """
    for first in renames:
        circle = [first]
        while (new := renames.get(circle[-1])) is not None and new not in circle:
            circle.append(new)
        if new == first and len(circle) > 1:
            return tuple(circle)
    return ()
