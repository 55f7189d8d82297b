"""What the processes of one ingest hand to each other: what comes next, who has which share of it, what was written.

All of it travels as JSON, and none of it has to arrive: what is published says the ledger alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tidemark.collections.staged.batches import BatchName
from tidemark.errors import TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest.batches import BatchesSeen, PlannedBatch, PlannedBatches
from tidemark.ingest.buffer_log import Bounds
from tidemark.ingest.partitions.closing import Look
from tidemark.ingest.plan import PlannedRange
from tidemark.ingest.range_rows import Tally
from tidemark.interval import LATEST_MS
from tidemark.report import ErrorReport, plain
from tidemark.write_buffer.keys import Key
from tidemark.write_buffer.ranges import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process writes of a mint: the ranges of some sequencers, and all appended batches or none."""

    sequencers: tuple[int, ...] = ()
    has_batches: bool = False

    def overlaps(self, other: Share) -> bool:
        return bool({*self.sequencers} & {*other.sequencers}) or (self.has_batches and other.has_batches)

    def to_json(self) -> dict[str, Any]:
        return {"sequencers": list(self.sequencers), "batches": self.has_batches}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` wrote."""
        return cls(sequencers=tuple(fields["sequencers"]), has_batches=fields["batches"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Minted:
    """What is to come next, and whatever decides how its rows are judged: every process decides the same by it."""

    id: str  # no other mint has it
    log: str  # the id of the log
    schema_id: int  # of the collection
    turn: int  # of the log
    look: Look
    planned: tuple[PlannedRange, ...] = ()
    batches: PlannedBatches = field(default_factory=PlannedBatches)
    is_whole: bool = False  # whether one process has to write all of it
    read_ms: int = LATEST_MS  # no row of it arrived later
    passed_ms: int | None = None  # partitions that end here, or before, are passed: rows of theirs are late
    keys: Mapping[str, Key] | None = None  # by table; None: none are looked at
    other_attempts: tuple[str, ...] = ()  # branches of attempts before, which the append drops
    dropped: tuple[Mapping[str, str], ...] = ()  # batches that nobody could publish

    def ranges_of(self, share: Share) -> list[PlannedRange]:
        return [part for part in self.planned if part.sequencer_id in share.sequencers]

    def batches_of(self, share: Share) -> tuple[PlannedBatch, ...]:
        return self.batches.batches if share.has_batches else ()

    def batches_to_append(self, share: Share) -> PlannedBatches:
        """Return what a commit of ``share`` says of batches; nothing if there are some, and they are not its own.

        Nobody has then looked at the log of batches, so that no partition is closed.
        """
        return self.batches if share.has_batches or not self.batches.batches else PlannedBatches()

    def to_json(self) -> dict[str, Any]:
        look, seen = self.look, self.look.batches
        return {
            "id": self.id,
            "log": self.log,
            "schema": self.schema_id,
            "turn": self.turn,
            "planned": [asdict(part) for part in self.planned],
            "batches": [_batch_to_json(batch) for batch in self.batches.batches],
            "looked_at": [_name_to_json(name) for name in self.batches.looked_at],
            "refused": list(self.batches.refused),
            "is_whole": self.is_whole,
            "look": {
                "now": look.now_ms,
                "present": {str(id_): list(bounds) for id_, bounds in look.present.items()},
                "begun": {str(id_): number for id_, number in look.begun.items()},
                "batches": [seen.producer, seen.watermark, seen.obstacle, seen.lost],
            },
            "read": self.read_ms,
            "passed": self.passed_ms,
            "keys": None if self.keys is None else {table: list(key) for table, key in self.keys.items()},
            "other_attempts": list(self.other_attempts),
            "dropped": [dict(batch) for batch in self.dropped],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` wrote."""
        look, keys = fields["look"], fields["keys"]
        producer, watermark, obstacle, lost = look["batches"]
        return cls(
            id=fields["id"],
            log=fields["log"],
            schema_id=fields["schema"],
            turn=fields["turn"],
            planned=tuple(PlannedRange(**part) for part in fields["planned"]),
            batches=PlannedBatches(
                batches=tuple(_batch_from_json(batch) for batch in fields["batches"]),
                looked_at=tuple(_name_from_json(name) for name in fields["looked_at"]),
                refused=tuple(fields["refused"]),
            ),
            is_whole=fields["is_whole"],
            look=Look(
                now_ms=look["now"],
                present={int(id_): Bounds(*bounds) for id_, bounds in look["present"].items()},
                begun={int(id_): number for id_, number in look["begun"].items()},
                batches=BatchesSeen(producer=producer, watermark=watermark, obstacle=obstacle, lost=lost),
            ),
            read_ms=fields["read"],
            passed_ms=fields["passed"],
            keys=None if keys is None else {table: tuple(key) for table, key in keys.items()},
            other_attempts=tuple(fields["other_attempts"]),
            dropped=tuple(fields["dropped"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one share on their staging branch; or, with an ``error``, why they are not there."""

    minted: str  # the id of the mint
    share: Share
    branch: str = ""
    snapshot_id: int = 0
    rows: int = 0
    has_bad: bool = False  # whether bad rows lie on the branch of that name of the quarantine
    tallies: tuple[Tally, ...] = ()
    error: ErrorReport | None = None

    @classmethod
    def failed(cls, minted: Minted, share: Share, error: TidemarkError) -> Self:
        """Return the part of a share that could not be written: the others are appended all the same."""
        return cls(minted=minted.id, share=share, error=ErrorReport.of(error))

    def to_json(self) -> dict[str, Any]:
        error = self.error
        return {
            "minted": self.minted,
            "share": self.share.to_json(),
            "branch": self.branch,
            "snapshot": self.snapshot_id,
            "rows": self.rows,
            "has_bad": self.has_bad,
            "tallies": [str(tally) for tally in self.tallies],
            "error": None if error is None else {**plain(error.to_json()), "exit_code": int(error.exit_code)},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` wrote."""
        error = fields["error"]
        return cls(
            minted=fields["minted"],
            share=Share.from_json(fields["share"]),
            branch=fields["branch"],
            snapshot_id=fields["snapshot"],
            rows=fields["rows"],
            has_bad=fields["has_bad"],
            tallies=tuple(Tally.parse(text) for text in fields["tallies"]),
            error=None if error is None else ErrorReport(**{**error, "exit_code": ExitCode(error["exit_code"])}),
        )


def share_out(minted: Minted, workers: Sequence[int], holder: int) -> dict[int, Share]:
    """Return the shares of ``workers``, without those that have nothing to do; batches are the ``holder``'s.

    The largest range goes to whoever has the fewest entries so far, and so on; of equals the smallest number is first.
    """
    entries = dict.fromkeys(sorted({*workers, holder}), 0)
    entries[holder] += sum(batch.entries for batch in minted.batches.batches)
    chosen: dict[int, list[int]] = {worker: [] for worker in entries}
    for part in sorted(minted.planned, key=lambda part: (part.first - part.end, part.sequencer_id)):
        worker = holder if minted.is_whole else min(entries, key=lambda each: (entries[each], each))
        chosen[worker].append(part.sequencer_id)
        entries[worker] += part.end - part.first
    shares = {
        worker: Share(sequencers=tuple(sorted(ids)), has_batches=worker == holder and bool(minted.batches.batches))
        for worker, ids in chosen.items()
    }
    return {worker: share for worker, share in shares.items() if share != Share()}


def _name_to_json(name: BatchName) -> list[Any]:
    return [name.producer, *name.range]


def _name_from_json(fields: Sequence[Any]) -> BatchName:
    producer, *numbers = fields
    return BatchName(producer, Range(*numbers))


def _batch_to_json(batch: PlannedBatch) -> dict[str, Any]:
    places = [[place.sequencer_id, place.start, place.end] for place in batch.places]
    return {**asdict(batch), "name": _name_to_json(batch.name), "places": places}


def _batch_from_json(fields: Mapping[str, Any]) -> PlannedBatch:
    places = tuple(NumberRange(*place) for place in fields["places"])
    return PlannedBatch(**{**fields, "name": _name_from_json(fields["name"]), "places": places})
