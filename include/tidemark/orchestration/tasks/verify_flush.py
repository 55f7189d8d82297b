"""Checks by the stored state alone, whatever a report says, that everything that was staged is visible now; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemark.errors import NotPossible
from tidemark.frontier import Frontier, frontier_json
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Outcome

Ranges = dict[str, list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCollection:
    """What is staged for one collection; corrections have no ``ranges``."""

    ranges: Ranges = field(default_factory=dict)
    in_buffer: Ranges = field(default_factory=dict)  # that an ingest has read: what goes unpublished is read again
    corrections: dict[str, int] = field(default_factory=dict)  # branches, and the snapshots they point at
    upper: int | str | None = None  # at that time; None: not known
    batches: int
    rows: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> StagedCollection:
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedCollection:
    """One collection as it is after the flush."""

    upper: Frontier
    ledgers: Mapping[str, Ledger]
    still: StagedCollection | None = None  # what this deployment still has staged


def verify(
    name: str, planned: StagedCollection, report: Mapping[str, Any] | None, seen: FlushedCollection, *, generation: int
) -> list[dict[str, Any]]:
    """Return the results of one collection for ``show_result``.

    What was published is one result, so that readers hear of it; what is missing is another one, with an error.
    ``planned`` was staged before the flush, ``seen`` is the collection now. ``report`` is the collection's part of the
    flush report; None if an earlier try flushed it and died before the report.
    """
    outcome = Outcome.FLUSHED if not seen.still else Outcome.UNCHANGED
    default = CollectionReport(outcome=outcome, upper=seen.upper, batches=planned.batches, inserted=planned.rows)
    result = {
        "name": name,
        "operation": "flush",
        "generation": generation,
        **(report or default.to_json()),
        "upper": frontier_json(seen.upper),
    }
    published, missing = _divide(planned.ranges, seen.ledgers)
    if SKIPPED_BECAUSE in result.get("details", {}) and not published:  # paused since the list: all of it waits
        return [result]
    rest = {key: value for key, value in result.pop("details", {}).items() if key != "ranges"}
    details = rest | ({"ranges": published} if published else {})
    if published:
        result["outcome"] = Outcome.FLUSHED.value
    if details:
        result["details"] = details
    error = (
        result["error"]
        or _explain_missing(name, planned, missing, seen.still)
        or _explain_corrections(name, planned, seen)
    )
    if error is None:
        return [result]
    failed = {"label": f"{name} (not flushed)", "outcome": Outcome.FAILED.value, "error": error}
    trouble = result | failed | {"details": rest}
    is_visible = published or (planned.corrections and result["outcome"] == Outcome.FLUSHED)
    return [result | {"error": None}, trouble] if is_visible else [trouble]


def _divide(planned: Ranges, ledgers: Mapping[str, Ledger]) -> tuple[Ranges, Ranges]:
    """Return the published and the missing parts of ``planned``; a planned range may be many batches that touch."""
    published: Ranges = {}
    missing: Ranges = {}
    for producer, ranges in planned.items():
        found, lacking = _parts(ledgers.get(producer, Ledger()), ranges)
        if found:
            published[producer] = [list(part) for part in found]
        if lacking:
            missing[producer] = [list(part) for part in lacking]
    return published, missing


def _parts(ledger: Ledger, ranges: Sequence[Sequence[int]]) -> tuple[list[Range], list[Range]]:
    """Return the parts of ``ranges`` in ``ledger``, and the parts that ``ledger`` lacks, in order."""
    # Loads pyiceberg, which a DAG file must not when it is parsed.
    from tidemark.collections.append.interval import shared_parts  # noqa: PLC0415

    wanted = [Range(start, end) for start, end in ranges]
    return [part for range_ in wanted for part in shared_parts(ledger, range_)], [
        part for range_ in wanted for part in ledger.holes(range_)
    ]


def _explain_missing(
    name: str, planned: StagedCollection, missing: Ranges, still: StagedCollection | None
) -> dict[str, Any] | None:
    """Return an error if a planned range is not published: it is still staged, or it is lost."""
    staged = still.ranges if still else {}
    waiting: list[str] = []
    lost: list[str] = []
    for producer, ranges in missing.items():
        still_staged, unstaged = _parts(Ledger(tuple(Range(*pair) for pair in staged.get(producer, []))), ranges)
        waiting += [f"{producer} {part}" for part in still_staged]
        _, gone = _parts(Ledger(tuple(Range(*pair) for pair in planned.in_buffer.get(producer, []))), unstaged)
        lost += [f"{producer} {part}" for part in gone]
    return _missing_error(name, lost, waiting, again="append it again")


def _explain_corrections(name: str, planned: StagedCollection, seen: FlushedCollection) -> dict[str, Any] | None:
    """Return an error if planned corrections are still staged, or went without a commit of the collection.

    Whatever publishes or supersedes corrections moves the upper in the same commit.
    """
    still = seen.still.corrections.items() if seen.still else ()
    waiting = [branch for branch, snapshot_id in planned.corrections.items() if (branch, snapshot_id) in still]
    has_moved = planned.upper != frontier_json(seen.upper)
    lost = [] if has_moved else [branch for branch in planned.corrections if branch not in waiting]
    return _missing_error(name, lost, waiting, again=f"run `tidemark reconcile {name}`")


def _missing_error(name: str, lost: Sequence[str], waiting: Sequence[str], *, again: str) -> dict[str, Any] | None:
    if lost:
        error = NotPossible(
            f"{name!r}: {', '.join(lost)} was staged, and is neither staged nor published any more",
            hint=f"unless somebody discarded it on purpose, {again}",
        )
    elif waiting:
        error = NotPossible(
            f"{name!r}: {', '.join(waiting)} is still staged after the flush", hint=f"see `tidemark staged {name}`"
        )
    else:
        return None
    return ErrorReport.of(error).to_json()
