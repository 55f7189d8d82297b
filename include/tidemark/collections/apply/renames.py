"""Which collections get another name, and why one cannot; reads and writes no store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Applied
from tidemark.errors import StillRead


def find_renames(declared: Mapping[str, Declaration], applied: Mapping[str, Declaration]) -> dict[str, str]:
    """Return the old names, by the new ones, of the applied collections that ``declared`` names anew."""
    return {
        name: new.renamed_from
        for name, new in declared.items()
        if new.renamed_from is not None and new.renamed_from in applied and name not in applied
    }


def find_problems(declared: Mapping[str, Declaration], applied: Applied, taken: Iterable[str]) -> list[str]:
    """Return why collections cannot get their new names; ``taken`` are the names of all tables.

    Raises ``StillRead`` if collections would read one by its old name, or sinks carry one.
    """
    renames = find_renames(declared, applied.declarations)
    readers = {**applied.declarations, **declared}
    reading = [
        f"collection {name!r} reads {old!r}, which becomes {new!r}"
        for new, old in renames.items()
        for name, reader in readers.items()
        if old in reader.inputs and name != old
    ]
    if reading:
        raise StillRead("; ".join(reading), hint="apply them in the same call, with the new name")
    for new, old in renames.items():
        _refuse_if_carried(old, new, [sink.name for sink in applied.sinks.values() if sink.collection == old])
    problems = []
    for new, old in renames.items():
        where = f"collection {new!r}: it cannot be renamed from {old!r}"
        if old in declared or list(renames.values()).count(old) > 1:
            problems.append(f"{where}: that is declared twice, under two names")
        elif new in taken:
            problems.append(f"{where}: there is a table {new!r} already")
        elif any(
            each.writes_to is not None or each.reads_buffer for each in (declared[new], applied.declarations[old])
        ):
            problems.append(f"{where}: its buffer knows its batches by its name")
    return problems


def _refuse_if_carried(old: str, new: str, sinks: Sequence[str]) -> None:
    """Raise ``StillRead`` if there are sinks: the progress in their targets is that of the old name."""
    if sinks:
        names = ", ".join(map(repr, sinks))
        carrying = f"sink {names} carries it" if len(sinks) == 1 else f"sinks {names} carry it"
        raise StillRead(
            f"{old!r} cannot become {new!r}: {carrying}",
            hint=f"`tidemark drop {' '.join(sinks)}` first; once {new!r} is applied, declare them again with `from: "
            f"{new}`, and with `existing: replace` in `to`, which loads their targets anew",
        )


def begun_renames(applied: Mapping[str, Declaration], tables: Iterable[str]) -> dict[str, str]:
    """Return the old names, by the new ones, of renamed collections whose tables have their old names still."""
    return {
        name: old
        for name, declaration in applied.items()
        if (old := declaration.renamed_from) is not None and old not in applied and old in tables and name not in tables
    }
