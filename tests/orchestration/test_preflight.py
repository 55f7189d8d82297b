"""What is checked before a JVM starts: the catalog has a leader, and it is no newer deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import FENCE_STASH, READ_HEADS
from tidemark.clock import SystemClock
from tidemark.errors import NotLed
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.preflight import prepare_reconcile

if TYPE_CHECKING:
    from pathlib import Path


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
