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

from tidemark.clock import Clock
from tidemark.collections.declarations.lifecycle import Chunks, LifecycleRules
from tidemark.ingest.delivery import RowsInMemory
from tidemark.ingest.partitions.closing import check_late
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.parts.ingesting import Ingesting
from tidemark.ingest.parts.reporting import closing_of, name_of
from tidemark.ingest.parts.shares import Minted, Share
from tidemark.ingest.parts.steps import check_columns, follow, planning_again, reading_of
from tidemark.ingest.persist.limits import OpenRows, as_chunks
from tidemark.ingest.plan import PlannedRange, share_fairly
from tidemark.ingest.range_rows import RowReading, StampedPart, Tally, WaitingTimes, cut_parts
from tidemark.lifecycle.chunks import Action
from tidemark.lifecycle.policy import Snapshot, decide

MOST_BYTES: Final = 256 * 1024 * 1024  # of the rows of one collection in one process
_MOST_CHUNKS: Final = 128
_PIECES: Final = 16  # in which a backlog is read, each with its own time
_STEPS: Final = 64  # of `persist_age`, and a quarter as many of `late_arrive_window`: rows of one step are one piece


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
    """Rows that came at about one time."""

    tally: Tally
    good: pa.Table
    bad: pa.Table

    def add(self, later: _Piece) -> _Piece:
        return _Piece(self.tally.add(later.tally), _join(self.good, later.good), _join(self.bad, later.bad))


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
        return sum(piece.good.nbytes + piece.bad.nbytes for piece in self.pieces)

    def add(self, piece: _Piece, end: int, *, step_ms: int) -> None:
        """Add the rows up to ``end``; those of one step of time become one piece."""
        self.end = end
        if not self.pieces:
            self.pieces.append(piece)
            return
        last = self.pieces[-1]
        before_ms, arrived_ms = last.tally.arrived_ms, piece.tally.arrived_ms
        if before_ms is None or arrived_ms is None or before_ms // step_ms == arrived_ms // step_ms:
            self.pieces[-1] = last.add(piece)
        else:  # a producer's clock may go back
            arrived_ms = max(before_ms, arrived_ms)
            self.pieces.append(piece._replace(tally=replace(piece.tally, arrived_ms=arrived_ms)))


@dataclass(slots=True)
class RowMemory:
    """The rows of one collection that this process holds, by sequencer. For one thread."""

    rules: LifecycleRules
    most_bytes: int = MOST_BYTES
    _rows: dict[int, _Rows] = field(default_factory=dict)
    _reading: RowReading | None = None

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
        waiting = WaitingTimes(run.target.clock.now_ms(), self.rules.late_ms)
        self._reading = replace(reading_of(run, minted, head.table), waiting=waiting)
        ranges = {part.sequencer_id: part for part in minted.ranges_of(share)}
        self._rows = {id_: self._kept(minted, planned) for id_, planned in ranges.items()}
        backlogs = {id_: planned.end - self._rows[id_].end for id_, planned in ranges.items()}
        for id_, count in sorted(share_fairly(backlogs, most_entries).items()):
            self._read(run, ranges[id_], count)
        tallies = [piece.tally for rows in self._rows.values() for piece in rows.pieces]
        check_late(closing_of(run, minted), tallies, collection=run.declaration.name)
        return Held(
            minted=minted.id,
            ends={id_: rows.end for id_, rows in self._rows.items()},
            tallies=tuple(tallies),
            size_bytes=self._size_bytes,
            is_full=self._size_bytes >= self.most_bytes,
        )

    def take(self, minted: Minted, share: Share) -> RowsInMemory | None:
        """Return the rows of all planned numbers of a share; None if they are not held: they are to be read, then."""
        ranges = minted.ranges_of(share)
        found = [self._rows.get(planned.sequencer_id) for planned in ranges]
        if self._reading is None or minted.batches_of(share):
            return None
        pieces: list[_Piece] = []
        for planned, rows in zip(ranges, found, strict=True):
            if rows is None or rows.basis != _Basis.of(minted, planned) or rows.end != planned.end:
                return None
            pieces += rows.pieces
        good, bad = self._reading.no_rows
        return RowsInMemory(
            self._reading,
            pa.concat_tables([good, *(piece.good for piece in pieces)]),
            pa.concat_tables([bad, *(piece.bad for piece in pieces)]),
            [piece.tally for piece in pieces],
        )

    @property
    def _size_bytes(self) -> int:
        return sum(rows.size_bytes for rows in self._rows.values())

    def _kept(self, minted: Minted, planned: PlannedRange) -> _Rows:
        """Return what is held of a sequencer on the present basis."""
        basis, rows = _Basis.of(minted, planned), self._rows.get(planned.sequencer_id)
        is_kept = rows is not None and rows.basis == basis and rows.end <= planned.end
        return rows if rows is not None and is_kept else _Rows(basis, planned.first)

    def _read(self, run: Ingesting, planned: PlannedRange, count: int) -> None:
        """Read so many more entries of a sequencer, unless the memory is full."""
        rows = self._rows[planned.sequencer_id]
        ahead = replace(planned, first=rows.end, end=rows.end + count)
        for part in cut_parts(run.target.log, [ahead], -(-count // _PIECES) or 1):
            if self._size_bytes >= self.most_bytes:
                return
            with planning_again(run):
                piece = self._read_part(run, part)
            rows.add(piece, part.numbers.end, step_ms=_step_ms(self.rules))

    def _read_part(self, run: Ingesting, part: StampedPart) -> _Piece:
        assert self._reading is not None  # noqa: S101 -- for mypy
        with_bad = self._reading.judges_late or not part.has_quarantined
        good, bad = self._reading.no_rows
        piece = _Piece(replace(part.tally, arrived_ms=None), good, bad)
        for good_rows, bad_rows, tally in self._reading.read(part, with_bad=with_bad, reader=run.reader):
            piece = piece.add(_Piece(tally, good_rows.cast(good.schema), bad if bad_rows is None else bad_rows))
        return piece


def _step_ms(rules: LifecycleRules) -> int:
    return max(rules.late_ms * 4 // _STEPS, rules.persist_age_ms // _STEPS, 1)


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


def find_due(run: Ingesting, minted: Minted, held: Sequence[Held], *, clock: Clock) -> str:
    """Return why the held rows of ``minted`` are to be accepted now: a persist would be due; empty if none would.

    Raises ``InputsGone`` if another run closed partitions meanwhile, and late rows are not appended: mint again.
    """
    closing = closing_of(run, minted)
    if closing is None or not minted.planned:
        return ""
    if any(each.is_full for each in held):
        return "a worker holds as much as it may"
    rules, now_ms = closing.rules.lifecycle, clock.now_ms()
    since_ms = [tally.arrived_ms for each in held for tally in each.tallies if tally.arrived_ms is not None]
    if since_ms and now_ms - min(since_ms) >= rules.persist_age_ms:  # bad rows, too, which no partition has
        return f"the oldest entry has been waiting for {rules.persist_age}"
    names = [name_of(run.target.log, planned) for planned in minted.planned]
    counted = closing.advance(run.head, names, [tally for each in held for tally in each.tallies])
    size = OpenRows(sum(each.rows for each in held), sum(each.size_bytes for each in held))
    snapshot = Snapshot(
        collection=run.declaration.name, partitions=as_chunks(run.head, counted.partitions, closing.rules, size)
    )
    decisions = decide(snapshot, rules, now_ms=now_ms)
    due = [each for each in decisions if each.action is Action.PERSIST]
    return f"partition {due[0].partition}: {due[0].reason}" if due else ""
