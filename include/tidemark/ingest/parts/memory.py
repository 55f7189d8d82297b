"""Rows in the memory of a process until a persist is due, of collections that declare ``chunks: memory``.

What is held is in no ledger, so that the ledger is the checkpoint: whatever is lost with a process is planned again,
and read again by another one. In the commit all rows count as arrived since they wait in the buffer, so that a persist
is due at the same time, whoever holds them, and however often they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from tidemark.collections.declarations.lifecycle import Chunks
from tidemark.ingest.delivery import RowsInMemory
from tidemark.ingest.partitions.closing import check_late
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.parts.ingesting import Ingesting
from tidemark.ingest.parts.reporting import closing_of, name_of
from tidemark.ingest.parts.shares import Minted, Share
from tidemark.ingest.parts.steps import check_columns, follow, planning_again, reading_of
from tidemark.ingest.persist.limits import OpenRows, as_chunks
from tidemark.ingest.plan import PlannedRange, share_fairly
from tidemark.ingest.range_rows import RowReading, StampedPart, Tally, cut_parts
from tidemark.lifecycle.chunks import Action
from tidemark.lifecycle.policy import Snapshot, decide

_MOST_CHUNKS: Final = 128
_PORTION: Final = 4_096  # entries that are read at once, at most
_PORTION_BYTES: Final = 32 * 1024 * 1024  # of their rows: of larger ones fewer are read at once


@dataclass(slots=True)
class MemoryLimit:
    """How many bytes of rows one process may hold, and how many it holds; collections of several threads share it."""

    of_one: int = 256 * 1024 * 1024  # of one collection
    in_all: int = 1024 * 1024 * 1024  # of all collections
    held: dict[int, int] = field(default_factory=dict)  # by the id of the memory of a collection

    def is_reached(self, memory: int) -> bool:
        """Tell whether a memory is to hold no more; one that holds nothing may always read a portion."""
        own = self.held.get(memory, 0)
        return own >= self.of_one or (own > 0 and sum([*self.held.values()]) >= self.in_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one process holds of a mint, from where the ledger ends. It travels as JSON, and does not have to arrive."""

    minted: str  # the id of the mint
    ends: Mapping[int, int] = field(default_factory=dict)  # by sequencer: the first number that is not held
    tallies: tuple[Tally, ...] = ()
    size_bytes: int = 0
    is_full: bool = False  # whether the process should hold no more

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies)

    def to_json(self) -> dict[str, Any]:
        return {
            "minted": self.minted,
            "ends": {str(id_): end for id_, end in self.ends.items()},
            "tallies": [str(tally) for tally in self.tallies],
            "bytes": self.size_bytes,
            "full": self.is_full,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` wrote."""
        return cls(
            minted=fields["minted"],
            ends={int(id_): end for id_, end in fields["ends"].items()},
            tallies=tuple(Tally.parse(text) for text in fields["tallies"]),
            size_bytes=fields["bytes"],
            is_full=fields["full"],
        )


class _Piece(NamedTuple):
    """Rows that came at one time."""

    tally: Tally
    good: pa.Table
    bad: pa.Table

    @property
    def arrived_ms(self) -> int:
        return self.tally.arrived_ms or 0

    @property
    def size_bytes(self) -> int:
        return int(self.good.nbytes + self.bad.nbytes)

    def add(self, later: _Piece) -> _Piece:
        """Return both, of the time of this one."""
        tally = replace(self.tally.add(later.tally), arrived_ms=self.tally.arrived_ms)
        return _Piece(tally, _join(self.good, later.good), _join(self.bad, later.bad))


def _join(before: pa.Table, after: pa.Table) -> pa.Table:
    """Return both; many small chunks become one, now and then, since that copies all rows."""
    joined = pa.concat_tables([before, after])
    return joined.combine_chunks() if joined.column(0).num_chunks > _MOST_CHUNKS else joined


class _Basis(NamedTuple):
    """What decides how entries become rows: rows are held for as long as none of it changes."""

    log: str
    schema_id: int
    turn: int
    passed_ms: int | None
    start: int
    first: int
    has_quarantined: bool

    @classmethod
    def of(cls, minted: Minted, planned: PlannedRange) -> _Basis:
        of_range = planned.start, planned.first, planned.has_quarantined
        return cls(minted.log, minted.schema_id, minted.turn, minted.passed_ms, *of_range)


@dataclass(slots=True)
class _Rows:
    """The rows of one sequencer."""

    basis: _Basis
    end: int  # the first number that is not held
    pieces: list[_Piece] = field(default_factory=list)  # in order of numbers, and of times

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def add(self, pieces: Iterable[_Piece], end: int) -> None:
        """Add the rows up to ``end``; those that came at one time become one piece."""
        self.end = end
        for piece in pieces:
            if not self.pieces or self.pieces[-1].arrived_ms < piece.arrived_ms:
                self.pieces.append(piece)
            else:  # of the same time, or the clock of a producer went back
                self.pieces[-1] = self.pieces[-1].add(piece)


@dataclass(slots=True)
class RowMemory:
    """The rows of one collection that this process holds, by sequencer. For one thread."""

    collection: str
    limit: MemoryLimit = field(default_factory=MemoryLimit)
    _rows: dict[int, _Rows] = field(default_factory=dict)
    _reading: RowReading | None = None
    _portion: int = _PORTION // 4

    def hold(self, run: Ingesting, minted: Minted, share: Share, *, most_entries: int) -> Held:
        """Read on in the sequencers of a share, ``most_entries`` in all, and return what is held of it.

        What is held of others, or on another basis, is forgotten.

        Raises:
            InputsGone: If the mint does not hold any more: mint again.
            LateRows: If late rows came, and the collection refuses them.
            Others as ``read_batches``.
        """
        follow(run, minted)
        head = run.target.shard.load()
        check_columns(run.target, minted, head)
        self._reading = reading_of(run, minted, head.table)
        ranges = {part.sequencer_id: part for part in minted.ranges_of(share)}
        self._rows = {id_: self._kept(minted, planned) for id_, planned in ranges.items()}
        self._count()
        backlogs = {id_: planned.end - self._rows[id_].end for id_, planned in ranges.items()}
        for id_, count in sorted(share_fairly(backlogs, most_entries).items()):
            self._read(run, ranges[id_], self._rows[id_].end + count)
        tallies = [piece.tally for rows in self._rows.values() for piece in rows.pieces]
        check_late(closing_of(run, minted), tallies, collection=self.collection)
        return Held(
            minted=minted.id,
            ends={id_: rows.end for id_, rows in self._rows.items()},
            tallies=tuple(tallies),
            size_bytes=self.limit.held[id(self)],
            is_full=self.limit.is_reached(id(self)),
        )

    def take(self, minted: Minted, share: Share) -> RowsInMemory | None:
        """Return all planned rows of a share, and let go of all that is held; None if they are to be read anew."""
        ranges, held, reading = minted.ranges_of(share), self._rows, self._reading
        self.forget()
        if reading is None or minted.batches_of(share):
            return None
        pieces: list[_Piece] = []
        for planned in ranges:
            rows = held.get(planned.sequencer_id)
            if rows is None or rows.basis != _Basis.of(minted, planned) or rows.end != planned.end:
                return None
            pieces += rows.pieces
        good, bad = reading.no_rows
        return RowsInMemory(
            reading,
            pa.concat_tables([good, *(piece.good for piece in pieces)]),
            pa.concat_tables([bad, *(piece.bad for piece in pieces)]),
            [piece.tally for piece in pieces],
        )

    def forget(self) -> None:
        """Let go of all rows: they are written, or another process reads them."""
        self._rows = {}
        self.limit.held.pop(id(self), None)

    def _count(self) -> None:
        self.limit.held[id(self)] = sum(rows.size_bytes for rows in self._rows.values())

    def _kept(self, minted: Minted, planned: PlannedRange) -> _Rows:
        """Return what is held of a sequencer on the present basis."""
        basis, rows = _Basis.of(minted, planned), self._rows.get(planned.sequencer_id)
        is_kept = rows is not None and rows.basis == basis and rows.end <= planned.end
        return rows if rows is not None and is_kept else _Rows(basis, planned.first)

    def _read(self, run: Ingesting, planned: PlannedRange, until: int) -> None:
        """Read the entries of a sequencer up to number ``until``, portion by portion, unless the memory is full."""
        rows = self._rows[planned.sequencer_id]
        while rows.end < until and not self.limit.is_reached(id(self)):
            ahead = replace(planned, first=rows.end, end=min(until, rows.end + self._portion))
            [part] = cut_parts(run.target.log, [ahead], self._portion)
            with planning_again(run):
                pieces = self._read_portion(run, part)
            if pieces is None:
                self._portion = max(1, self._portion // 4)
                continue
            self._portion = min(2 * self._portion, _PORTION)
            rows.add(pieces, ahead.end)
            self._count()

    def _read_portion(self, run: Ingesting, part: StampedPart) -> list[_Piece] | None:
        """Return the rows of some entries, by time; None if these are too many at once."""
        assert self._reading is not None  # noqa: S101 -- for mypy
        with_bad = self._reading.judges_late or not part.has_quarantined
        good, bad = self._reading.no_rows
        pieces: list[_Piece] = []
        for good_rows, bad_rows, tally in self._reading.read(part, with_bad=with_bad, reader=run.reader):
            pieces.append(_Piece(tally, good_rows.cast(good.schema), bad if bad_rows is None else bad_rows))
            is_large = sum(piece.size_bytes for piece in pieces) > _PORTION_BYTES
            if is_large and part.numbers.end - part.numbers.start > 1:
                return None
        return pieces


def holds_rows(rules: PartitionRules | None) -> bool:
    """Tell whether storage workers hold the rows of a collection in memory."""
    return rules is not None and rules.lifecycle.chunks is Chunks.MEMORY


def share_in_turn(minted: Minted, workers: Sequence[int]) -> dict[int, Share]:
    """Return the shares of ``workers``: the same ones for as long as neither they nor the sequencers change."""
    places = {id_: place for place, id_ in enumerate(sorted(minted.look.present))}
    chosen: dict[int, list[int]] = {}
    for planned in minted.planned:
        worker = sorted(workers)[places[planned.sequencer_id] % len(workers)]
        chosen.setdefault(worker, []).append(planned.sequencer_id)
    return {worker: Share(sequencers=tuple(sorted(ids))) for worker, ids in sorted(chosen.items())}


def cut_to_held(minted: Minted, held: Iterable[Held]) -> Minted:
    """Return the mint of what is held: the numbers up to there."""
    ends = {id_: end for each in held if each.minted == minted.id for id_, end in each.ends.items()}
    cut = (replace(planned, end=ends.get(planned.sequencer_id, planned.start)) for planned in minted.planned)
    return replace(minted, planned=tuple(planned for planned in cut if planned.start < planned.end))


def find_due(run: Ingesting, minted: Minted, held: Sequence[Held]) -> str:
    """Return why the held rows of ``minted`` are to be accepted now: a persist would be due; empty if none would.

    Raises ``InputsGone`` if another run closed partitions meanwhile, and late rows are not appended: mint again.
    """
    closing = closing_of(run, minted)
    if closing is None or not minted.planned:
        return ""
    if any(each.is_full for each in held):
        return "a worker holds as much as it may"
    rules, now_ms = closing.rules.lifecycle, run.target.clock.now_ms()
    tallies = [tally for each in held for tally in each.tallies]
    if not tallies:  # batches of other collections, or numbers without entries: there is no row to wait with
        return "nothing that was read is of this collection"
    since_ms = [tally.arrived_ms for tally in tallies if tally.arrived_ms is not None]
    if since_ms and now_ms - min(since_ms) >= rules.persist_age_ms:  # bad rows, too, which no partition has
        return f"the oldest entry has been waiting for {rules.persist_age}"
    names = [name_of(run.target.log, planned) for planned in minted.planned]
    counted = closing.advance(run.head, names, tallies)
    size = OpenRows(sum(each.rows for each in held), sum(each.size_bytes for each in held))
    snapshot = Snapshot(
        collection=run.declaration.name, partitions=as_chunks(run.head, counted.partitions, closing.rules, size)
    )
    decisions = decide(snapshot, rules, now_ms=now_ms, slots=0)  # nothing in memory is to be merged
    due = [each for each in decisions if each.action is Action.PERSIST]
    return f"partition {due[0].partition}: {due[0].reason}" if due else ""
