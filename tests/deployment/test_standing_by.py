"""A deployment that stands by does all that it does without one change of what the leader owns; its own is kept apart.

Source: reference, collections_catalog_storage §9.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.discarding import discard
from tests.support.durable import contents, everything
from tests.support.storage_workers import Workers
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.holds import take_hold
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.system.findings import read_findings
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.suspension import settle
from tidemark.deployment.readiness import read_readiness
from tidemark.errors import NotWritable, ReadOnly
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import NEVER
from tidemark.ingest.persist.persist import Engine, persist_all
from tidemark.report import SKIPPED_BECAUSE, Outcome
from tidemark.storage.processes.restart import restart_dataflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home


def test_hours_of_runs_change_nothing_of_the_leader(old: Home, new: Home) -> None:
    old.send_rows(0, 4)
    record_run(old.deployment, old.ingest_all(), clock=old.clock)
    before = everything(old)
    for _ in range(5):
        report = settle(new.deployment, new.ingest_all())
        record_run(new.deployment, report, clock=new.clock)
        assert new.run_sink().outcome is Outcome.SKIPPED
        maintain_all(None, new.deployment, [], clock=new.clock)
        read_readiness(new.deployment, clock=new.clock)
        new.clock.step(3_600_000)
    assert everything(old) == before


def test_a_failure_suspends_nothing_of_the_leader(old: Home, new: Home) -> None:
    away = old.folder / "away"
    before = everything(old)
    old.buffer_folder.rename(away)
    report = settle(new.deployment, new.ingest_all())
    record_run(new.deployment, report, clock=new.clock)
    assert report.collections["events"].error is not None
    away.rename(old.buffer_folder)
    assert everything(old) == before


def test_what_cannot_be_staged_is_left_to_the_leader(old: Home, new: Home) -> None:
    maintained = maintain_all(None, new.deployment, [], clock=new.clock)
    declared = new.registry.get("events")
    persisted, _ = persist_all(new.shards, new.deployment, [declared], clock=new.clock, engine=Engine())
    results = [*maintained.collections.values(), *persisted.collections.values()]
    assert {(result.outcome, result.details[SKIPPED_BECAUSE]) for result in results} == {
        (Outcome.SKIPPED, "deployment 2 stands by: the deployment that leads does this")
    }
    assert {*maintained.collections} >= {"events"}
    assert maintain_all(None, old.deployment, ["events"], clock=old.clock).collections["events"].error is None


def test_what_it_stages_is_kept_apart_and_listed(old: Home, new: Home) -> None:
    before = everything(old)
    old.send_rows(0, 4)
    sent = contents(old.buffer_folder)
    new.ingest()
    assert everything(old) == before | {"buffer": sent}
    assert {(batch.generation, batch.rows) for batch in list_batches(new.shards, ())} == {(2, 4)}
    old.ingest()
    assert old.ids() == list(range(old.sent)), "the leader goes on as if nobody else were there"
    assert flush_all(old.shards, old.deployment, (), clock=old.clock).collections["events"].details["waiting"]


def test_what_is_discarded_is_no_longer_caught_up(old: Home, new: Home) -> None:
    old.send_rows(0, 2)
    record_run(new.deployment, settle(new.deployment, new.ingest_all()), clock=new.clock)
    assert {name: found.upper for name, found in read_findings(new.settings).items()} == {"events": old.upper("events")}
    selection = Selection(generation=2)
    assert discard(old.shards, old.deployment, selection, who="ada", why="", clock=old.clock)
    assert not read_findings(new.settings), "the next run finds that the rows are staged again"


OTHERS = """
version: 1
collections:
  others: {kind: append-only, schema: "id bigint"}
"""
REFUSED: dict[str, Callable[[Home], object]] = {
    "pause": lambda home: home.deployment.objects.pause(["events"]),
    "resume": lambda home: home.deployment.objects.resume(["events"]),
    "drop": lambda home: home.deployment.objects.drop(home.deployment.objects.look(["copies"])),
    "flush": lambda home: flush_all(home.shards, home.deployment, (), clock=home.clock),
    "discard": lambda home: discard(
        home.shards, home.deployment, Selection(everything=True), who="ada", why="", clock=home.clock
    ),
    "restart": lambda home: restart_dataflow(home.shards, home.deployment, "events", who="ada", clock=home.clock),
    "hold": lambda home: take_hold(home.shard(), "ada", since=None, expires_at_ms=NEVER, deployment=home.deployment),
}


@pytest.mark.parametrize("change", REFUSED)
def test_changes_are_refused(old: Home, new: Home, change: str) -> None:
    before = everything(old)
    with pytest.raises((ReadOnly, NotWritable)) as refused:
        REFUSED[change](new)
    assert refused.value.exit_code in {76, 77}
    assert everything(old) == before


def test_nothing_is_applied(old: Home, new: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(old)
    old.declarations.write_text(OTHERS)
    monkeypatch.setenv("TIDEMARK_HOME", str(new.settings.home))
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    assert app(["apply", str(old.declarations)]) == 77
    assert everything(old) == before


@pytest.mark.parametrize("look", [["history"], ["get", "deployment"]])
def test_the_catalog_is_read(
    old: Home, new: Home, look: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old.switch(Mode.READ_ONLY)
    before = everything(old)
    shown = []
    for home in (old, new):
        monkeypatch.setenv("TIDEMARK_HOME", str(home.settings.home))
        monkeypatch.setenv("TIDEMARK_GENERATION", str(home.settings.generation))
        assert app(["catalog", *look, "--json"]) == 0
        shown.append(capsys.readouterr().out)
    assert "read-only" in shown[0]
    assert shown[1] == shown[0]
    assert everything(old) == before


def test_an_append_is_staged(old: Home, new: Home) -> None:
    old.declare_writer("gate", writes_to=None)
    before = everything(old)
    rows = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["a"], pa.string())})
    appended = append_rows(
        new.shard("gate"), BatchName("ada", Range(0, 1)), rows, deployment=new.deployment, clock=new.clock
    )
    assert everything(old) == before, appended


def test_its_workers_wait(old: Home, new: Home) -> None:
    old.clock = new.clock = SystemClock()  # type: ignore[assignment]
    old.declare_reader(source={"every": "1s"})
    before = everything(old)
    workers = Workers(new, 1)
    try:
        for _ in range(5):
            workers.turn()
    finally:
        workers.close()
    assert everything(old) == before


@pytest.mark.parametrize("command", ["open", "migrate", "rollback", "emergency"])
def test_its_open_of_the_catalog_is_refused(
    old: Home, new: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    before = everything(old)
    monkeypatch.setenv("TIDEMARK_HOME", str(new.settings.home))
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    assert app(["catalog", command]) == 65
    assert "TIDEMARK_GENERATION=1" in capsys.readouterr().err
    assert everything(old) == before
    assert app(["catalog", "migrate", "--dry-run"]) == 0, "which changes nothing"


def test_a_switch_to_read_only_leaves_the_leaders_sinks_alone(
    old: Home, new: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(new.settings.home))
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    assert app(["mode", "read-only"]) == 0
    old.send_rows(0, 2)
    old.ingest()
    assert old.run_sink().error is None
