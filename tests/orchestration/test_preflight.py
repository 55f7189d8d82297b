"""What is checked before a JVM starts: the catalog has a leader, and it is no newer deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowFailException

from tests.conftest import settings_in
from tests.support.homes import Home
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import FENCE_STASH, READ_HEADS
from tidemark.clock import SystemClock
from tidemark.collections.system.status_table import read_status_table
from tidemark.errors import NotLed, Unreachable
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.preflight import maintain_arguments, prepare_maintenance
from tidemark.orchestration.tasks.append import append_small_batches
from tidemark.orchestration.tasks.catalog_migration import check_back_ends
from tidemark.orchestration.tasks.flush import flush_without_jvm, list_staged
from tidemark.orchestration.tasks.reconcile import prepare_reconcile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SET_SHOP = (
    "set TIDEMARK_SOURCE_SHOP_URL, TIDEMARK_SOURCE_SHOP_USER and TIDEMARK_SOURCE_SHOP_PASSWORD, or AIRFLOW_CONN_SHOP"
)


def test_maintenance_takes_names_and_how_long_history_is_kept() -> None:
    assert maintain_arguments({"collections": ["planes"]}) == ["planes"]
    assert maintain_arguments({"collections": None, "history_days": 7}) == ["--history-days", "7"]


def test_nothing_starts_while_the_catalog_is_moved(installation: Path) -> None:
    prepare = prepare_maintenance.function
    arguments = prepare()
    catalog = Catalog.of(load_settings(), clock=SystemClock())
    catalog.open(Direction.ROLLBACK).close()
    run_steps(catalog.ends, Opening(direction=Direction.MIGRATE), (READ_HEADS, FENCE_STASH)).close()
    with pytest.raises(NotLed):
        prepare()
    catalog.open().close()
    assert prepare() == arguments


@pytest.mark.parametrize(
    "task",
    [
        prepare_reconcile.function,
        prepare_maintenance.function,
        lambda: append_small_batches.function(params={"start": "2013-01-01", "end": "2013-01-02"}),
        list_staged.function,
        lambda: flush_without_jvm.function([]),
        check_back_ends.function,
    ],
    ids=["reconcile", "maintain", "append", "list_staged", "flush", "migrate"],
)
def test_nothing_starts_where_nothing_can_be_written(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Callable[[], object]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "file" / "warehouse"))
    with pytest.raises(Unreachable, match=r"the warehouse .* cannot be written"):
        task()


def test_connection_of_a_source_that_is_not_set_is_said_before_spark(installation: Path) -> None:
    source = {"format": "jdbc", "connection": "shop", "dbtable": "planes"}
    installation.mkdir()
    home = Home(settings_in(installation))
    home.apply(home.declaration("planes", source=source))
    with pytest.raises(AirflowFailException, match=r"exit code 78: 'planes': the connection 'shop' is not set"):
        prepare_reconcile.function()
    (status,) = read_status_table(home.deployment)
    assert (status.status, status.hint) == ("stalled", SET_SHOP)


def test_nothing_starts_for_a_deployment_that_was_replaced(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    Catalog.of(load_settings(), clock=SystemClock()).open().close()
    monkeypatch.setenv("TIDEMARK_GENERATION", "1")
    with pytest.raises(AirflowFailException, match="FencedByGeneration"):
        prepare_reconcile.function()


def test_no_move_of_the_catalog_starts_beside_the_leader(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Catalog.of(load_settings(), clock=SystemClock()).open().close()
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    with pytest.raises(AirflowFailException, match="deployment 2 stands by, and a move of the catalog would fence"):
        check_back_ends.function()
