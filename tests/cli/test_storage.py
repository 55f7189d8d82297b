"""`tidemark storage`, as a person types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.homes import Home
from tests.support.storage_board import show
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


class Answer(NamedTuple):
    code: int
    out: str
    error: str


@pytest.fixture
def declared(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    found = Home(home, tmp_path)
    found.declare_reader(source={"every": "1s"})
    return found


@pytest.fixture
def tidemark(declared: Home, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app(["storage", *arguments])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_run_until_nothing_waits(declared: Home, tidemark: Any, workers: int) -> None:
    declared.send_rows(0, 5)
    declared.send_rows(1, 5)
    assert tidemark("run", "--workers", str(workers), "--until-drained", "--for", "60s").code == 0
    assert declared.ids() == list(range(10))
    view = json.loads(tidemark("status", "--json").out)
    assert [each["state"] for each in view["workers"]] == ["ended: nothing was left to do"] * workers
    assert [(each["name"], each["state"]) for each in view["objects"]] == [("events", "not run: no worker")]


def test_status_shows_what_nobody_runs_and_why(declared: Home, tidemark: Any) -> None:
    declared.declare_reader("unpaced", source={"table": "u"})
    declared.declare_reader("others", source={"table": "t", "every": "1s"})
    declared.deployment.objects.pause(["others"], why="a check")
    view = json.loads(tidemark("status", "--json").out)
    states = {each["name"]: each["state"] for each in view["objects"]}
    assert (view["workers"], [*states]) == ([], ["events", "others"])
    assert states["events"] == "not run: no worker"
    assert states["others"].startswith("paused since") and states["others"].endswith("a check")  # noqa: PT018
    assert "tidemark storage run" in tidemark("status").out


def test_status_with_a_worker_shows_the_worker(declared: Home, tidemark: Any) -> None:
    show(declared.settings, 0, "events")
    shown = tidemark("status")
    assert shown.code == 0
    assert "running" in shown.out


def test_what_cannot_be_is_refused_with_what_to_do(declared: Home, tidemark: Any) -> None:
    declared.apply(declared.declaration("planes"))
    for arguments, code, told in (
        (("run", "--worker", "2", "--workers", "2"), ExitCode.USAGE, "no worker 2"),
        (("run", "--for", "soon"), ExitCode.USAGE, "'soon'"),
        (("suspend", "events", "--for", "2h"), ExitCode.USAGE, "longer than an hour"),
        (("suspend", "events", "--for", "0s"), ExitCode.USAGE, "no rest"),
        (("suspend", "planes"), ExitCode.USAGE, "reads no write buffer"),
        (("suspend", "evens"), ExitCode.USAGE, "events"),
        (("restart", "evens"), ExitCode.USAGE, "events"),
        (("restart", "events"), ExitCode.NOT_POSSIBLE, "no storage worker runs 'events'"),
    ):
        answer = tidemark(*arguments)
        assert answer.code == code, (arguments, answer)
        assert told in answer.error, (arguments, answer)
        assert "→" in answer.error


def test_a_suspended_object_rests_until_its_time_or_a_restart(declared: Home, tidemark: Any) -> None:
    assert "tried again at" in tidemark("suspend", "events", "--for", "10m").out
    assert "events" in declared.deployment.objects.read()
    assert "runs again" in tidemark("restart", "events").out
    assert declared.deployment.objects.read() == {}


def test_a_restart_leaves_a_pause_to_whoever_resumes(declared: Home, tidemark: Any) -> None:
    declared.deployment.objects.pause(["events"], why="a check")
    answer = tidemark("restart", "events")
    assert answer.code == ExitCode.NOT_POSSIBLE
    assert "a check" in answer.error
    assert "tidemark resume events" in answer.error
    assert declared.deployment.objects.read()["events"].is_paused
