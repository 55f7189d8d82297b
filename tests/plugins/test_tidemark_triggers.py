from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.module_loading import import_string
from tidemark_triggers import (
    CaughtUpTrigger,
    ModeSwitchTrigger,
    PartitionClosedTrigger,
    WorkersTrigger,
    WritableTrigger,
)

from tests.conftest import settings_in
from tests.support.clock import SteppedClock
from tests.support.homes import Home
from tests.support.storage_board import show
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode, StoredMode
from tidemark.collections.mode import set_mode
from tidemark.iceberg.shards import Shards
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from airflow.triggers.base import BaseTrigger, TriggerEvent

    from tidemark.settings import Settings

PATIENCE_SECONDS = 30.0


@pytest.fixture
def deployed(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home that Airflow's connections lead to."""
    for name, value in AirflowSettings.read().environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    return home


def switch(settings: Settings, mode: Mode, now_ms: int) -> StoredMode:
    clock = SteppedClock(now_ms)
    deployment = deployment_of(settings, clock=clock)
    return set_mode(Shards.connect(settings), deployment, mode, who="tests", why="a test")


async def next_event(events: AsyncIterator[TriggerEvent]) -> Any:
    return (await asyncio.wait_for(anext(events), PATIENCE_SECONDS)).payload


@pytest.mark.parametrize(
    "trigger",
    [
        WritableTrigger(poll_seconds=0.5),
        CaughtUpTrigger(poll_seconds=5.0),
        ModeSwitchTrigger(poll_seconds=2.0),
        PartitionClosedTrigger(collection="events", partition="2013-01-03T05", poll_seconds=3.0),
        WorkersTrigger(run="run", workers=2, minutes=55, seen={"seen": [0]}),
    ],
)
def test_it_survives_the_way_to_another_process(trigger: BaseTrigger) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**arguments)
    assert type(again) is type(trigger)
    assert again.serialize() == (path, arguments)


def test_it_fires_when_the_mode_ends(deployed: Settings) -> None:
    switch(deployed, Mode.READ_ONLY, 1_000)

    async def wait() -> Any:
        # Two at once, as two triggerers would run them.
        waiting = [asyncio.create_task(next_event(WritableTrigger(poll_seconds=0.01).run())) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(switch, deployed, Mode.READ_WRITE, 2_000)
        return await asyncio.gather(*waiting)

    first, second = asyncio.run(wait())
    assert first == second
    assert (first["mode"], first["since"], first["who"]) == ("read-write", 2_000, "tests")


@pytest.mark.slow  # a table that is really written
def test_it_fires_when_the_partition_is_closed(deployed: Settings, tmp_path: Path) -> None:
    home = Home(deployed, tmp_path)
    home.declare_reader(schema="id bigint, at timestamp", event_time="at", partition="hour")
    home.send(0, b'{"id":1,"at":"1970-01-01T00:10:00"}')
    home.ingest()
    home.clock.step(7_200_000)

    async def wait() -> Any:
        trigger = PartitionClosedTrigger(collection="events", partition="1970-01-01T00", poll_seconds=0.01)
        waiting = asyncio.create_task(next_event(trigger.run()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await asyncio.to_thread(home.ingest)
        return await waiting

    assert asyncio.run(wait())["rows"] == 1


def test_it_fires_when_all_workers_were_replaced_or_have_ended(deployed: Settings) -> None:
    show(deployed, 0, run="run")

    async def wait() -> Any:
        trigger = WorkersTrigger(run="run", workers=2, minutes=55, seen={"seen": [1]}, poll_seconds=0.01)
        waiting = asyncio.create_task(next_event(trigger.run()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await asyncio.to_thread(show, deployed, 0, run="the next")
        return await waiting

    assert asyncio.run(wait())["seen"] == [0, 1]


def test_it_fires_at_once_when_nobody_ever_switched(deployed: Settings) -> None:
    seen = asyncio.run(next_event(WritableTrigger().run()))
    assert (seen["mode"], seen["since"], seen["generation"]) == ("read-write", 0, deployed.generation)


def test_waiting_for_what_can_never_be_ends(deployed: Settings) -> None:
    switch(settings_in(deployed.home, TIDEMARK_GENERATION="2"), Mode.READ_WRITE, 1_000)
    assert asyncio.run(next_event(WritableTrigger().run())) == {"error": "FencedByGeneration"}


def test_missing_connection_ends_the_wait(deployed: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_TIDEMARK_CATALOG")
    assert asyncio.run(next_event(WritableTrigger().run())) == {"error": "ConfigurationInvalid"}


def test_catalog_that_restarts_does_not_end_the_wait(deployed: Settings) -> None:
    switch(deployed, Mode.READ_ONLY, 1_000)
    away = deployed.catalog_path.with_suffix(".away")
    deployed.catalog_path.rename(away)
    deployed.catalog_path.mkdir()  # a database that cannot be opened

    async def wait() -> Any:
        waiting = asyncio.create_task(next_event(WritableTrigger(poll_seconds=0.01).run()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        deployed.catalog_path.rmdir()
        away.rename(deployed.catalog_path)
        await asyncio.to_thread(switch, deployed, Mode.READ_WRITE, 2_000)
        return await waiting

    assert asyncio.run(wait())["since"] == 2_000


class KeptCursor:
    """What Airflow keeps with an asset, in the place of its database: no triggerer runs here."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value


def watcher(store: KeptCursor) -> AsyncIterator[TriggerEvent]:
    trigger = ModeSwitchTrigger(poll_seconds=0.01)
    trigger.asset_state_store = store
    return trigger.run()


def test_every_switch_is_announced_even_one_that_nobody_watched(deployed: Settings) -> None:
    store = KeptCursor()

    async def watch() -> list[Any]:
        events = watcher(store)
        first = asyncio.create_task(next_event(events))
        await asyncio.sleep(0.1)
        assert not first.done(), "what holds when the watch begins is no switch"
        await asyncio.to_thread(switch, deployed, Mode.READ_ONLY, 1_000)
        seen = [await first]
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.to_thread(switch, deployed, Mode.READ_WRITE, 2_000)
        return [*seen, await next_event(watcher(store))]

    # The first watcher was stopped before it could note what it had announced: it is announced again, or what followed.
    seen = asyncio.run(watch())
    assert [event["since"] for event in seen] == [1_000, 2_000]


def test_switch_that_was_announced_already_is_not_announced_again(deployed: Settings) -> None:
    store = KeptCursor()
    store.values["since"] = 1_000
    switch(deployed, Mode.READ_ONLY, 1_000)

    async def watch() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watcher(store)), 0.2)

    asyncio.run(watch())
