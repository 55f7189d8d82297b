"""What the command line says of targets that do not fit, are not ours, or do not answer; history stays held."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.sinks.changes import change
from tests.sinks.postgres.conftest import Database, login
from tests.support.homes import Home
from tests.support.silent_server import silent_server
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

KAFKA = pytest.param("topic", marks=pytest.mark.kafka)
IN_TIME_S = 5.0
PLACES = {
    "table": {"connection": "pg", "table": "copies"},
    "iceberg": {"catalog": "lake", "table": "analytics.copies"},
    "topic": {"buffer": "out"},
}


class Answer(NamedTuple):
    code: int
    json: Any

    @property
    def error(self) -> Any:
        """The error of the command, or of the only sink that it ran."""
        return self.json.get("error") or next(iter(self.json["collections"].values()))["error"]


class Installation:
    """A home with the collection `events`, and what the environment says of one kind of target."""

    def __init__(
        self, kind: str, home: Home, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.kind, self.home, self.uri = kind, home, uri
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.to = {"path": str(home.folder / "out")} if kind == "files" else PLACES[kind]
        self.address = ""  # of the broker
        monkeypatch.setenv("TIDEMARK_HOME", str(home.settings.home))

    def reach(self, address: str | None = None) -> None:
        """Set the environment for the real target, or for whatever is at ``address``."""
        parts = self.uri.split("@")
        uri = self.uri if address is None else f"{parts[0]}@{address}/{parts[1].partition('/')[2]}"
        variables = {
            **login(uri),
            "TIDEMARK_CATALOG_LAKE_TYPE": "sql",
            "TIDEMARK_CATALOG_LAKE_URI": uri,
            "TIDEMARK_CATALOG_LAKE_WAREHOUSE": f"file://{self.home.folder}/lake",
            "TIDEMARK_BUFFER_OUT": f"kafka://{address or self.address}/copies_{self.uri.rpartition('/')[2]}",
        }
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        code = app([*arguments, "--json"])
        return Answer(code, json.loads(self._capsys.readouterr().out))

    def apply(self, name: str = "copies", **more: Any) -> Answer:
        """Apply a sink of `events`."""
        file = self.home.folder / "sinks.yaml"
        sink = {"from": "events", "to": self.to, "mode": "mirror", **more}
        file.write_text(json.dumps({"version": 1, "sinks": {name: sink}}))
        return self("apply", str(file))

    def holds(self) -> dict[str, int]:
        return {reader: hold.since for reader, hold in self.home.shard().load().state.holds.items()}

    def make_foreign(self) -> Callable[[], object]:
        """Put something with other columns into the place; return what reads it."""
        if self.kind == "table":
            database = Database(self.uri)
            database.execute("CREATE TABLE copies (other text)")
            return lambda: (database.rows("SELECT * FROM copies"), database.exists("tidemark_sinks"))
        if self.kind == "files":
            (self.home.folder / "out").mkdir()
            pq.write_table(pa.table({"other": ["x"]}), self.home.folder / "out" / "theirs.parquet")
            return lambda: sorted(path.name for path in (self.home.folder / "out").rglob("*"))
        uri = self.uri.replace("postgresql:", "postgresql+psycopg:")

        def metadata() -> str:
            with SqlCatalog("lake", uri=uri, warehouse=f"file://{self.home.folder}/lake") as lake:
                lake.create_namespace_if_not_exists("analytics")
                table = lake.create_table_if_not_exists("analytics.copies", schema=pa.schema([("other", pa.string())]))
                return str(table.metadata_location)

        metadata()
        return metadata


@pytest.fixture
def uri(postgres: PostgresServer, unique_name: str) -> str:
    return postgres.create_database(unique_name[-50:])


@pytest.fixture(params=["table", "iceberg", "files", KAFKA])
def installed(
    request: pytest.FixtureRequest,
    carrying: Home,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Installation:
    change(carrying, put={0: "a", 1: "b"})
    found = Installation(request.param, carrying, uri, monkeypatch, capsys)
    if found.kind == "topic":
        found.address = request.getfixturevalue("kafka").address
    found.reach()
    return found


only = pytest.mark.parametrize
ONE = only("installed", ["table"], indirect=True)  # what is said before any target is asked


# -- other columns: 65 ---------------------------------------------------------------------------------------------


@only("installed", ["table", "iceberg", "files"], indirect=True)  # a topic takes rows of any columns
def test_other_columns_are_refused_before_anything_is_written(installed: Installation) -> None:
    read = installed.make_foreign()
    before = read()
    refused = installed.apply()
    assert refused.code == ExitCode.REFUSED
    if installed.kind != "files":  # files that no sink wrote are refused whatever their columns are
        assert refused.error["kind"] == "SchemaMismatch"
        assert "it has (other " in refused.error["message"]
        assert "the sink needs (" in refused.error["message"]
        assert "id bigint, name string" in refused.error["message"]
    assert installed.home.registry.read().sinks == {}
    assert (read(), installed.holds()) == (before, {})


@only("installed", ["table", "iceberg", "files"], indirect=True)
def test_a_run_refuses_other_columns_that_came_after_the_apply(installed: Installation) -> None:
    assert installed.apply().code == ExitCode.OK
    read = installed.make_foreign()
    before = read()
    refused = installed("sink", "run")
    assert refused.code == ExitCode.REFUSED
    if installed.kind != "files":
        assert "it has (other " in refused.error["message"]
        assert "id bigint, name string" in refused.error["message"]
    assert (read(), installed.holds()) == (before, {})


# -- the progress of somebody else: 76 ---------------------------------------------------------------------------------


def test_the_progress_of_another_installation_is_76(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.apply().code == ExitCode.OK
    assert installed("sink", "run").code == ExitCode.OK
    folder = installed.home.folder / "another"
    (folder / "home").mkdir(parents=True)
    other = Home(Settings.load({"TIDEMARK_HOME": str(folder / "home")}), folder, now_ms=1_000_000)
    other.declare_latest()
    change(other, put={9: "theirs"})
    mine, installed.home = installed.home, other
    monkeypatch.setenv("TIDEMARK_HOME", str(other.settings.home))
    refused = installed.apply("theirs")
    assert (refused.code, refused.error["kind"]) == (ExitCode.NOT_POSSIBLE, "NotPossible")
    assert "belongs to the sink 'copies' of the collection 'events'" in refused.error["message"]
    other.declare_sink(to=installed.to)  # of the same name, and applied before the target was written
    refused = installed("sink", "run")
    assert (refused.code, refused.error["kind"]) == (ExitCode.NOT_POSSIBLE, "NotPossible")
    assert "existing: replace" in refused.error["hint"]
    assert installed.holds() == {}
    installed.home = mine
    monkeypatch.setenv("TIDEMARK_HOME", str(mine.settings.home))
    assert installed("sink", "run").json["collections"]["copies"]["outcome"] == "unchanged"


# -- what cannot be meant: 64 ------------------------------------------------------------------------------------------


@ONE
def test_a_mirror_of_a_multiset_needs_a_key(installed: Installation) -> None:
    bag = {"kind": "differential", "schema": "id bigint", "source": {"format": "json", "path": "bag.json"}}
    sink = {"from": "bag", "to": installed.to, "mode": "mirror"}
    file = installed.home.folder / "bag.yaml"
    file.write_text(json.dumps({"version": 1, "collections": {"bag": bag}, "sinks": {"copies": sink}}))
    refused = installed("apply", str(file))
    assert refused.code == ExitCode.USAGE
    assert refused.error["message"] == "sink 'copies': 'bag' has no key, and a mirror tells rows apart by it"
    assert "`mode: changes`" in refused.error["hint"]
    assert "`key` of the sink" in refused.error["hint"]
    assert "bag" not in installed.home.registry.read().declarations


@ONE
def test_what_a_sink_reads_stays_and_what_was_dropped_does_not_resume(installed: Installation) -> None:
    assert installed.apply().code == ExitCode.OK
    assert installed("sink", "run").code == ExitCode.OK
    held = installed.holds()
    refused = installed("drop", "events", "--yes")
    assert (refused.code, refused.error["kind"]) == (ExitCode.USAGE, "StillRead")
    assert refused.error["message"] == "sink 'copies' carries 'events'"
    assert installed.holds() == held
    assert installed("drop", "copies", "--yes").code == ExitCode.OK
    assert installed.holds() == {}
    for command in ("resume", "pause"):
        refused = installed(command, "copies")
        assert (refused.code, refused.error["kind"]) == (ExitCode.USAGE, "UsageError")
        assert "'copies' was dropped" in refused.error["message"]
        assert "tidemark apply" in refused.error["hint"]


# -- unreachable: 69 in 5 s ------------------------------------------------------------------------------------------


@contextmanager
def nobody_at(how: str) -> Iterator[str]:
    """Yield an address where nobody listens, or where nobody ever answers."""
    if how == "closed":
        with socket.socket() as unused:  # bound, and not listening: nobody else gets the port
            unused.bind(("127.0.0.1", 0))
            yield f"127.0.0.1:{unused.getsockname()[1]}"
        return
    with silent_server() as server:
        yield f"127.0.0.1:{server.port}"


@only("installed", ["table", "iceberg", KAFKA], indirect=True)
@only("how", ["closed", "silent"])
def test_an_unreachable_target_is_69_in_time_and_the_hold_stays(installed: Installation, how: str) -> None:
    assert installed.apply().code == ExitCode.OK
    assert installed("sink", "run").code == ExitCode.OK
    held = installed.holds()
    change(installed.home, put={2: "c"})
    with nobody_at(how) as address:
        installed.reach(address)
        started = time.monotonic()
        failed = installed("sink", "run", "copies")
        assert time.monotonic() - started < IN_TIME_S
        assert failed.code == ExitCode.UNREACHABLE, failed
        assert failed.error["hint"]
        assert installed.holds() == held
        started = time.monotonic()
        assert installed.apply("more", mode="changes", to=more(installed.to, address)).code == ExitCode.UNREACHABLE
        assert time.monotonic() - started < IN_TIME_S
    installed.reach()
    assert installed("sink", "run", "copies").json["collections"]["copies"]["inserted"] == 1
    assert list(installed.home.registry.read().sinks) == ["copies"]


def more(to: dict[str, str], address: str) -> dict[str, str]:
    """Return another place beside one, at the same ``address``."""
    return {"buffer": f"kafka://{address}/more"} if "buffer" in to else {**to, "table": to["table"] + "_more"}


@ONE
@only("how", ["closed", "silent"])
def test_a_catalog_on_a_server_that_is_unreachable_is_69_in_time(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with nobody_at(how) as address:
        monkeypatch.setenv("TIDEMARK_CATALOG_LAKE_TYPE", "rest")
        monkeypatch.setenv("TIDEMARK_CATALOG_LAKE_URI", f"http://{address}")
        started = time.monotonic()
        refused = installed.apply(to=PLACES["iceberg"])
        assert time.monotonic() - started < IN_TIME_S
    assert refused.code == ExitCode.UNREACHABLE, refused
    assert installed.home.registry.read().sinks == {}
