"""The report of one run: one JSON object, written whole or not at all (design §11.3)."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.atomic_files import write_whole
from tidemark.errors import TidemarkError
from tidemark.exit_codes import ExitCode, most_severe
from tidemark.frontier import Frontier, frontier_json

REPORT_VERSION = 1
SUSPENDED = "suspended"  # in the details of a report: how long a collection that failed is left out
HANDED_OVER = "handed_over"  # in the details of a report: that a program hands the rows over, which are not out of date
SKIPPED_BECAUSE = "skipped_because"  # in the details of a report: why a collection was left out
FALLBACK = "fallback"  # in the details of a report: why all rows were compared, and not only what has changed
COMPARED_BECAUSE = "compared_because"  # in the details of a report: why nobody tried to follow the changes of a source
UNNOTICED = "unnoticed"  # in the details of a report: that a source has other rows in a state of the same name
FILES = "files"  # in the details of a report: how many files of the source were read because they came or went
INPUT_COLUMNS = "input_columns"  # in the details of a report: the columns that each input of a query had


class Outcome(StrEnum):
    """What one run did to one collection."""

    CORRECTED = "corrected"
    UNCHANGED = "unchanged"
    STAGED = "staged"
    APPENDED = "appended"
    FORWARDED = "forwarded"  # into a write buffer; visible where it is ingested
    FLUSHED = "flushed"
    CARRIED = "carried"  # by a sink, into its target
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """An error as programs see it; ``sample`` is a bounded list of offending rows."""

    kind: str
    message: str
    hint: str = ""
    sample: list[dict[str, Any]] = field(default_factory=list)
    exit_code: ExitCode = ExitCode.BUG

    @classmethod
    def of(cls, error: TidemarkError) -> ErrorReport:
        return cls(kind=error.kind, message=str(error), hint=error.hint, sample=error.sample, exit_code=error.exit_code)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "hint": self.hint, "sample": self.sample}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """What happened to one collection. Times are ms since the Unix epoch; ``seconds`` is wall time."""

    outcome: Outcome
    lower: Frontier | None = None
    upper: Frontier | None = None
    inserted: int = 0
    retracted: int = 0
    rows_source: int | None = None
    batches: int = 0
    seconds: float = 0.0
    strategy: str = ""
    details: dict[str, Any] = field(default_factory=dict)  # guard overrides, foreign rows dropped, plan samples
    error: ErrorReport | None = None
    object_id: int | None = None  # of the object as the run found it in the catalog: another one may have the name now

    @property
    def exit_code(self) -> ExitCode:
        return self.error.exit_code if self.error else ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome.value,
            "lower": None if self.lower is None else frontier_json(self.lower),
            "upper": None if self.upper is None else frontier_json(self.upper),
            "inserted": self.inserted,
            "retracted": self.retracted,
            "rows_source": self.rows_source,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
            "strategy": self.strategy,
            **({"details": self.details} if self.details else {}),
            "error": self.error.to_json() if self.error else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of one run over any number of collections; a failure of one leaves the results of others alone."""

    operation: str
    started_at: int
    finished_at: int
    generation: int
    collections: dict[str, CollectionReport] = field(default_factory=dict)
    error: ErrorReport | None = None  # ended the whole run before the first collection

    @property
    def exit_code(self) -> ExitCode:
        codes = [collection.exit_code for collection in self.collections.values()]
        return most_severe([*codes, self.error.exit_code] if self.error else codes)

    @property
    def outcome(self) -> str:
        failed = sum(1 for collection in self.collections.values() if collection.error)
        if self.error or (failed and failed == len(self.collections)):
            return "failed"
        return "partial" if failed else "ok"

    def to_json(self) -> dict[str, Any]:
        return {
            "version": REPORT_VERSION,
            "operation": self.operation,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "generation": self.generation,
            "outcome": self.outcome,
            "exit_code": int(self.exit_code),
            "collections": {name: collection.to_json() for name, collection in self.collections.items()},
            "error": self.error.to_json() if self.error else None,
        }

    def write(self, path: Path) -> None:
        """Write the report to ``path``, whole or not at all."""
        write_whole(path, json.dumps(plain(self.to_json()), indent=2, default=str, allow_nan=False))


def join_reports(first: Report, second: Report) -> Report:
    """Return one report of a run that worked in two parts, on different collections, in order of names."""
    collections = dict(sorted({**first.collections, **second.collections}.items()))
    return replace(second, started_at=first.started_at, collections=collections)


def plain(value: object) -> Any:
    """Return ``value`` with types that JSON has; the text of a date or number is what Spark SQL shows."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(plain(key)): plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
