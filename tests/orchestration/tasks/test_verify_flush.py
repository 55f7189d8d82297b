from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.errors import DamagedBatch, StaleCorrections
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.orchestration.tasks.verify_flush import FlushedCollection, StagedCollection, verify
from tidemark.report import CollectionReport, ErrorReport, Outcome

if TYPE_CHECKING:
    from tidemark.orchestration.tasks.verify_flush import Ranges

PLANNED = StagedCollection(ranges={"p": [[0, 4], [6, 8]]}, batches=2, rows=6, size_bytes=100)
FLUSHED = CollectionReport(outcome=Outcome.FLUSHED, lower=10, upper=20, inserted=6, batches=2).to_json()


def results(
    report: dict[str, Any] | None,
    *published: tuple[int, int],
    staged: Ranges | None = None,
    planned: StagedCollection = PLANNED,
) -> list[Any]:
    ledger = Ledger(tuple(Range(*bounds) for bounds in published))
    still = StagedCollection(ranges=staged, batches=1, rows=1, size_bytes=1) if staged else None
    seen = FlushedCollection(upper=20, ledgers={"p": ledger}, still=still)
    return verify("events", planned, report, seen, generation=1)


def test_what_was_staged_is_published() -> None:
    [result] = results(FLUSHED, (0, 10))
    assert (result["outcome"], result["error"], result["upper"]) == ("flushed", None, 20)
    assert result["details"] == {"ranges": PLANNED.ranges}
    assert (result["name"], result["operation"], result["inserted"]) == ("events", "flush", 6)


def test_what_a_lost_try_published_is_told_too() -> None:
    [result] = results(None, (0, 4), (6, 8))
    assert (result["outcome"], result["inserted"], result["details"]["ranges"]) == ("flushed", 6, PLANNED.ranges)
    unchanged = CollectionReport(outcome=Outcome.UNCHANGED, lower=20, upper=20).to_json()
    [again] = results(unchanged, (0, 4), (6, 8))
    assert (again["outcome"], again["details"]["ranges"]) == ("flushed", PLANNED.ranges)


def test_trouble_with_one_batch_does_not_hide_the_other() -> None:
    error = ErrorReport.of(DamagedBatch("a branch is damaged", hint="append it again"))
    report = CollectionReport(outcome=Outcome.FLUSHED, upper=20, inserted=4, batches=1, error=error).to_json()
    good, bad = results(report, (0, 4), staged={"p": [[6, 8]]})
    assert (good["error"], good["details"]) == (None, {"ranges": {"p": [[0, 4]]}})
    assert (bad["label"], bad["outcome"]) == ("events (not flushed)", "failed")
    assert bad["error"]["kind"] == "DamagedBatch"
    assert "details" not in bad or "ranges" not in bad["details"]


def test_what_was_paused_since_the_list_waits() -> None:
    paused = CollectionReport(outcome=Outcome.SKIPPED, details={"skipped_because": "paused"}).to_json()
    [result] = results(paused, staged=PLANNED.ranges)
    assert (result["outcome"], result["error"], result["details"]) == ("skipped", None, {"skipped_because": "paused"})


HOURS = StagedCollection(ranges={"p": [[0, 3]]}, batches=3, rows=3, size_bytes=100)  # 0:1, 1:2 and 2:3, which touch


def test_batches_around_one_that_stays_staged_are_told() -> None:
    error = ErrorReport.of(DamagedBatch("a branch is damaged", hint="append it again"))
    report = CollectionReport(outcome=Outcome.FLUSHED, upper=20, inserted=2, batches=2, error=error).to_json()
    good, bad = results(report, (0, 1), (2, 3), staged={"p": [[1, 2]]}, planned=HOURS)
    assert (good["outcome"], good["error"], good["details"]) == ("flushed", None, {"ranges": {"p": [[0, 1], [2, 3]]}})
    assert (bad["outcome"], bad["error"]["kind"]) == ("failed", "DamagedBatch")


def test_published_around_a_wider_plan_is_told_only_as_far_as_it_was_planned() -> None:
    [result] = results(FLUSHED, (-5, 9), planned=HOURS)
    assert result["details"]["ranges"] == {"p": [[0, 3]]}


def test_of_batches_that_touch_only_the_one_that_vanished_is_called_so() -> None:
    good, bad = results(None, (0, 1), staged={"p": [[1, 2]]}, planned=HOURS)
    assert good["details"]["ranges"] == {"p": [[0, 1]]}
    assert "p [2, 3) was staged, and is neither staged nor published" in bad["error"]["message"]
    assert "[1, 2)" not in bad["error"]["message"]


def test_range_that_vanished_is_said_aloud() -> None:
    good, bad = results(FLUSHED, (0, 4))
    assert good["details"]["ranges"] == {"p": [[0, 4]]}
    assert "p [6, 8) was staged, and is neither staged nor published" in bad["error"]["message"]


def test_range_that_the_next_ingest_reads_again_is_not_lost() -> None:
    ingested = replace(PLANNED, in_buffer={"p": [[6, 8]]})
    [result] = results(FLUSHED, (0, 4), (6, 7), planned=StagedCollection.parse(ingested.to_json()))
    assert (result["error"], result["details"]["ranges"]) == (None, {"p": [[0, 4], [6, 7]]})
    _, bad = results(FLUSHED, (1, 4), planned=ingested)
    assert "p [0, 1) was staged, and is neither staged nor published" in bad["error"]["message"]


def test_range_that_still_waits_is_an_error() -> None:
    [bad] = results(FLUSHED, staged=PLANNED.ranges)
    assert "still staged after the flush" in bad["error"]["message"]


ONE, OTHER = "staged/1/reconcile/0:10", "staged/1/reconcile/10:20"
SLICES = StagedCollection(corrections={ONE: 7, OTHER: 8}, upper=10, batches=2, rows=3, size_bytes=10)


def results_of_slices(
    report: dict[str, Any] | None, still: dict[str, int] | None = None, *, upper: int = 20
) -> list[dict[str, Any]]:
    left = StagedCollection(corrections=still, batches=1, rows=1, size_bytes=1) if still else None
    seen = FlushedCollection(upper=upper, ledgers={}, still=left)
    return verify("planes", SLICES, report, seen, generation=1)


@pytest.mark.parametrize("report", [FLUSHED, None])
def test_corrections_have_no_ranges(report: dict[str, Any] | None) -> None:
    [result] = results_of_slices(report)
    assert (result["outcome"], result["error"], "details" in result) == ("flushed", None, False)


def test_slice_that_was_staged_again_meanwhile_was_flushed() -> None:
    [result] = results_of_slices(FLUSHED, {ONE: 9})
    assert result["error"] is None


def test_slice_that_stays_is_told_beside_those_that_are_published() -> None:
    error = ErrorReport.of(StaleCorrections("they do not fit", hint="tidemark reconcile planes"))
    report = CollectionReport(outcome=Outcome.FLUSHED, upper=20, inserted=4, batches=1, error=error).to_json()
    good, bad = results_of_slices(report, {OTHER: 8})
    assert (good["outcome"], good["error"]) == ("flushed", None)
    assert (bad["label"], bad["error"]["kind"]) == ("planes (not flushed)", "StaleCorrections")


@pytest.mark.parametrize("report", [FLUSHED, None])
def test_slice_that_is_still_staged_is_an_error_whatever_the_report_says(report: dict[str, Any] | None) -> None:
    *_, bad = results_of_slices(report, {OTHER: 8})
    assert f"{OTHER} is still staged after the flush" in bad["error"]["message"]
    assert ONE not in bad["error"]["message"]


def test_slice_that_went_without_a_commit_is_said_aloud() -> None:
    *_, bad = results_of_slices(None, {OTHER: 8}, upper=10)
    assert f"{ONE} was staged, and is neither staged nor published" in bad["error"]["message"]
    assert "run `tidemark reconcile planes`" in bad["error"]["hint"]


@pytest.mark.parametrize("planned", [PLANNED, SLICES])
def test_plan_survives_the_way_through_xcom(planned: StagedCollection) -> None:
    assert StagedCollection.parse(json.loads(json.dumps(planned.to_json()))) == planned
