"""The first task of a reconcile: arguments, and what is left for Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pendulum

from tidemark.orchestration.tasks.reconcile import interval_of, reconcile_arguments

START, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)


def test_scheduled_run_names_what_is_left_and_its_interval() -> None:
    arguments = reconcile_arguments(["planes"], {"collections": None, "dry_run": False}, interval_of(START, END))
    assert arguments == ["planes", "--interval", "2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"]


def test_an_interval_of_airflow_is_one_of_pendulum() -> None:
    assert interval_of(pendulum.instance(START), pendulum.instance(END)) == interval_of(START, END)


def test_run_without_a_logical_date_has_no_interval() -> None:
    assert interval_of(None, None) is None
    assert interval_of(START, START) is None, "an empty interval names no slice"


def test_params_become_options() -> None:
    params = {"collections": ["a"], "dry_run": True, "full": True, "allow_empty": False, "max_delete_ratio": 0.9}
    assert reconcile_arguments(["planes"], params, None) == [
        "planes", "--dry-run", "--full", "--no-allow-empty", "--max-delete-ratio", "0.9",
    ]  # fmt: skip
