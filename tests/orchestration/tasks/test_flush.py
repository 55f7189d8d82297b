"""What a flush is judged by: everything this deployment has staged, and nothing while it may not publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.events import append_numbers, create_events, switch
from tidemark.collections.deployment import Mode
from tidemark.iceberg.shards import Shards
from tidemark.orchestration.tasks.flush import list_staged, staged_now
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow  # stores that are really written, again and again


class Pushed:
    """What a task hands on by key; the rest of a task instance is Airflow's."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.values[key] = value


@pytest.fixture
def settings(installation: Path) -> Settings:
    installation.mkdir()
    return Settings.load({"TIDEMARK_HOME": str(installation)})


@pytest.fixture
def staged(settings: Settings) -> Settings:
    """Two collections with batches of two deployments."""
    events, other = create_events(settings), create_events(settings, "other")
    create_events(settings, "empty")
    switch(settings, Mode.READ_ONLY)
    for start, end, producer in ((4, 6, "p"), (0, 4, "p"), (8, 9, "p"), (0, 1, "q")):
        append_numbers(events, settings, start, end, producer=producer)
    append_numbers(other, settings, 0, 2)
    newer = Settings.load({"TIDEMARK_HOME": str(settings.home), "TIDEMARK_GENERATION": "2"})
    append_numbers(other, newer, 5, 9)
    return settings


def run(**params: Any) -> tuple[list[str], dict[str, Any]]:
    pushed = Pushed()
    return list_staged.function(params=params, ti=pushed), pushed.values


def test_ranges_that_touch_are_one_and_other_deployments_do_not_count(staged: Settings) -> None:
    found = staged_now(Shards.connect(staged), staged, [])
    assert {name: (staged.ranges, staged.batches, staged.rows) for name, staged in found.items()} == {
        "events": ({"p": [[0, 6], [8, 9]], "q": [[0, 1]]}, 4, 8),
        "other": ({"p": [[0, 2]]}, 1, 2),
    }


def test_small_batches_are_flushed_without_a_jvm(staged: Settings) -> None:
    switch(staged, Mode.READ_WRITE)
    chosen, pushed = run()
    assert (chosen, pushed["names"], sorted(pushed["plan"])) == (["flush"], ["events", "other"], ["events", "other"])
    assert run(engine="spark", collections=["other"])[0] == ["flush_with_spark"]


def test_nothing_staged_is_nothing_to_do(settings: Settings) -> None:
    create_events(settings)
    assert run() == ([], {})


def test_mode_that_changed_back_is_waited_for_by_another_run(staged: Settings) -> None:
    assert run() == ([], {})
