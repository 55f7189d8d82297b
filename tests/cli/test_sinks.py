"""`tidemark sink run` and `status`, from the declaration on, as a person types them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.sinks.postgres.conftest import Database, login
from tests.support.silent_server import PATIENCE_S, silent_server
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tidemark.settings import Settings

pytestmark = pytest.mark.postgres

DECLARATION = """
version: 1
collections:
  events:
    kind: latest
    key: [id]
    schema: "id bigint, name string"
    source: {buffer: mine}
sinks:
  copies: {from: events, to: {connection: pg, table: copies}, mode: mirror}
"""


class Answer(NamedTuple):
    code: int
    json: Any


@pytest.fixture
def database(postgres: PostgresServer, unique_name: str) -> Database:
    return Database(postgres.create_database(unique_name[-50:]))


@pytest.fixture
def tidemark(
    home: Settings,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """The command line, in a home with a buffer and a database."""
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.setenv("TIDEMARK_BUFFER_MINE", (tmp_path / "buffer").as_uri())
    for variable, value in login(database.uri).items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "collections.yaml").write_text(DECLARATION)

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app([*arguments, "--json"])
        return Answer(code, json.loads(capsys.readouterr().out))

    return run


def write(tidemark: Any, folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "rows.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        tidemark("buffer", "write", "mine", str(folder / "rows.ndjson"), "--sequencer", "0", "--table", "events").code
        == 0
    )
    assert tidemark("buffer", "ingest").code == 0


def test_from_declaration_to_status(tidemark: Any, tmp_path: Path, database: Database) -> None:
    planned = tidemark("apply", "--dry-run", str(tmp_path / "collections.yaml"))
    assert planned.json["steps"][-1]["sink"] == "copies"
    assert tidemark("sink", "run").json["collections"] == {}
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    [before] = tidemark("sink", "status").json["sinks"]
    assert (before["time"], before["held_since"], before["error"]) == (None, None, "")

    assert tidemark("buffer", "create", "mine").code == 0
    write(tidemark, tmp_path, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    done = tidemark("sink", "run", "copies")
    assert (done.code, done.json["operation"]) == (0, "sink")
    report = done.json["collections"]["copies"]
    assert (report["outcome"], report["inserted"], report["strategy"]) == ("carried", 2, "mirror")
    assert database.rows() == [(1, "a"), (2, "b")]
    [status] = tidemark("sink", "status", "copies").json["sinks"]
    assert (status["time"], status["lag_ms"], status["epoch"]) == (report["upper"], 0, 1)
    assert status["held_since"] == report["upper"] - 1

    write(tidemark, tmp_path, {"id": 2, "name": "c"})
    [status] = tidemark("sink", "status").json["sinks"]
    assert status["lag_ms"] > 0
    assert tidemark("sink", "run").json["collections"]["copies"]["inserted"] == 1
    assert database.rows() == [(1, "a"), (2, "c")]


@pytest.mark.parametrize("declares_sink", [True, False])
def test_a_renamed_key_is_renamed_in_the_sink_and_its_target(
    tidemark: Any, tmp_path: Path, database: Database, *, declares_sink: bool
) -> None:
    declared = tmp_path / "collections.yaml"
    assert tidemark("apply", str(declared)).code == 0
    assert tidemark("buffer", "create", "mine").code == 0
    write(tidemark, tmp_path, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    assert tidemark("sink", "run").code == 0

    text = DECLARATION if declares_sink else DECLARATION.partition("sinks:")[0]
    renamed = text.replace("key: [id]", "key: [number]\n    renames: {id: number}").replace('"id big', '"number big')
    declared.write_text(renamed)
    applied = tidemark("apply", str(declared))
    assert [step["detail"] for step in applied.json["steps"] if step.get("sink")] == ["change key"]
    assert tidemark("apply", str(declared)).json["steps"] == []
    write(tidemark, tmp_path, {"number": 2, "name": "B"}, {"number": 3, "name": "c"})
    assert tidemark("sink", "run").code == 0
    assert database.rows("SELECT number, name FROM copies") == [(1, "a"), (2, "B"), (3, "c")]
    database.execute("INSERT INTO copies (number) VALUES (4) ON CONFLICT (number) DO NOTHING")  # the key went along

    declared.write_text(renamed.replace("[number]", "[name]"))
    assert tidemark("apply", str(declared)).code == ExitCode.NOT_POSSIBLE


def test_people_read_tables(tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tidemark("apply", str(tmp_path / "collections.yaml"))
    assert app(["sink", "status"]) == ExitCode.OK
    assert "not loaded" in capsys.readouterr().out
    assert app(["sink", "run"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "table 'copies' of the connection 'pg'" in said
    assert said.startswith("sink ")
    assert "copies: nothing to carry: it waits for the first commit of 'events'" in said


def test_an_unknown_sink_is_64_with_near_names(tidemark: Any, tmp_path: Path) -> None:
    tidemark("apply", str(tmp_path / "collections.yaml"))
    answer = tidemark("sink", "run", "copie")
    assert answer.code == ExitCode.USAGE
    assert answer.json["error"]["message"] == "no sink is named 'copie'"
    assert "'copies'" in answer.json["error"]["hint"]


@pytest.mark.parametrize("more", ["", "PRIMARY KEY, other text"])
def test_apply_refuses_a_table_that_does_not_fit(tidemark: Any, tmp_path: Path, database: Database, more: str) -> None:
    database.execute(f"CREATE TABLE copies (name text, id bigint {more})")
    answer = tidemark("apply", str(tmp_path / "collections.yaml"))
    assert (answer.code, answer.json["error"]["kind"]) == (ExitCode.REFUSED, "SchemaMismatch")
    assert tidemark("collections").json["collections"] == []


def test_apply_refuses_the_target_of_another_installation(
    tidemark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    assert tidemark("buffer", "create", "mine").code == 0
    write(tidemark, tmp_path, {"id": 1, "name": "a"})
    assert tidemark("sink", "run").code == 0
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "other"))
    answer = tidemark("apply", str(tmp_path / "collections.yaml"))
    assert (answer.code, answer.json["error"]["kind"]) == (ExitCode.NOT_POSSIBLE, "NotPossible")
    assert "existing: replace" in answer.json["error"]["hint"]


def test_apply_reports_a_target_that_says_nothing_in_time(
    tidemark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_server() as server:
        monkeypatch.setenv("TIDEMARK_SOURCE_PG_URL", f"jdbc:postgresql://127.0.0.1:{server.port}/db")
        started = time.monotonic()
        answer = tidemark("apply", str(tmp_path / "collections.yaml"))
        assert time.monotonic() - started < PATIENCE_S + 1
    assert answer.code == ExitCode.UNREACHABLE
    assert "'pg'" in answer.json["error"]["message"]


def test_a_connection_that_is_not_set_is_78(tidemark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMARK_SOURCE_PG_URL")
    monkeypatch.delenv("AIRFLOW_CONN_PG")
    answer = tidemark("apply", str(tmp_path / "collections.yaml"))
    assert answer.code == ExitCode.CONFIGURATION
    assert "TIDEMARK_SOURCE_PG_URL" in answer.json["error"]["hint"]


def test_the_status_of_a_target_that_says_nothing(
    tidemark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    with silent_server() as server:
        monkeypatch.setenv("TIDEMARK_SOURCE_PG_URL", f"jdbc:postgresql://127.0.0.1:{server.port}/db")
        answer = tidemark("sink", "status")
    assert app(["sink", "status"]) == ExitCode.UNREACHABLE, "nobody listens any more"
    said = capsys.readouterr().out
    assert ("unknown" in said, "not loaded" in said) == (True, False)
    assert answer.code == ExitCode.UNREACHABLE
    assert "does not answer" in answer.json["sinks"][0]["error"]
