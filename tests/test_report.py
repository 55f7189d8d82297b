from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from tidemark.errors import Fenced, GuardRefused, InputMissing, TidemarkError, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.frontier import EMPTY
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from pathlib import Path

CORRECTED = CollectionReport(outcome=Outcome.CORRECTED, lower=1, upper=2, inserted=3, retracted=1)


def failing(error: TidemarkError) -> CollectionReport:
    return CollectionReport(outcome=Outcome.REFUSED, error=ErrorReport.of(error))


def report(error: TidemarkError | None = None, **collections: CollectionReport) -> Report:
    return Report(
        operation="reconcile",
        started_at=1,
        finished_at=2,
        generation=1,
        collections=collections,
        error=ErrorReport.of(error) if error else None,
    )


def test_one_failure_leaves_the_others_results_alone() -> None:
    mixed = report(planes=CORRECTED, flights=failing(GuardRefused("too many rows vanish")))
    assert (mixed.outcome, mixed.exit_code) == ("partial", ExitCode.REFUSED)
    assert mixed.to_json()["collections"]["planes"]["inserted"] == 3


def test_the_outcome_names_how_much_went_well() -> None:
    assert (report(planes=CORRECTED).outcome, report(planes=CORRECTED).exit_code) == ("ok", ExitCode.OK)
    assert report(planes=failing(InputMissing("no such file"))).outcome == "failed"
    nothing = report(Unreachable("no answer"))
    assert (nothing.outcome, nothing.exit_code) == ("failed", ExitCode.UNREACHABLE)


def test_the_exit_code_is_that_of_the_most_severe_failure() -> None:
    both = report(a=failing(InputMissing("gone")), b=failing(Fenced("a newer attempt leads")), c=CORRECTED)
    assert both.exit_code == ExitCode.FENCED


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "run.json"
    sealed = CollectionReport(outcome=Outcome.UNCHANGED, lower=5, upper=EMPTY)
    written = report(planes=sealed)
    written.write(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content == written.to_json()
    assert content["collections"]["planes"] == {
        "outcome": "unchanged",
        "lower": 5,
        "upper": "empty",
        "inserted": 0,
        "retracted": 0,
        "rows_source": None,
        "batches": 0,
        "seconds": 0.0,
        "strategy": "",
        "error": None,
    }
    assert [each.name for each in path.parent.iterdir()] == ["run.json"], "the temporary name is gone"


def test_samples_hold_what_json_lacks_as_text(tmp_path: Path) -> None:
    row = {"at": datetime(2013, 1, 1, tzinfo=UTC), "price": Decimal("1.50"), "map": {date(2013, 1, 1): float("nan")}}
    written = report(planes=failing(GuardRefused("too many rows vanish", sample=[row])))
    path = tmp_path / "run.json"
    written.write(path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["collections"]["planes"]["error"]["sample"] == [
        {"at": "2013-01-01T00:00:00+00:00", "price": "1.50", "map": {"2013-01-01": "NaN"}}
    ]
