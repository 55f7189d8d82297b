"""What a flush is judged by: everything this deployment has staged, and nothing while it may not publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from tests.support.events import append_numbers, create_events, switch
from tests.support.rows import SCHEMA, correction
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import corrections_branch, list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.staged.slices import Slice, slice_text
from tidemark.collections.system.status_table import read_status_table
from tidemark.errors import CorruptState
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.orchestration.metrics import send_staged
from tidemark.orchestration.results import show_result
from tidemark.orchestration.tasks.flush import list_staged, staged_now
from tidemark.report import CollectionReport, Outcome
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.orchestration.conftest import StatsdServer
    from tidemark.iceberg.shard.shard import Shard


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


def test_that_spark_is_missing_is_a_failure_of_what_is_to_be_flushed(
    staged: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(staged, Mode.READ_WRITE)
    declare(staged, "events", "other")
    monkeypatch.setenv("TIDEMARK_JARS", str(staged.home / "nowhere"))
    with pytest.raises(AirflowFailException, match="ConfigurationInvalid"):
        run(engine="spark", collections=["events"])
    statuses = {each.name: each.status for each in read_status_table(deployment_of(staged))}
    assert statuses == {"events": "stalled", "other": None}


def declare(settings: Settings, *names: str) -> None:
    registry, more = deployment_of(settings).registry, {"kind": "append-only", "schema": "id bigint, name string"}
    registry.replace([Declaration.model_validate({"name": name, **more}) for name in names], seen=registry.read())


def test_what_is_staged_for_a_paused_collection_waits(staged: Settings) -> None:
    switch(staged, Mode.READ_WRITE)
    declare(staged, "events")
    deployment_of(staged).objects.pause(["events"])
    assert run()[1]["names"] == ["other"]
    assert run(collections=["events"]) == ([], {})


@pytest.fixture
def planes(settings: Settings) -> Shard:
    """A differential collection of one row, for which two slices are staged."""
    switch(settings, Mode.READ_WRITE)
    shard = Shards.connect(settings).create("planes", schema=SCHEMA)
    Writer.raise_token(shard, 1).publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=5)
    for start in (0, 10):
        batch = correction(shard.load(), insert=[(start, "b")], time=7)
        branch = corrections_branch(1, (start, start + 10))
        about = slice_text(Slice("day", Range(start, start + 10)))
        stage_whole(shard, batch, branch=branch, lower=5, time=7, digest=None, digest_note="", about=about)
    return shard


def test_corrections_that_are_stale_go_to_spark(planes: Shard) -> None:
    chosen, pushed = run()
    assert chosen == ["flush"]
    assert pushed["plan"]["planes"]["corrections"] == planes.load().staged_branches
    assert pushed["plan"]["planes"]["upper"] == 5
    Writer.join(planes, 1).publish(correction(planes.load(), insert=[(2, "c")], time=5), lower=5, new_upper=6)
    assert run()[0] == ["flush_with_spark"]


def test_corrections_that_are_damaged_are_listed(planes: Shard) -> None:
    table = planes.load().table
    table.append(table.scan().to_arrow(), branch=corrections_branch(1, (0, 10)))
    chosen, pushed = run()
    assert (chosen, len(pushed["plan"]["planes"]["corrections"])) == (["flush_with_spark"], 2)


def test_nothing_staged_is_nothing_to_do(settings: Settings) -> None:
    create_events(settings)
    assert run() == ([], {})


def test_mode_that_changed_back_is_waited_for_by_another_run(staged: Settings) -> None:
    assert run() == ([], {})


def test_what_is_staged_is_measured_and_is_nothing_once_it_is_flushed(staged: Settings, statsd: StatsdServer) -> None:
    switch(staged, Mode.READ_WRITE)
    run()
    sent = statsd.received()
    numbers = {name: sent[f"tidemark.staged.batches,object={name}"] for name in ("events", "other", "empty")}
    assert numbers == {"events": "4|g", "other": "2|g", "empty": "0|g"}
    assert sent["tidemark.staged.age_ms,object=empty"] == "0|g"
    assert 0 <= float(sent["tidemark.staged.age_ms,object=events"].removesuffix("|g")) < 600_000

    shards = Shards.connect(staged)
    flush_all(shards, deployment_of(staged), ["events"], clock=SystemClock())
    flushed = CollectionReport(outcome=Outcome.FLUSHED).to_json()
    show_result.function(
        {"name": "events", "operation": "flush", "generation": 1, **flushed}, outlet_events=OutletEventAccessors()
    )
    sent = statsd.received()
    assert sent["tidemark.staged.batches,object=events"] == "0|g"
    assert "tidemark.staged.batches,object=other" not in sent, "the result is about one collection"


def test_the_age_is_that_of_the_oldest(staged: Settings, statsd: StatsdServer) -> None:
    state = read_state(staged, "events")
    assert state.staged_since_ms is not None
    batches = list_batches(Shards.connect(staged), ["events"])
    assert state.staged_since_ms == min(batch.staged_at_ms for batch in batches)
    send_staged({"events": state, "damaged": CorruptState("no state")}, now_ms=state.staged_since_ms + 5_000)
    assert statsd.received() == {
        "tidemark.staged.batches,object=events": "4|g",
        "tidemark.staged.age_ms,object=events": "5000|g",
    }
