"""`tidemark append`, `staged`, `flush`, `discard` and `mode`: shapes and exit codes."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import settings_in
from tests.support.prepared_folder import PreparedFolder
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.staged.batches import corrections_branch
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.orchestration.status_page.observed import Observer
from tidemark.orchestration.status_page.status import show_status

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

YAML = """
version: 1
collections:
  weather: {kind: append-only, schema: "origin string, temp double"}
  alerts: {kind: append-only, schema: "origin string", on_read_only: reject}
  planes: {kind: differential, source: {format: csv, path: planes.csv, schema: "tailnum string"}}
"""


class Answer(NamedTuple):
    code: int
    json: Any


class Tidemark:
    """The command line in this process, with a home of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch

    def __call__(self, *arguments: str, generation: int = 1) -> Answer:
        self._monkeypatch.setenv("TIDEMARK_GENERATION", str(generation))
        self._capsys.readouterr()
        code = app([*arguments, "--json"])
        return Answer(code, json.loads(self._capsys.readouterr().out))

    def append(self, start: int, end: int, *, name: str = "weather", generation: int = 1) -> Answer:
        path = self.folder / f"{name}-{start}.csv"
        header = "origin,temp" if name == "weather" else "origin"
        values = [f"EWR,{number}" if name == "weather" else "EWR" for number in range(start, end)]
        path.write_text("\n".join([header, *values]) + "\n", encoding="utf-8")
        return self("append", name, str(path), "--producer", "noaa", "--range", f"{start}:{end}", generation=generation)

    def count(self) -> int:
        answer = self("read", "weather")
        assert answer.json["count"] == len(answer.json["rows"])
        return int(answer.json["count"])


@pytest.fixture(scope="module")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    def fill(folder: Path) -> None:
        (folder / "collections.yaml").write_text(YAML, encoding="utf-8")
        (folder / "planes.csv").write_text("N1\n", encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEMARK_HOME", str(folder / "home"))
            assert app(["apply", str(folder / "collections.yaml")]) == ExitCode.OK

    return PreparedFolder(tmp_path_factory.mktemp("applied"), fill)


@pytest.fixture
def folder(applied_once: PreparedFolder) -> Path:
    return applied_once.restored()


@pytest.fixture
def home(folder: Path) -> Settings:
    return settings_in(folder / "home")


@pytest.fixture
def tidemark(
    home: Settings, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tidemark:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    return Tidemark(folder, capsys, monkeypatch)


def test_from_append_to_flush(tidemark: Tidemark) -> None:
    done = tidemark.append(0, 3)
    assert (done.code, done.json["operation"], done.json["outcome"]) == (0, "append", "ok")
    shown = done.json["collections"]["weather"]
    assert (shown["outcome"], shown["inserted"], shown["batches"]) == ("appended", 3, 1)
    assert tidemark.append(0, 3).json["collections"]["weather"]["outcome"] == "skipped"

    mode = tidemark("mode", "read-only", "--why", "upgrade")
    assert {key: mode.json[key] for key in ("mode", "generation", "why")} == {
        "mode": "read-only",
        "generation": 1,
        "why": "upgrade",
    }
    assert tidemark.append(3, 5).json["collections"]["weather"]["outcome"] == "staged"
    [batch] = tidemark("staged").json["batches"]
    assert set(batch) == {"collection", "producer", "range", "generation", "rows", "bytes", "staged_at"}
    assert (batch["collection"], batch["range"], batch["rows"]) == ("weather", [3, 5], 2)
    assert tidemark("staged", "alerts").json == {"batches": []}
    assert tidemark.count() == 3

    refused = tidemark("flush")
    assert (refused.code, refused.json["error"]["kind"]) == (ExitCode.FENCED, "ReadOnly")
    assert tidemark("mode", "read-write").code == 0
    flushed = tidemark("flush")
    assert (flushed.code, flushed.json["collections"]["weather"]["outcome"]) == (0, "flushed")
    assert tidemark.count() == 5
    assert tidemark("flush").json["collections"] == {}
    assert tidemark("show", "weather").json["ledger"] == {"noaa": [[0, 5]]}
    rows = tidemark("read", "weather", "--with-time").json["rows"]
    assert {(row["_producer"], row["_batch"]) for row in rows} == {("noaa", 0), ("noaa", 3)}
    assert tidemark("buffer", "quarantine", "list", "weather").code == ExitCode.USAGE, "it reads no buffer"


def test_upgrade_publishes_what_the_old_leader_acknowledged(tidemark: Tidemark) -> None:
    tidemark("mode", "read-only", "--why", "upgrade")
    assert tidemark.append(0, 2).json["collections"]["weather"]["outcome"] == "staged"
    assert tidemark.append(2, 3, generation=2).json["collections"]["weather"]["outcome"] == "staged"
    promoted = tidemark("deployment", "promote", "--force", "--why", "an upgrade", "--yes", generation=3)
    assert tidemark("flush").code == ExitCode.FENCED
    flushed = promoted.json["flush"]["collections"]["weather"]
    assert flushed["details"]["taken_over"] == ["staged/1/noaa/0:2"]
    waits = "1 staged by deployment 2 wait until somebody decides: `tidemark flush --take-over 2`"
    assert flushed["details"]["waiting"].startswith(waits)
    [check] = [each for each in tidemark("doctor", generation=3).json["checks"] if each["subject"] == "weather"]
    assert waits in check["message"]
    asked = tidemark("flush", "--take-over", "2", generation=3).json["collections"]["weather"]
    assert asked["details"]["taken_over"] == ["staged/2/noaa/2:3"]
    assert tidemark("show", "weather", generation=3).json["ledger"] == {"noaa": [[0, 3]]}


def test_stale_corrections_are_told_until_they_are_reconciled(
    tidemark: Tidemark, home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    tidemark("mode", "read-only")
    shard = Shards.connect(home).open("planes")
    branch = corrections_branch(1, None)
    nothing = Batch(schema_id=shard.load().table.metadata.current_schema_id)
    stage_whole(shard, nothing, branch=branch, lower=0, time=7, digest=None, digest_note="", about="all")
    [staged] = tidemark("staged").json["batches"]
    assert (staged["producer"], staged["slice"], staged["stale"]) == ("reconcile", "all", "")
    tidemark("mode", "read-write")
    Writer.join(shard, 1).advance(lower=0, new_upper=9, outdates_staged=True)
    [staged] = tidemark("staged").json["batches"]
    assert staged["stale"] == "the contents have changed since"
    assert app(["staged"]) == ExitCode.OK
    assert "`tidemark reconcile planes`, reconciles these rows" in " ".join(capsys.readouterr().out.split())
    [check] = [each for each in tidemark("doctor").json["checks"] if each["subject"] == "planes"]
    assert f"{branch} is stale, the contents have changed since" in check["message"]
    flushed = tidemark("flush")
    result = flushed.json["collections"]["planes"]
    assert (flushed.code, result["error"]["kind"]) == (ExitCode.TRANSIENT, "StaleCorrections")
    assert (result["details"]["stale"], result["details"]["next"]) == ([branch], "tidemark reconcile planes")
    shown = show_status(Observer(home, SystemClock()), now_ms=0)["collections"]
    assert [each["stale"] for each in shown if each["name"] == "planes"] == [[branch]]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["append", "weather", "FILE", "--producer", "p", "--range", "5:5"], 64, "UsageError"),
        (["append", "weather", "FILE", "--producer", "p", "--range", "6:5"], 64, "UsageError"),
        (["append", "weather", "FILE", "--producer", "p", "--range", "x"], 64, "UsageError"),
        (["append", "weather", "FILE", "--producer", "a/b", "--range", "0:1"], 64, "UsageError"),
        (["append", "weather", "FILE", "--range", "0:1"], 64, "UsageError"),
        (["append", "weather", "--producer", "p", "--range", "0:1"], 64, "UsageError"),
        (["append", "weather"], 64, "UsageError"),
        (["append", "weather", "FILE", "--interval", "2013-01-01", "2013-01-02"], 64, "UsageError"),
        (["append", "weather", "--interval", "2013-01-02", "2013-01-02"], 64, "UsageError"),
        (["append", "weather", "--interval", "2013-01-01", "2013-01-02"], 64, "UsageError"),
        (["append", "planes", "--interval", "2013-01-01", "2013-01-02"], 64, "UsageError"),
        (["append", "weathr", "--interval", "2013-01-01", "2013-01-02"], 64, "UnknownCollection"),
        (["append", "weathr", "FILE", "--producer", "p", "--range", "0:1"], 64, "UnknownCollection"),
        (["append", "planes", "FILE", "--producer", "p", "--range", "0:1"], 64, "UsageError"),
        (["flush", "weathr"], 64, "UnknownCollection"),
        (["staged", "weathr"], 64, "UnknownCollection"),
        (["discard"], 64, "UsageError"),
        (["mode", "readonly"], 64, "UsageError"),
    ],
)
def test_calls_that_cannot_be_meant(tidemark: Tidemark, arguments: list[str], code: int, kind: str) -> None:
    (tidemark.folder / "FILE.csv").write_text("origin,temp\n", encoding="utf-8")
    answer = tidemark(*(str(tidemark.folder / "FILE.csv") if each == "FILE" else each for each in arguments))
    assert (answer.code, answer.json["error"]["kind"]) == (code, kind)
    assert tidemark("staged").json == {"batches": []}


def test_partial_overlap_is_refused_naming_both(tidemark: Tidemark) -> None:
    tidemark.append(0, 3)
    answer = tidemark.append(2, 5)
    shown = answer.json["collections"]["weather"]
    assert (answer.code, shown["outcome"], shown["error"]["kind"]) == (ExitCode.REFUSED, "refused", "RangeOverlap")
    assert "[2, 5)" in shown["error"]["message"]
    assert "[0, 3)" in shown["error"]["message"]


def test_missing_file_is_missing_input(tidemark: Tidemark) -> None:
    answer = tidemark("append", "weather", "/nowhere.csv", "--producer", "p", "--range", "0:1")
    assert (answer.code, answer.json["collections"]["weather"]["error"]["kind"]) == (66, "InputMissing")


def test_rejecting_collection_refuses_in_read_only_mode(tidemark: Tidemark) -> None:
    tidemark("mode", "read-only")
    answer = tidemark.append(0, 2, name="alerts")
    assert (answer.code, answer.json["collections"]["alerts"]["error"]["kind"]) == (ExitCode.FENCED, "ReadOnly")


def test_discard_takes_what_it_is_told_and_lists_it(tidemark: Tidemark) -> None:
    tidemark("mode", "read-only")
    for start in (0, 2, 4):
        tidemark.append(start, start + 2)
    gone = tidemark("discard", "weather", "--range", "2:4", "--why", "a mistake")
    assert [each["range"] for each in gone.json["batches"]] == [[2, 4]]
    assert [each["range"] for each in tidemark("staged").json["batches"]] == [[0, 2], [4, 6]]


def test_on_a_terminal_a_discard_shows_what_goes_and_asks(
    tidemark: Tidemark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tidemark("mode", "read-only")
    tidemark.append(0, 2)
    for answer, expected, left in (("n\n", 130, 1), ("y\n", ExitCode.OK, 0)):
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        capsys.readouterr()
        assert app(["discard", "weather"]) == expected
        said = capsys.readouterr()
        assert "discard 2 rows of weather, noaa 0:2, staged by deployment 1\nDiscard? [y/N]" in said.err
        assert ("Discarded for good: 2 rows.\n" in said.out) is (left == 0)
        assert len(tidemark("staged").json["batches"]) == left


def test_replaced_deployment_is_fenced(tidemark: Tidemark, capsys: pytest.CaptureFixture[str]) -> None:
    refused = tidemark("mode", "read-write", generation=2)
    assert (refused.code, refused.json["error"]["kind"]) == (ExitCode.REFUSED, "Refused")
    assert "tidemark deployment promote" in refused.json["error"]["hint"]
    tidemark("deployment", "promote", "--force", "--why", "an upgrade", "--yes", generation=2)
    assert tidemark("mode", generation=1).json["mode"] == "read-only"
    app(["mode"])
    assert "deployment 1 is read-only: deployment 2 leads, and is read-write since" in capsys.readouterr().out
    assert tidemark.append(0, 2, generation=1).code == ExitCode.FENCED
    for command in (["flush"], ["mode", "read-write"], ["discard", "--all"]):
        answer = tidemark(*command, generation=1)
        assert (answer.code, answer.json["error"]["kind"]) == (ExitCode.FENCED, "FencedByGeneration")


def test_people_are_told_in_tables(tidemark: Tidemark, capsys: pytest.CaptureFixture[str]) -> None:
    tidemark("mode", "read-only")
    tidemark.append(0, 2)
    for command, text in ((["staged"], "0:2"), (["mode"], "deployment 1 is read-only since"), (["flush"], "read-only")):
        capsys.readouterr()
        app(command)
        captured = capsys.readouterr()
        assert text in captured.out + captured.err


def test_retain_counts_first_and_removes_then(tidemark: Tidemark) -> None:
    yaml = "version: 1\ncollections:\n  hours:\n    {kind: append-only, schema: 'at timestamp, temp double', "
    path = tidemark.folder / "hours.yaml"
    path.write_text(yaml + "retention: {age: 30d, column: at}}\n", encoding="utf-8")
    assert tidemark("apply", str(path)).code == ExitCode.OK
    file = tidemark.folder / "hours.csv"
    file.write_text("at,temp\n2013-01-01 00:00:00,1.0\n2999-01-01 00:00:00,2.0\n,3.0\n", encoding="utf-8")
    assert tidemark("append", "hours", str(file), "--producer", "p", "--range", "0:1").code == ExitCode.OK

    tidemark("mode", "read-only")
    planned = tidemark("retain", "hours", "--dry-run")
    assert (planned.code, planned.json["collections"]["hours"]["retracted"]) == (ExitCode.OK, 1)
    assert tidemark("retain", "hours").code == ExitCode.FENCED
    assert tidemark("read", "hours").json["count"] == 3
    tidemark("mode", "read-write")
    done = tidemark("retain", "hours")
    shown = done.json["collections"]["hours"]
    assert (done.code, shown["outcome"], shown["retracted"]) == (ExitCode.OK, "corrected", 1)
    assert tidemark("read", "hours").json["count"] == 2
    assert tidemark("retain", "hours").json["collections"]["hours"]["outcome"] == "unchanged"
    assert tidemark("show", "hours").json["ledger"] == {"p": [[0, 1]]}
    refused = tidemark("retain", "weather")
    assert (refused.code, refused.json["error"]["kind"]) == (ExitCode.USAGE, "UsageError")
