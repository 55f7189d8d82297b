from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pendulum
import pytest

from tidemark.errors import UsageError
from tidemark.interval import Interval
from tidemark.orchestration.tasks.append import append_arguments, wanted_interval

START = datetime(2013, 1, 1, tzinfo=UTC)
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
    arguments = append_arguments({"weather": wanted_interval({}, START, HOUR)})
    assert arguments == ["weather", "--interval-of", "weather", "2013-01-01 00:00:00", "2013-01-01 01:00:00"]
