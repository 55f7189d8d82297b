"""What a flush reports of the reconciles that it has made; no JVM."""

from __future__ import annotations

from tidemark.collections.reconcile.stale import _joined
from tidemark.report import CollectionReport, ErrorReport, Outcome

STAYS = {"stale": ["staged/1/reconcile/all"], "reasons": {}, "next": "tidemark reconcile b"}
FLUSHED = CollectionReport(
    outcome=Outcome.FAILED, details=STAYS, upper=5, error=ErrorReport(kind="StaleCorrections", message="stale")
)
COMMAND = "tidemark reconcile b"


def test_collection_that_was_reconciled_has_nothing_stale() -> None:
    done = _joined(FLUSHED, {COMMAND: CollectionReport(outcome=Outcome.CORRECTED, upper=7, inserted=2)})
    assert (done.outcome, done.error, done.upper, done.inserted) == (Outcome.FLUSHED, None, 7, 2)
    assert done.details == {"reconciled": [COMMAND]}


def test_collection_whose_reconcile_was_skipped_is_as_stale_as_before() -> None:
    skipped = CollectionReport(outcome=Outcome.SKIPPED, details={"skipped_because": "it reads a"})
    done = _joined(FLUSHED, {COMMAND: skipped})
    assert (done.outcome, done.error) == (FLUSHED.outcome, FLUSHED.error)
    assert done.details == {"reconciled": [COMMAND], "skipped_because": "it reads a", **STAYS}
