"""`tidemark pause`, `resume` and `drop`: what they say and ask, shapes and exit codes."""

from __future__ import annotations

import io
import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from spark_apps.maintain_collections import main
from tests.support.crash import run_command
from tests.support.homes import Home
from tidemark.cli.app import app
from tidemark.cli.options import current_user
from tidemark.collections.deployment import Mode
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.shards import DROPPED
from tidemark.spark import session

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

YAML = """
version: 1
collections:
  weather: {kind: append-only, schema: "origin string"}
  planes: {kind: differential, schema: "id bigint", source: {format: json, path: planes.json}}
  seats: {kind: differential, schema: "id bigint", source: {inputs: {p: {collection: planes}}, sql: "SELECT id FROM p"}}
"""


class CommandLine:
    """The command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and everything that was printed."""
        self._capsys.readouterr()
        code = app(list(arguments))
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err

    def json(self, *arguments: str) -> tuple[int, Any]:
        self._capsys.readouterr()
        code = app([*arguments, "--json"])
        return code, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def tidemark(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Home
) -> CommandLine:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    place.declare(YAML)
    return CommandLine(capsys)


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path)


def test_a_pause_is_said_by_everybody_who_skips(tidemark: CommandLine, tmp_path: Path) -> None:
    assert tidemark("pause", "weather", "planes", "--why", "a new source") == (
        ExitCode.OK,
        "weather: paused\nplanes: paused\n",
    )
    code, said = tidemark("pause", "weather")
    assert (code, said.startswith("weather: nothing to do: paused since ")) == (ExitCode.OK, True)
    assert f" by {current_user()}: a new source" in said
    file = tmp_path / "rows.csv"
    file.write_text("origin\nEWR\n")
    code, done = tidemark.json("append", "weather", str(file), "--producer", "p", "--range", "0:1")
    assert (code, done["collections"]["weather"]["error"]["kind"]) == (ExitCode.NOT_POSSIBLE, "Paused")
    code, said = tidemark("doctor")
    assert said.count("paused since") == said.count("\npaused  ") == 2, "neither ok nor wrong"
    code, answer = tidemark.json("pause", "weather")
    assert (code, answer["paused"]["weather"]["state"]) == (ExitCode.OK, "paused")
    assert tidemark("resume", "weather")[1].startswith("weather: runs again; it was paused since ")
    assert tidemark("resume", "weather") == (ExitCode.OK, "weather: nothing to do: neither paused nor suspended\n")
    assert tidemark("append", "weather", str(file), "--producer", "p", "--range", "0:1")[0] == ExitCode.OK


def test_unknown_names_get_near_matches(tidemark: CommandLine) -> None:
    for command in (("pause", "wether"), ("resume", "wether"), ("drop", "wether", "--yes")):
        code, answer = tidemark.json(*command)
        assert (code, answer["error"]["kind"]) == (ExitCode.USAGE, "UnknownObject")
        assert "'weather'" in answer["error"]["hint"]


def test_a_drop_needs_a_yes_and_says_what_goes(
    tidemark: CommandLine, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = tidemark("drop", "weather")
    assert (code, "drop collection 'weather': 0 rows of 'weather'" in said, "--yes" in said) == (64, True, True)
    for answer, expected in (("n\n", 130), ("y\n", ExitCode.OK)):
        assert "weather" in place.registry.read().declarations
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        code, said = tidemark("drop", "weather")
        assert (code, "Drop? [y/N]" in said) == (expected, True)
    assert place.shards.names() == ["planes", "seats"]
    code, answer = tidemark.json("resume", "weather")
    assert (code, answer["error"]["kind"]) == (ExitCode.USAGE, "UsageError")
    assert f"by {current_user()}: there is no such object any more" in answer["error"]["message"]
    assert tidemark("drop", "weather", "--yes")[0] == tidemark("pause", "weather")[0] == ExitCode.USAGE
    assert "tidemark apply" in answer["error"]["hint"]
    assert "goes after" in tidemark("doctor")[1]


@pytest.mark.crash
def test_a_killed_drop_is_recorded_by_maintenance(
    tidemark: CommandLine, place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "spark_session", lambda _settings, **_: nullcontext())  # few rows need none
    place.switch(Mode.READ_WRITE)
    assert run_command(place.settings, "drop", "weather", "--yes", point="drop.unrecorded") == FAIL_POINT_EXIT
    assert tidemark("status", "weather")[0] == ExitCode.USAGE, "nobody has recorded it"
    assert main(["--report", str(place.folder / "report.json")]) == ExitCode.OK
    (status,) = tidemark.json("status", "weather")[1]["objects"]
    assert status["status"] == "dropped"


def test_a_switch_to_read_only_names_the_sinks_that_may_still_write(tidemark: CommandLine, place: Home) -> None:
    place.declare(YAML + "sinks: {copies: {from: planes, to: {path: out}, mode: changes}}")
    assert tidemark.json("mode", "read-only")[1]["unfenced"] == []
    (place.folder / "out").write_text("in the way")
    (why,) = tidemark.json("mode", "read-only")[1]["unfenced"]
    assert "'copies'" in why
    assert why in tidemark("mode", "read-only")[1]


def test_a_drop_says_what_is_left_to_maintenance(tidemark: CommandLine, place: Home) -> None:
    place.declare(YAML + "sinks: {copies: {from: planes, to: {path: out}, mode: changes}}")
    shown = tidemark.json("show", "copies")[1]
    assert (shown["kind"], shown["declaration"]["from"]) == ("sink", "planes")
    assert "planes" in tidemark("show", "copies")[1]
    (place.folder / "out").write_text("in the way")
    code, answer = tidemark.json("drop", "copies", "--yes")
    assert (code, [each["name"] for each in answer["dropped"]]) == (ExitCode.OK, ["copies"])
    assert "existing: replace" in tidemark.json("resume", "copies")[1]["error"]["hint"], "its target is still there"
    (why,) = answer["waiting"]
    assert why.startswith("copies: ")


def test_a_drop_of_what_is_read_is_refused_with_the_readers(tidemark: CommandLine, place: Home) -> None:
    code, answer = tidemark.json("drop", "planes", "--yes")
    assert (code, answer["error"]["kind"]) == (ExitCode.USAGE, "StillRead")
    assert answer["error"]["message"] == "collection 'seats' reads 'planes'"
    code, answer = tidemark.json("drop", "planes", "seats", "--yes")
    assert (code, [each["table"] for each in answer["dropped"]]) == (ExitCode.OK, ["planes_1", "seats_2"])
    assert place.shards.names(DROPPED) == ["planes_1", "seats_2"]


def test_a_read_only_deployment_refuses(tidemark: CommandLine, place: Home) -> None:
    place.switch(Mode.READ_ONLY)
    for command in (("pause", "weather"), ("resume", "weather"), ("drop", "weather", "--yes")):
        code, answer = tidemark.json(*command)
        assert (code, answer["error"]["kind"]) == (ExitCode.FENCED, "ReadOnly")
