"""How far a target has come, as the target itself has it: whose it is, up to which time, with which columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.schema.types import Column, Type
from tidemark.errors import CorruptState, Fenced, NotPossible, StaleState
from tidemark.frontier import Frontier
from tidemark.iceberg.shard.token import Token


class Owner(NamedTuple):
    """Which sink of which collection a target belongs to; the ids tell them from others of the same names."""

    sink: str
    sink_id: int
    collection: str
    table_uuid: str


class SinkColumn(NamedTuple):
    """A column of the collection: the Iceberg field id stays when the column is renamed or widened."""

    id: int
    name: str
    type: Type

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "type": str(self.type)}

    @classmethod
    def parse(cls, value: dict[str, Any]) -> SinkColumn:
        """Return the column that ``to_json`` wrote. Raises ``ValueError`` or ``KeyError`` for anything else."""
        (column,) = parse_columns(str(Column(value["name"], parse_columns(f"c {value['type']}")[0].type)))
        return cls(int(value["id"]), column.name, column.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the target says of itself, and writes with every transaction.

    Every update at a time below ``time`` is in the target, once; None: nothing was loaded yet. ``epoch`` grows with
    every run, and only the run of the present epoch may write. ``columns`` are those the target has, in its order.
    ``snapshot`` is the snapshot of an append-only collection that was carried, which tells rows that another engine
    appended later at the same time; 0 for other collections.
    """

    owner: Owner
    mode: str
    epoch: int
    generation: int
    time: int | None = None
    snapshot: int = 0
    columns: tuple[SinkColumn, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **self.owner._asdict(),
            "mode": self.mode,
            "epoch": self.epoch,
            "generation": self.generation,
            "time": self.time,
            "snapshot": self.snapshot,
            "columns": [column.to_json() for column in self.columns],
        }

    @classmethod
    def parse(cls, value: dict[str, Any], *, where: str) -> Progress:
        """Return the progress that ``to_json`` wrote; ``where`` names the target. Raises ``CorruptState``."""
        try:
            return cls(
                owner=Owner(*(value[name] for name in Owner._fields)),
                mode=value["mode"],
                epoch=int(value["epoch"]),
                generation=int(value["generation"]),
                time=None if value["time"] is None else int(value["time"]),
                snapshot=int(value["snapshot"]),
                columns=tuple(map(SinkColumn.parse, value["columns"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptState(
                f"the progress in {where} cannot be read: {error!r}", hint="somebody edited it: restore it"
            ) from error


def claim(found: Progress | None, owner: Owner, *, mode: str, generation: int, replaces: bool, where: str) -> Progress:
    """Return the progress that a new run writes in place of ``found``: one epoch further, which fences older runs.

    ``replaces`` says that the declaration lets the sink take over what an earlier sink of its name left.

    Raises:
        NotPossible: If the target belongs to somebody else.
        FencedByGeneration: If a newer deployment wrote the target.
    """
    if found is None:
        return Progress(owner=owner, mode=mode, epoch=1, generation=generation)
    check_owner(found, owner, replaces=replaces, where=where)
    if found.generation > generation:
        raise Fenced.by(mine=Token(generation, 0), theirs=Token(found.generation, found.epoch), where=where)
    if found.owner != owner:
        return Progress(owner=owner, mode=mode, epoch=found.epoch + 1, generation=generation)
    return replace(found, epoch=found.epoch + 1, generation=generation)


def known_columns(before: Progress, after: Progress) -> tuple[SinkColumn, ...]:
    """Return the columns of the target: those of the rows, and those that the collection dropped before."""
    ids = {column.id for column in after.columns}
    return (*after.columns, *(column for column in before.columns if column.id not in ids))


def lag_ms(time: int | None, changed: Frontier | None, *, now_ms: int) -> int | None:
    """Return for how long the first update that the target lacks may have been waiting; None: nothing was loaded yet.

    ``time`` is how far the target has come, and ``changed`` the time after the last change of the collection.
    """
    waits = time is None or (changed is not None and changed > time)
    return 0 if not waits else None if time is None else max(0, now_ms - time)


def check_owner(found: Progress, owner: Owner, *, replaces: bool, where: str) -> None:
    """Refuse a target that belongs to another sink, or to another collection of the same name (``NotPossible``)."""
    theirs = found.owner
    if theirs == owner or (replaces and theirs.sink == owner.sink):
        return
    if theirs.sink == owner.sink and theirs.collection == owner.collection:
        raise NotPossible(
            f"{where} holds the progress of an earlier sink {owner.sink!r}, or of an earlier collection "
            f"{owner.collection!r}: its rows cannot be continued",
            hint="drop the sink, and declare it again with `existing: replace`, which loads all rows anew",
        )
    raise NotPossible(
        f"{where} belongs to the sink {theirs.sink!r} of the collection {theirs.collection!r}",
        hint="give this sink a target of its own, or drop that sink first; if nobody has that sink any more, declare "
        f"one named {theirs.sink!r} with `existing: replace` for this target, run it, and drop it",
    )


def check_epoch(found: Progress | None, mine: Progress, *, where: str) -> None:
    """Refuse to write once another run has claimed the target (``FencedByEpoch``, ``FencedByGeneration``).

    A target checks this under a lock, in the transaction that writes. Where two runs could claim a target that was not
    there under one epoch, the second to write finds the progress of the first (``StaleState``).
    """
    if found is not None and (found.owner, found.epoch) == (mine.owner, mine.epoch):
        if (found.time, found.snapshot) != (mine.time, mine.snapshot):
            raise StaleState(f"another run has written {where} meanwhile", hint="run it again")
        return
    if found is None or found.owner != mine.owner:
        raise NotPossible(f"{where} was given to another sink meanwhile", hint="look at `tidemark sink status`")
    theirs = Token(found.generation, found.epoch)
    raise Fenced.by(mine=Token(mine.generation, mine.epoch), theirs=theirs, where=where)
