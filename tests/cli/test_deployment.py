"""`tidemark deployment`, as a person types it."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer

from tests.support.homes import Home
from tidemark.catalog.items.kinds import DeploymentState
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.system.recorder import record_run
from tidemark.deployment.readiness import read_readiness

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.fixture
def new(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Deployment 2 beside deployment 1, which has three rows in a collection that reads a buffer."""
    old = Home(home, tmp_path, now_ms=SystemClock().now_ms() - 120_000)
    old.declare_reader()
    old.send_rows(0, 3)
    old.ingest()
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    return old.of_generation(2)


@pytest.fixture
def tidemark(new: Home, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = app(["deployment", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def run(new: Home) -> None:
    record_run(new.deployment, new.ingest_all(), clock=new.clock)


def test_status_shows_each_object_and_why_not_yet(new: Home, tidemark: Any) -> None:
    code, out, _ = tidemark("status")
    assert code == 0
    assert "deployment 2 is initializing; deployment 1 leads, and is read-write" in out
    assert "no run of this deployment has looked at it yet" in out
    assert "events: → let this deployment's `ingest_write_buffer` run" in out
    run(new)
    (_, out, _) = tidemark("status", "--json")
    found = json.loads(out)
    assert (found["state"], found["generation"], found["leader"]) == ("ready-to-promote", 2, 1)
    assert [(each["name"], each["state"]) for each in found["objects"]] == [("events", "caught up")]
    assert "Ready: `tidemark deployment promote`" in tidemark("status")[1]


def test_a_promotion_asks_and_publishes_what_was_staged(
    new: Home, tidemark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = tidemark("promote", "--yes")
    assert (code, "NotCaughtUp" in error) == (65, True)
    new.send_rows(1, 2)
    run(new)
    code, _, error = tidemark("promote")
    assert (code, "Deployment **2** is to lead" in error) == (64, True), "nobody is there to be asked"
    assert new.ids() == [0, 1, 2]
    code, out, _ = tidemark("promote", "--yes", "--why", "a new version")
    assert code == 0
    assert "deployment 2 leads since" in out
    assert "promoted from deployment 1: a new version" in out
    assert new.ids() == list(range(5))
    assert "deployment 2 leads, and is read-write" in tidemark("status")[1]
    assert tidemark("promote", "--yes")[0] == 0, "it leads already"
    monkeypatch.setenv("TIDEMARK_GENERATION", "1")
    assert tidemark("status")[0] == 77


def test_a_forced_promotion_needs_a_reason(tidemark: Any) -> None:
    code, _, error = tidemark("promote", "--force", "--yes")
    assert (code, "needs a reason" in error) == (64, True)
    assert tidemark("promote", "--force", "--yes", "--why", "a fire")[0] == 0


def test_json_is_one_document(new: Home, tidemark: Any) -> None:
    new.send_rows(1, 2)
    run(new)
    _, out, _ = tidemark("promote", "--yes", "--json")
    found = json.loads(out)
    assert (found["generation"], found["mode"]) == (2, "read-write")
    assert found["flush"]["collections"]["events"]["outcome"] == "flushed"
    assert SystemClock().now_ms() - found["since"] < 60_000


def test_what_is_applied_while_somebody_thinks_voids_the_answer(
    new: Home, tidemark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(new)
    old, terminal = new.of_generation(1), io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: old.declare_reader(source={"every": "1s"}))
    code, _, error = tidemark("promote")
    assert (code, "it was altered since this deployment's last run over it" in error) == (65, True), error
    assert read_readiness(old.deployment, clock=old.clock).state is DeploymentState.IS_LEADER
