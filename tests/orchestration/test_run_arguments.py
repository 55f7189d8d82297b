from __future__ import annotations

from datetime import UTC, datetime

from include.orchestration.run_arguments import maintain_arguments, reconcile_arguments

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
