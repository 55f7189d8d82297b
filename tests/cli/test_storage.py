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


class Unsupervised:
    """In the place of ``Supervision``: starts nothing, and has come to its end."""

    def __init__(self, *_: Any) -> None: ...

    def begin(self) -> None: ...

    def look(self) -> bool:
        return False

    def end(self) -> ExitCode:
        return ExitCode.OK


@pytest.fixture
def unsupervised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.storage.processes.supervision.Supervision", Unsupervised)
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.mark.usefixtures("unsupervised")
def test_a_run_says_what_it_starts_and_what_to_declare_if_there_is_nothing(declared: Home, tidemark: Any) -> None:
    started = tidemark("run")
    assert started.out == "storage workers: 2, until Ctrl-C; objects that declare `every`: 1\n"
    declared.declare_reader("others")
    shown = tidemark("run", "--workers", "3", "--for", "5m", "--until-drained").out
    assert shown == "storage workers: 3, for 5m or until nothing waits; objects that declare `every`: 1\n"


@pytest.mark.usefixtures("unsupervised")
def test_a_run_for_which_nothing_is_declared_says_how_to_declare_it(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    assert app(["storage", "run"]) == 0
    shown = capsys.readouterr().out
    assert "objects that declare `every`: 0\n" in shown
    assert "Declare `every: 5s` in the `source`" in shown


@pytest.mark.usefixtures("unsupervised")
@pytest.mark.parametrize("arguments", [["run"], ["status"]])
def test_a_home_that_is_not_there_is_refused_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "hoem"))
    assert app(["storage", *arguments]) == ExitCode.CONFIGURATION
    assert "there is no home" in capsys.readouterr().err
    assert not (tmp_path / "hoem").exists()


def test_a_restart_of_what_no_worker_runs_says_what_is_missing(declared: Home, tidemark: Any) -> None:
    declared.declare_reader("others")
    declared.apply(declared.declaration("planes"))
    assert "→ declare `every: 5s` for 'others', apply it, and start" in tidemark("restart", "others").error
    assert "→ workers run sinks, and collections that read a write buffer" in tidemark("restart", "planes").error
    assert "→ start workers: `tidemark storage run`" in tidemark("restart", "events").error
    show(declared.settings, 1)
    assert "→ worker 0, which decides what runs, is away" in tidemark("restart", "events").error
    show(declared.settings, 0)
    assert "→ the workers begin with it within seconds" in tidemark("restart", "events").error


def test_what_cannot_be_is_refused_with_what_to_do(declared: Home, tidemark: Any) -> None:
    declared.apply(declared.declaration("planes"))
    for arguments, code, told in (
        (("run", "--worker", "2", "--workers", "2"), ExitCode.USAGE, "no worker 2"),
        (("run", "--for", "soon"), ExitCode.USAGE, "'soon'"),
        (("run", "--for", "60"), ExitCode.USAGE, "'60'"),
        (("suspend", "events", "--for", "2h"), ExitCode.USAGE, "longer than an hour"),
        (("suspend", "events", "--for", "0s"), ExitCode.USAGE, "above 0"),
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
