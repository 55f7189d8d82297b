from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.clock import SteppedClock
from tidemark.entry_points import UsageParser, exit_code_of, parse_interval, write_report
from tidemark.errors import Unreachable, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.report import Report
    from tidemark.settings import Settings


def test_wrong_arguments_exit_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    parser = UsageParser(prog="application")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--no-such-option"])
    assert ended.value.code == ExitCode.USAGE
    assert "--no-such-option" in capsys.readouterr().err


def test_unexpected_error_is_a_bug_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: object) -> int:
        raise KeyError("surprise")

    assert exit_code_of(main, []) == ExitCode.BUG
    assert "KeyError: 'surprise'" in capsys.readouterr().err


def test_exit_code_of_a_run_that_ended_is_passed_on() -> None:
    assert exit_code_of(len, ["a", "b"]) == 2


def test_interval_is_utc_unless_it_says_otherwise() -> None:
    day = Interval(1_356_998_400_000, 1_357_084_800_000)
    assert parse_interval("2013-01-01", "2013-01-02") == day
    assert parse_interval("2013-01-01T00:00:00+00:00", "2013-01-02T02:00:00+02:00") == day


@pytest.mark.parametrize(
    ("start", "end"), [("yesterday", "2013-01-02"), ("P1D", "2013-01-02"), ("2013-01-02", "2013-01-01"), ("", "")]
)
def test_what_is_no_interval_is_a_usage_error(start: str, end: str) -> None:
    with pytest.raises(UsageError):
        parse_interval(start, end)


@pytest.mark.parametrize(("generation", "shown", "code"), [("7", 7, 69), ("seven", 0, 78)])
def test_run_that_never_got_to_a_collection_reports_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: str, shown: int, code: int
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_GENERATION", generation)

    def work(_settings: Settings) -> Report:
        raise Unreachable("no route")

    path = tmp_path / "report.json"
    assert write_report(path, "reconcile", work, clock=SteppedClock(5)) == code
    written = json.loads(path.read_text())
    assert (written["outcome"], written["generation"], written["collections"]) == ("failed", shown, {})


def test_a_store_that_fails_beside_the_collections_is_reported_as_unreachable(tmp_path: Path) -> None:
    def work(settings: Settings) -> Report:
        raise OSError(28, "No space left on device", str(settings.home))

    assert write_report(tmp_path / "r.json", "maintain", work, clock=SteppedClock(5)) == ExitCode.UNREACHABLE
    assert json.loads((tmp_path / "r.json").read_text())["error"]["kind"] == "Unreachable"
