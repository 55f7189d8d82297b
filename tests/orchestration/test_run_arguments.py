from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pendulum
import pytest

from tidemark.errors import UsageError
from tidemark.interval import Interval
from tidemark.orchestration.preflight import maintain_arguments, reconcile_arguments
from tidemark.orchestration.tasks.append import append_arguments, wanted_interval

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)


def test_scheduled_run_names_its_interval_and_nothing_else() -> None:
    arguments = reconcile_arguments({"collections": None, "dry_run": False}, START, END)
    assert arguments == ["--interval", "2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"]


def test_run_without_a_logical_date_has_no_interval() -> None:
    assert reconcile_arguments({}, None, None) == []
    assert reconcile_arguments({}, START, START) == [], "an empty interval names no slice"


def test_params_become_options() -> None:
    params = {"collections": ["planes"], "dry_run": True, "allow_empty": False, "max_delete_ratio": 0.9}
    assert reconcile_arguments(params, None, None) == [
        "planes",
        "--dry-run",
        "--no-allow-empty",
        "--max-delete-ratio",
        "0.9",
    ]


def test_maintenance_takes_names_and_how_long_history_is_kept() -> None:
    assert maintain_arguments({"collections": ["planes"]}) == ["planes"]
    assert maintain_arguments({"collections": None, "history_days": 7}) == ["--history-days", "7"]


HOUR = START + timedelta(hours=1)


def test_params_name_the_interval_before_the_schedule_does() -> None:
    for start, end in ((START, HOUR), (pendulum.instance(START), pendulum.instance(HOUR))):  # Airflow's are pendulum's
        assert wanted_interval({}, start, end) == Interval(1_356_998_400_000, 1_357_002_000_000)
    given = {"start": "2013-02-01", "end": "2013-02-01T06:00:00+00:00"}
    assert str(wanted_interval(given, START, HOUR)) == "[2013-02-01 00:00:00, 2013-02-01 06:00:00)"
    assert wanted_interval({"start": None, "end": None}, START, HOUR) == wanted_interval({}, START, HOUR)


@pytest.mark.parametrize(
    ("params", "end"),
    [({}, None), ({}, START), ({"start": "2013-01-01"}, HOUR), ({"start": "2013-01-02", "end": "2013-01-01"}, HOUR)],
    ids=["no interval", "an empty one", "half of one", "reversed"],
)
def test_interval_that_cannot_be_meant_is_refused(params: dict[str, str], end: datetime | None) -> None:
    with pytest.raises(UsageError):
        wanted_interval(params, START, end)


def test_application_is_given_names_and_interval() -> None:
    arguments = append_arguments(["weather"], wanted_interval({}, START, HOUR))
    assert arguments == ["weather", "--interval", "2013-01-01 00:00:00", "2013-01-01 01:00:00"]
