from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.module_loading import import_string
from tidemark_triggers import FencesTrigger, LedTrigger, TombstoneTrigger

from tests.support.homes import Home
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.protocol import FENCE_STASH
from tidemark.catalog.opening.resume import Fences
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from tidemark.settings import Settings

PATIENCE_SECONDS = 30.0
UNSET = {"tombstone": None, "epoch": 2, "truth": "stash"}


@pytest.fixture
def opened(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home that Airflow's connections lead to, opened once and never migrated."""
    for name, value in AirflowSettings.read().environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    opened = Home(home)
    opened.open(Direction.ROLLBACK)
    return opened


async def fired(trigger: TombstoneTrigger | LedTrigger | FencesTrigger) -> Any:
    return (await asyncio.wait_for(anext(trigger.run()), PATIENCE_SECONDS)).payload


@pytest.mark.parametrize(
    "trigger",
    [
        TombstoneTrigger(wanted=True, seen=UNSET, poll_seconds=0.5),
        LedTrigger(poll_seconds=0.5),
        FencesTrigger(fences={"stash_epoch": 3}, truths=["stash"], poll_seconds=0.5),
    ],
)
def test_it_survives_the_way_to_another_process(trigger: TombstoneTrigger | LedTrigger | FencesTrigger) -> None:
    path, arguments = trigger.serialize()
    assert import_string(path)(**arguments).serialize() == (path, arguments)


def test_it_fires_when_the_tombstone_is_set(opened: Home) -> None:
    async def wait() -> Any:
        # Two at once, as two triggerers would run them.
        triggers = [TombstoneTrigger(wanted=True, seen=UNSET, poll_seconds=0.01) for _ in range(2)]
        waiting = [asyncio.create_task(fired(trigger)) for trigger in triggers]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(opened.open, Direction.MIGRATE)
        return await asyncio.gather(*waiting)

    first, second = asyncio.run(wait())
    assert first == second == {"tombstone": True, "epoch": 3, "truth": "persist"}


def test_waiting_for_what_can_never_be_ends(opened: Home) -> None:
    for seen, kind in (
        ({"tombstone": None, "epoch": 99}, "NotPossible"),
        ({"tombstone": True, "epoch": 2}, "NotPossible"),
    ):
        trigger = TombstoneTrigger(wanted=False, seen=seen, poll_seconds=0.01)
        assert asyncio.run(fired(trigger)) == {"error": kind}


def test_stash_that_restarts_does_not_end_the_wait(opened: Home) -> None:
    path = opened.settings.home / "stash.db"
    away = path.with_suffix(".away")
    opened.open(Direction.MIGRATE)
    path.rename(away)
    path.symlink_to(path.parent)  # a database that cannot be opened

    async def wait() -> Any:
        waiting = asyncio.create_task(fired(TombstoneTrigger(wanted=True, seen=UNSET, poll_seconds=0.01)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        away.replace(path)  # at once: a stash that is not there at all would end the wait
        return await waiting

    assert asyncio.run(wait())["tombstone"] is True


def test_it_fires_when_somebody_leads_again_and_the_fences_are_seen(opened: Home) -> None:
    opened.die_after(Direction.MIGRATE, FENCE_STASH)
    epoch = opened.epochs()[0] or 0
    wanted = Fences(stash_epoch=epoch + 1, stash_mark="", persist_epoch=epoch + 1, persist_mark="").to_json()

    async def wait() -> Any:
        fences = FencesTrigger(fences=wanted, truths=["stash", "persist"], poll_seconds=0.01)
        waiting = [asyncio.create_task(fired(trigger)) for trigger in (LedTrigger(poll_seconds=0.01), fences)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(opened.open, Direction.ROLLBACK)
        return await asyncio.gather(*waiting)

    led, seen = asyncio.run(wait())
    assert led == {"truth": "stash", "epoch": epoch + 1, "is_led": True}
    assert seen == {"stash_epoch": epoch + 1, "persist_epoch": epoch + 1, "truth": "stash"}
