"""A store that an earlier version wrote is read, appended to, flushed, reconciled, migrated, and rolled back."""

from __future__ import annotations

import fcntl
import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.support.stored import read_log
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

STORE = Path("/tmp/tidemark-old-store")  # noqa: S108 -- Iceberg's metadata hold absolute paths
FIRST, SECOND = {("N1", 100), ("N2", 200), ("N3", 300)}, {("N1", 100), ("N2", 222), ("N4", 400)}


@dataclass(frozen=True, slots=True)
class Home:
    """The unpacked store; commands run in this process."""

    truth: str
    captured: pytest.CaptureFixture[str]

    def run(self, *command: str) -> Any:
        code = app([*command, "--json"])
        answer = json.loads(self.captured.readouterr().out)
        assert code == ExitCode.OK, answer
        return answer

    def rows(self, name: str, *more: str) -> set[tuple[Any, ...]]:
        return {tuple(row.values()) for row in self.run("read", name, *more)["rows"]}


@pytest.fixture(params=["stash", "persist"])
def home(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Home]:
    with STORE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another checkout may run this test, too
        shutil.rmtree(STORE, ignore_errors=True)
        with tarfile.open(Path(__file__).parent / "old_store" / f"{request.param}.tar.xz") as archive:
            archive.extractall(STORE.parent, filter="data")
        monkeypatch.setenv("TIDEMARK_HOME", str(STORE / "home"))
        try:
            yield Home(request.param, capsys)
        finally:
            shutil.rmtree(STORE, ignore_errors=True)


def test_all_of_it_is_read(home: Home) -> None:
    assert home.run("catalog", "status")["truth"] == home.truth
    (setting,) = home.run("catalog", "get", "setting", "colour")["items"]
    assert setting["value"]["value"] == "red"
    operations = {event["operation"] for event in home.run("catalog", "history")["events"]}
    assert operations >= {"create", "switch-mode"}
    assert home.run("mode")["mode"] == "read-only"
    assert home.rows("planes") == SECOND
    history = home.run("changes", "planes", "--from", "0")["rows"]
    first_ms, second_ms = sorted({row["_time"] for row in history})
    assert home.rows("planes", "--as-of", str(first_ms)) == FIRST
    corrections = {(row["tailnum"], row["seats"], row["_diff"]) for row in history if row["_time"] == second_ms}
    assert corrections == {("N2", 200, -1), ("N2", 222, 1), ("N3", 300, -1), ("N4", 400, 1)}
    assert home.rows("events") == {(1, "ada"), (2, "bob"), (3, "cyd")}
    assert home.run("show", "events")["ledger"] == {"web": [[0, 10], [20, 30]]}
    (staged,) = home.run("staged")["batches"]
    assert (staged["collection"], staged["range"], staged["rows"]) == ("events", [10, 20], 2)
    journal = Shards.connect(settings_in(STORE / "home")).open("journal")
    assert set(read_log(journal.load()).elements()) == {("line", "b", "2"), ("line", "c", "3")}


def test_what_was_staged_is_flushed_and_a_ledger_goes_on(home: Home) -> None:
    home.run("mode", "read-write", "--why", "upgraded")
    home.run("flush")
    assert home.rows("events") == {(1, "ada"), (2, "bob"), (3, "cyd"), (4, "dee"), (5, "eve")}
    again = str(STORE / "sources" / "second.csv")
    for batch, outcome in (("20:30", "skipped"), ("30:40", "appended")):
        done = home.run("append", "events", "--producer", "web", "--range", batch, again)
        assert done["collections"]["events"]["outcome"] == outcome
    assert home.run("show", "events")["ledger"] == {"web": [[0, 40]]}
    assert home.run("show", "events")["rows"] == 6


def test_the_catalog_moves_there_and_back(home: Home) -> None:
    before = home.run("catalog", "get", "setting"), home.run("collections")
    there, back = ("migrate", "rollback") if home.truth == "stash" else ("rollback", "migrate")
    for command, truth in ((there, {"stash": "persist", "persist": "stash"}[home.truth]), (back, home.truth)):
        home.run("catalog", command)
        assert home.run("catalog", "status")["truth"] == truth
        assert (home.run("catalog", "get", "setting"), home.run("collections")) == before
    assert home.rows("planes") == SECOND


def test_its_collections_are_paused_dropped_and_made_anew(home: Home) -> None:
    home.run("mode", "read-write", "--why", "upgraded")
    home.run("pause", "planes", "--why", "a look")
    home.run("drop", "events", "--yes")
    there, back = ("migrate", "rollback") if home.truth == "stash" else ("rollback", "migrate")
    for command in (there, back):
        home.run("catalog", command)
        assert list(home.run("pause", "planes")["paused"]) == ["planes"]
    home.run("resume", "planes")
    assert [each["name"] for each in home.run("collections")["collections"]] == ["planes"]
    declared = STORE / "again.yaml"
    declared.write_text('version: 1\ncollections:\n  events: {kind: append-only, schema: "id int"}\n', encoding="utf-8")
    home.run("apply", str(declared))
    assert home.rows("events") == set()


@pytest.mark.spark
@pytest.mark.usefixtures("jvm")
def test_a_reconcile_corrects_only_what_differs(home: Home) -> None:
    home.run("mode", "read-write", "--why", "upgraded")
    assert home.run("reconcile", "planes")["collections"]["planes"]["outcome"] == "unchanged"
    source = STORE / "sources" / "planes.csv"
    source.unlink()
    source.write_text("tailnum,seats\nN1,100\nN2,222\nN5,500\n", encoding="utf-8")
    done = home.run("reconcile", "planes")["collections"]["planes"]
    assert (done["outcome"], done["inserted"], done["retracted"]) == ("corrected", 1, 1)
    assert home.rows("planes") == {("N1", 100), ("N2", 222), ("N5", 500)}
    assert home.run("doctor", "--deep")["ok"]
