"""The trigger that watches files, by itself: with a folder, an object store, and a triggerer that dies."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.module_loading import import_string
from tidemark_triggers import FILES_CURSOR, FilesTrigger

from tests.support.object_store import object_store
from tidemark.collections.sources.watching import look_at, name_files
from tidemark.errors import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from airflow.triggers.base import TriggerEvent

PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.02
LONG_SECONDS = 20 * POLL_SECONDS  # many looks


class KeptCursor:
    """What Airflow keeps with an asset, in the place of its database: no triggerer runs here."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.answers = True

    async def aget(self, key: str) -> Any:
        self._answer()
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self._answer()
        self.values[key] = value

    def _answer(self) -> None:
        if not self.answers:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))


@pytest.fixture(autouse=True)
def _is_noted_a_look_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_triggers.NOTED_AFTER_SECONDS", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    (made / "a.csv").write_text("a")
    return made


@contextmanager
def watching(store: KeptCursor, *paths: str) -> Iterator[AsyncIterator[TriggerEvent]]:
    trigger = FilesTrigger(collection="orders", paths=list(paths), poll_seconds=POLL_SECONDS)
    trigger.asset_state_store = store  # type: ignore[assignment]  # in its place
    yield trigger.run()


async def next_event(events: AsyncIterator[TriggerEvent]) -> dict[str, Any]:
    payload: dict[str, Any] = (await asyncio.wait_for(anext(events), PATIENCE_SECONDS)).payload
    return payload


async def no_event(events: AsyncIterator[TriggerEvent]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), LONG_SECONDS)


def read(store: KeptCursor, *paths: str) -> None:
    """Note that what is there was announced."""
    store.values[FILES_CURSOR] = name_files(look_at(paths))


def test_it_survives_the_way_to_another_process() -> None:
    path, arguments = FilesTrigger(collection="orders", paths=["/in"], poll_seconds=2.0).serialize()
    again = import_string(path)(**arguments)
    assert type(again) is FilesTrigger
    assert again.serialize() == (path, arguments)


def test_a_new_file_is_announced_once(folder: Path) -> None:
    store = KeptCursor()
    read(store, str(folder))

    async def watch() -> dict[str, Any]:
        with watching(store, str(folder)) as events:
            first = asyncio.create_task(next_event(events))
            await asyncio.sleep(LONG_SECONDS)
            assert not first.done(), "what was announced before is no news"
            (folder / "b.csv").write_text("bb")
            event = await first
            await no_event(events)
            return event

    event = asyncio.run(watch())
    assert (event["collection"], event["files"], event["new"], event["bytes"]) == ("orders", 2, 1, 3)
    assert event["examples"] == [f"file://{folder}/b.csv"]
    assert store.values == {FILES_CURSOR: event["name"]}


def test_what_is_there_at_the_first_look_of_all_is_announced(folder: Path) -> None:
    async def watch() -> dict[str, Any]:
        with watching(KeptCursor(), str(folder)) as events:
            return await next_event(events)

    assert asyncio.run(watch())["files"] == 1


def test_an_event_is_not_lost_if_the_triggerer_dies_right_after_it_or_while_nobody_watches(folder: Path) -> None:
    store = KeptCursor()

    async def die_after_event() -> dict[str, Any]:
        with watching(store, str(folder)) as events:
            event = await next_event(events)
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator
            return event

    read(store, str(folder))
    (folder / "new.csv").write_text("n")
    first = asyncio.run(die_after_event())
    assert not any(store.values.values()), "Airflow may not have stored the event yet"
    assert asyncio.run(die_after_event())["name"] == first["name"]
    (folder / "new.csv").unlink()
    assert asyncio.run(die_after_event())["files"] == 1, "as before, but somebody may have read the other file"


def test_what_another_triggerer_announced_meanwhile_is_not_announced_again(folder: Path) -> None:
    store = KeptCursor()
    read(store, str(folder))

    async def watch() -> None:
        with watching(store, str(folder)) as events:
            await no_event(events)

    async def watch_beside_another() -> None:
        with watching(store, str(folder)) as events:
            waiting = asyncio.create_task(no_event(events))
            await asyncio.sleep(POLL_SECONDS)
            (folder / "b.csv").write_text("b")
            read(store, str(folder))
            await waiting

    asyncio.run(watch())
    asyncio.run(watch_beside_another())


def test_what_cannot_be_listed_and_an_airflow_that_does_not_answer_end_no_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cursor = KeptCursor()

    async def watch() -> list[dict[str, Any]]:
        with watching(cursor, "s3://lake/in") as events:
            first = asyncio.create_task(next_event(events))
            await asyncio.sleep(LONG_SECONDS)
            assert not first.done()
            lake.answers = True
            await asyncio.sleep(LONG_SECONDS)
            assert not first.done()
            cursor.answers = True
            seen = [await first]
            lake.put("lake", "in/b.csv")
            return [*seen, await next_event(events)]

    with object_store() as lake:
        for name, value in lake.environment.items():
            monkeypatch.setenv(name, value)
        lake.put("lake", "in/a.csv")
        lake.answers = cursor.answers = False
        seen = asyncio.run(watch())
    assert [event["files"] for event in seen] == [1, 2]
    assert seen[1]["examples"] == ["s3://lake/in/b.csv"]


def test_what_airflow_may_not_have_stored_yet_is_not_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_triggers.NOTED_AFTER_SECONDS", 60.0)

    async def fire_and_die() -> None:
        with watching(cursor, str(folder)) as events:
            await next_event(events)
            await no_event(events)  # some looks more

    cursor = KeptCursor()
    for _ in range(2):  # each triggerer announces what the one before may not have told
        asyncio.run(fire_and_die())
        assert cursor.values[FILES_CURSOR] == ""


def test_whatever_fails_ends_no_watch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ValueError("odd"), RecursionError(), Refused("a pipe")]

    def look(paths: list[str]) -> object:
        if failures:
            raise failures.pop()
        return look_at(paths)

    async def watch() -> None:
        with watching(KeptCursor(), str(folder)) as events:
            assert (await next_event(events))["files"] == 1

    monkeypatch.setattr("tidemark_triggers.look_at", look)
    asyncio.run(watch())
