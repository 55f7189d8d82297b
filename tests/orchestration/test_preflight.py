"""What is checked before a JVM starts: the catalog has a leader, and it is no newer deployment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import FENCE_STASH, READ_HEADS
from tidemark.clock import SystemClock
from tidemark.errors import NotLed
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.preflight import maintain_arguments, prepare_reconcile, reconcile_arguments

if TYPE_CHECKING:
    from pathlib import Path

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


def test_nothing_starts_while_the_catalog_is_moved(installation: Path) -> None:
    prepare = prepare_reconcile.function
    arguments = prepare()
    catalog = Catalog.of(load_settings(), clock=SystemClock())
    catalog.open(Direction.ROLLBACK).close()
    run_steps(catalog.ends, Opening(direction=Direction.MIGRATE), (READ_HEADS, FENCE_STASH)).close()
    with pytest.raises(NotLed):
        prepare()
    catalog.open().close()
    assert prepare() == arguments


def test_nothing_starts_for_a_deployment_that_was_replaced(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    Catalog.of(load_settings(), clock=SystemClock()).open().close()
    monkeypatch.setenv("TIDEMARK_GENERATION", "1")
    with pytest.raises(AirflowFailException, match="FencedByGeneration"):
        prepare_reconcile.function()
