"""Which collections a run is about, and which of these it leaves out; without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.collections.declarations.collection import Declaration, Kind, OnStaleInput
from tidemark.collections.declarations.selection import choose
from tidemark.collections.isolation import skipped
from tidemark.collections.sources.formats.frame import BY_A_PROGRAM
from tidemark.errors import UsageError
from tidemark.report import HANDED_OVER, SKIPPED_BECAUSE, CollectionReport, Outcome


def choose_declarations(declared: Mapping[str, Declaration], words: Sequence[str]) -> dict[str, Declaration]:
    """Return the declarations that ``words`` select, by name; without words all differential ones.

    Rules leave out append-only collections.

    Raises:
        UnknownCollection: If a name is not declared.
        UsageError: If a named collection is append-only, or no differential one is selected.
    """
    chosen = choose(declared, words, lambda each: each.kind is Kind.DIFFERENTIAL, require=_require_differential)
    return {declaration.name: declaration for declaration in chosen}


def _require_differential(declaration: Declaration) -> None:
    name = declaration.name
    if declaration.kind is not Kind.DIFFERENTIAL:
        raise UsageError(
            f"{name!r} is {declaration.kind}: it keeps what arrives, and is made equal to nothing",
            hint=f"use `tidemark buffer ingest {name}`"
            if declaration.reads_buffer
            else f"use `tidemark append {name}`",
        )


def skip_stale(declaration: Declaration, inputs: Mapping[str, CollectionReport]) -> CollectionReport | None:
    """Return the report of a collection that is skipped, since one that it reads is not right; None if it is run.

    ``inputs`` are the reports of this run by collection, of those that the collection reads.
    """
    stale = [name for name, report in inputs.items() if report.error or _is_left_out(report)]
    if not stale or declaration.on_stale_input is OnStaleInput.GO_ON:
        return None
    return skipped(f"it reads {', '.join(stale)}, which this run could not make equal to its source")


def _is_left_out(report: CollectionReport) -> bool:
    return SKIPPED_BECAUSE in report.details and HANDED_OVER not in report.details


def skip_handed_over(declaration: Declaration) -> CollectionReport | None:
    """Return the report of a collection whose rows a program hands over, which no run can read; None of others."""
    if not declaration.is_handed_over:
        return None
    return CollectionReport(outcome=Outcome.SKIPPED, details={SKIPPED_BECAUSE: BY_A_PROGRAM, HANDED_OVER: True})
