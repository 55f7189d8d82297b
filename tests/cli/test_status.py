"""`tidemark status`, and the collections of the system under the other commands, as a person types them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

DECLARATION = """
version: 1
collections:
  events:
    kind: append-only
    schema: "id int, name string"
    expect: {not_null: [name]}
"""


class Answer(NamedTuple):
    code: int
    json: Any


@pytest.fixture
def tidemark(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """The command line, in a home where `events` is declared."""
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app([*arguments, "--json"])
        return Answer(code, json.loads(capsys.readouterr().out))

    (tmp_path / "collections.yaml").write_text(DECLARATION)
    assert run("apply", str(tmp_path / "collections.yaml")).code == 0
    return run


def append(tidemark: Any, folder: Path, number: int, line: str) -> Answer:
    (folder / "rows.csv").write_text(f"id,name\n{line}\n")
    range_ = f"{number}:{number + 1}"
    found: Answer = tidemark("append", "events", str(folder / "rows.csv"), "--producer", "p", "--range", range_)
    return found


def test_from_never_run_to_stalled(tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (before,) = tidemark("status").json["objects"]
    assert (before["name"], before["kind"], before["status"]) == ("events", "collection", None)
    assert app(["status"]) == ExitCode.OK
    assert "never run" in capsys.readouterr().out
    assert append(tidemark, tmp_path, 0, "1,ada").code == ExitCode.OK
    assert append(tidemark, tmp_path, 1, "2,").code == ExitCode.REFUSED
    (after,) = tidemark("status", "events").json["objects"]
    assert (after["status"], after["rows"]) == ("stalled", 1)
    assert after["reason"].startswith("ExpectationFailed: ")
    assert tidemark("status", "evnts").code == ExitCode.USAGE


def test_the_collections_of_the_system_are_read_like_any_other(
    tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tidemark, tmp_path, 0, "1,ada")
    assert [row["status"] for row in tidemark("read", "system_status").json["rows"]] == ["running"]
    assert tidemark("read", "system_statistics").json["rows"][0]["operation"] == "append"
    shown = tidemark("show", "system_status").json
    assert (shown["rows"], shown["declaration"]["retention"]["last_n"]) == (1, 20)
    assert [each["name"] for each in tidemark("collections").json["collections"]] == ["events"]
    everything = tidemark("collections", "--all").json["collections"]
    assert [each["name"] for each in everything] == ["events", "system_status", "system_statistics"]
    assert tidemark("compact", "system_status").code == ExitCode.OK
    refused = tidemark("append", "system_status", str(tmp_path / "rows.csv"), "--producer", "p", "--range", "1:2")
    assert refused.code == ExitCode.USAGE
    capsys.readouterr()


def test_nobody_declares_such_a_name(tidemark: Any, tmp_path: Path) -> None:
    (tmp_path / "collections.yaml").write_text(DECLARATION.replace("events", "system_events"))
    refused = tidemark("apply", str(tmp_path / "collections.yaml"))
    assert refused.code == ExitCode.CONFIGURATION
    assert "names that begin with 'system_' are kept" in refused.json["error"]["message"]


def test_what_a_person_does_is_a_status_too(tidemark: Any) -> None:
    def shown() -> tuple[str, str | None]:
        (found,) = tidemark("status", "events").json["objects"]
        return found["status"], found["reason"]

    assert tidemark("pause", "events", "--why", "a check").code == ExitCode.OK
    assert shown() == ("paused", "a check")
    assert tidemark("resume", "events").code == ExitCode.OK
    assert shown() == ("starting", None)
    assert tidemark("drop", "events", "--yes").code == ExitCode.OK
    assert shown() == ("dropped", None)
    assert tidemark("status").json == {"objects": []}
    history = sorted(tidemark("read", "system_status").json["rows"], key=lambda row: row["occurred_at"])
    assert [row["status"] for row in history] == ["paused", "starting", "dropped"]


def test_watching_shows_changes_outlives_a_store_that_is_away_and_ends_with_ctrl_c(
    tidemark: Any, home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aside = home.catalog_path.with_suffix(".aside")

    def pause_it() -> None:
        deployment_of(home).objects.pause(["events"])

    def break_it() -> None:
        home.catalog_path.rename(aside)
        home.catalog_path.mkdir()

    def mend_it() -> None:
        home.catalog_path.rmdir()
        aside.rename(home.catalog_path)

    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    waits = iter([pause_it, break_it, mend_it, press_ctrl_c])
    seconds: list[float] = []

    def wait(slept_s: float) -> None:
        seconds.append(slept_s)
        next(waits)()

    monkeypatch.setattr("tidemark.cli.status.sleep", wait)
    assert app(["status", "events", "--watch", "--every", "0.5"]) == ExitCode.OK
    shown = capsys.readouterr()
    told = [line.split()[2] for line in shown.out.splitlines() if line.startswith("events")]
    assert (told, seconds) == (["never", "paused", "paused"], [0.5] * 4)
    assert shown.err.startswith("Unreachable")
