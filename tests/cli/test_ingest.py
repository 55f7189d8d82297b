"""`tidemark buffer ingest`, `status` and `quarantine`, from the declaration on, as a person types them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.sinks.foreign_readers import read_manifest
from tidemark.cli.app import app
from tidemark.exit_codes import ExitCode
from tools.kafka_broker import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

DECLARATION = """
version: 1
collections:
  weather:
    kind: append-only
    schema: "origin string, temp double"
    source: {buffer: mine, table: weather}
"""
EVENT_TIMES = """
    event_time: at
"""


class Answer(NamedTuple):
    code: int
    json: Any


@pytest.fixture
def tidemark(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """The command line, in a home where `weather` reads the buffer `mine`."""
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.setenv("TIDEMARK_BUFFER_MINE", (tmp_path / "buffer").as_uri())

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app([*arguments, "--json"])
        return Answer(code, json.loads(capsys.readouterr().out))

    (tmp_path / "collections.yaml").write_text(DECLARATION)
    assert run("apply", str(tmp_path / "collections.yaml")).code == 0
    assert run("buffer", "create", "mine", "--sequencers", "2").code == 0
    return run


def write(tidemark: Any, folder: Path, sequencer: int, *lines: str, table: bool = True) -> None:
    (folder / "rows.ndjson").write_text("".join(f"{line}\n" for line in lines))
    arguments = ["--sequencer", str(sequencer), *(["--table", "weather"] if table else [])]
    assert tidemark("buffer", "write", "mine", str(folder / "rows.ndjson"), *arguments).code == 0


def test_from_declaration_to_retry(tidemark: Any, tmp_path: Path) -> None:
    write(tidemark, tmp_path, 0, '{"origin":"EWR","temp":1.5}', '{"origin":"JFK","temp":"warm"}')
    write(tidemark, tmp_path, 1, '{"origin":"LGA","temp":2}')
    before = tidemark("buffer", "status", "mine").json["collections"]
    assert [(each["sequencer"], each["committed"], each["lag"]) for each in before] == [(0, 0, 1), (1, 0, 1)]
    assert all(each["lag_ms"] >= 0 for each in before)

    done = tidemark("buffer", "ingest")
    assert (done.code, done.json["operation"], done.json["outcome"]) == (0, "ingest", "ok")
    report = done.json["collections"]["weather"]
    assert (report["outcome"], report["inserted"], report["details"]["quarantined"]) == ("appended", 2, 1)
    after = tidemark("buffer", "status", "mine").json["collections"]
    assert [(each["committed"], each["published"], each["lag"], each["lag_ms"]) for each in after] == [(1, 1, 0, 0)] * 2
    ledger = tidemark("show", "weather").json["ledger"]
    assert sorted(ledger.values()) == [[[0, 1]], [[0, 1]]]

    listed = tidemark("buffer", "quarantine", "list", "weather").json
    assert (listed["count"], listed["rows"][0]["text"]) == (1, '{"origin":"JFK","temp":"warm"}')
    assert "column 'temp': 'warm' is no double" in listed["rows"][0]["detail"]
    retried = tidemark("buffer", "quarantine", "retry", "weather")
    assert (retried.code, retried.json["collections"]["weather"]["details"]) == (0, {"still_bad": 1})
    again = tidemark("buffer", "ingest", "weather")
    assert again.json["collections"]["weather"]["outcome"] == "unchanged"


def test_what_a_reading_collection_refuses(tidemark: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("origin,temp\nEWR,1\n")
    refused = tidemark("append", "weather", str(tmp_path / "rows.csv"), "--producer", "p", "--range", "0:1")
    assert refused.code == ExitCode.FENCED
    error = refused.json["collections"]["weather"]["error"]
    assert error["kind"] == "OnlyThroughBuffer"
    assert error["hint"].startswith("write them there: tidemark buffer write mine FILE; or declare `writes_to: mine`")


@pytest.mark.slow  # waits for a broker
def test_a_broker_that_is_down_is_69(tidemark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_BUFFER_MINE", f"kafka://127.0.0.1:{free_ports(1)[0]}/t")
    down = tidemark("buffer", "ingest")
    assert (down.code, down.json["collections"]["weather"]["error"]["kind"]) == (
        ExitCode.UNREACHABLE,
        "BufferUnreachable",
    )
    assert tidemark("buffer", "ingest", "wether").code == ExitCode.USAGE


def test_people_are_told_what_to_do(
    tidemark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_BUFFER_MINE", (tmp_path / "elsewhere").as_uri())
    assert app(["buffer", "ingest"]) == ExitCode.INPUT_MISSING
    shown = capsys.readouterr().out
    assert "weather: BufferMissing: the file buffer" in shown
    assert "→ make it with `tidemark buffer create`" in shown


def test_a_discard_says_that_rows_of_the_buffer_come_again(
    tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tidemark, tmp_path, 0, '{"origin":"EWR","temp":1.5}')
    assert tidemark("mode", "read-only").code == 0
    assert tidemark("buffer", "ingest").json["collections"]["weather"]["outcome"] == "staged"
    assert app(["discard", "weather", "--yes"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Discarded for good: 1 rows. Rows of a write buffer come again with the next ingest."
    assert tidemark("mode", "read-write").code == 0
    assert tidemark("buffer", "ingest").json["collections"]["weather"]["inserted"] == 1


def test_partitions_say_who_holds_them_open(tidemark: Any, tmp_path: Path) -> None:
    assert tidemark("buffer", "partitions", "weather").code == ExitCode.USAGE
    (tmp_path / "collections.yaml").write_text(
        DECLARATION.replace("temp double", "temp double, at timestamp") + EVENT_TIMES
    )
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    write(tidemark, tmp_path, 0, '{"origin":"EWR","at":"2013-01-01T05:00:00Z"}', '{"at":"2013-01-02T00:10:00Z"}')
    write(tidemark, tmp_path, 1, '{"origin":"EWR","at":"2013-01-01T06:00:00Z"}')
    assert tidemark("buffer", "ingest", "weather").code == 0
    shown = tidemark("buffer", "partitions", "weather").json
    assert shown["partitions"][0] == {
        "partition": "2013-01-01",
        "chunk": "open",
        "rows": 2,
        "late_rows": 0,
        "open_rows": 2,
        "earliest": "2013-01-01 05:00:00",
        "latest": "2013-01-01 06:00:00",
        "state": "open until 2013-01-02 00:00:00",
    }
    assert shown["watermark"] == "2013-01-01 05:55:00"
    assert shown["sequencers"] == [
        {"sequencer": 0, "watermark": "2013-01-02 00:05:00", "holds_back": False},
        {"sequencer": 1, "watermark": "2013-01-01 05:55:00", "holds_back": True},
    ]


def test_rows_are_persisted_when_that_is_asked_for(
    tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidemark("buffer", "persist", "weather").code == ExitCode.USAGE
    assert app(["buffer", "persist"]) == ExitCode.OK
    assert "No collection has event times." in capsys.readouterr().out
    (tmp_path / "collections.yaml").write_text(
        DECLARATION.replace("temp double", "temp double, at timestamp")
        + EVENT_TIMES
        + "    lifecycle: {hard_limit: 2}\n"
    )
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    write(tidemark, tmp_path, 0, '{"origin":"EWR","at":"2013-01-02T05:00:00Z"}', '{"at":"2013-01-01T00:10:00Z"}')
    assert tidemark("buffer", "ingest", "weather").code == 0
    assert app(["buffer", "persist"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert re.search("^weather +unchanged ", shown, re.MULTILINE)
    assert "weather: pause: 2 open rows >= `hard_limit` 2" in shown
    assert "weather: no partition is due: 2013-01-0" in shown
    assert [row["open_rows"] for row in tidemark("buffer", "partitions", "weather").json["partitions"]] == [1, 1]
    assert app(["buffer", "persist", "--now"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert re.search("^weather +persisted +2 ", shown, re.MULTILINE)
    assert "weather: persist 2013-01-01: asked for" in shown
    assert [row["open_rows"] for row in tidemark("buffer", "partitions", "weather").json["partitions"]] == [0, 0]
    assert len(tidemark("read", "weather").json["rows"]) == 2


@pytest.mark.slow  # one command after the other
def test_rows_wait_until_they_are_persisted_where_that_is_declared(
    tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "collections.yaml").write_text(
        DECLARATION.replace("temp double", "temp double, at timestamp")
        + EVENT_TIMES
        + "    key: [origin]\n    lifecycle: {visible: when-persisted}\n"
    )
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    for temp in range(6):
        line = '{"origin":"EWR","temp":%d,"at":"2013-01-02T05:00:00Z"}'
        write(tidemark, tmp_path, 0, line % temp)
        assert tidemark("buffer", "ingest", "weather").code == 0
    assert tidemark("read", "weather").json["rows"] == []
    assert len(tidemark("read", "weather", "--with-open").json["rows"]) == 6
    assert tidemark("read", "weather", "--with-open", "--as-of", "1").code == ExitCode.USAGE
    assert tidemark("buffer", "compact").json["collections"]["weather"]["details"]["compaction"]["files_before"] == 6
    assert app(["buffer", "persist", "--now"]) == ExitCode.OK
    assert "duplicates" in capsys.readouterr().out
    assert [row["temp"] for row in tidemark("read", "weather").json["rows"]] == [5]
    assert tidemark("buffer", "unload").json["collections"]["weather"]["details"]["expiry"]["snapshots"] > 0
    assert [row["temp"] for row in tidemark("read", "weather", "--with-open").json["rows"]] == [5]
    assert app(["buffer", "compact"]) == app(["buffer", "unload"]) == ExitCode.OK


@pytest.mark.slow  # one command after the other
def test_a_replay_of_persisted_rows_hides_none_and_tells_its_sink_nothing(tidemark: Any, tmp_path: Path) -> None:
    (tmp_path / "collections.yaml").write_text(
        DECLARATION.replace("temp double", "temp double, at timestamp")
        + EVENT_TIMES
        + "    key: [origin]\n    lifecycle: {visible: when-persisted}\n"
        + f"sinks:\n  files: {{from: weather, to: {{path: {tmp_path / 'out'}}}, mode: changes}}\n"
    )
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    for origin in ("EWR", "JFK"):
        write(tidemark, tmp_path, 0, json.dumps({"origin": origin, "temp": 5, "at": "2013-01-02T05:00:00Z"}))
    assert tidemark("buffer", "ingest", "weather").code == 0
    persist = ("buffer", "persist", "weather", "--now")
    for command in (persist, ("buffer", "replay", "weather", "--from", "0:0"), persist):
        assert tidemark(*command).code == tidemark("sink", "run").code == 0
        assert len(tidemark("read", "weather").json["rows"]) == 2
        assert sum(file["rows"] for file in read_manifest(tmp_path / "out")["files"]) == 2


def test_what_is_not_persisted_is_replayed(tidemark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tidemark("buffer", "replay", "weather").json["collections"]["weather"]["error"]["kind"] == "UsageError"
    (tmp_path / "collections.yaml").write_text(
        DECLARATION.replace("temp double", "temp double, at timestamp") + EVENT_TIMES
    )
    assert tidemark("apply", str(tmp_path / "collections.yaml")).code == 0
    write(tidemark, tmp_path, 0, '{"at":"2013-01-02T05:00:00Z"}')
    write(tidemark, tmp_path, 0, '{"at":"2013-01-01T00:10:00Z"}')
    assert tidemark("buffer", "ingest", "weather").code == 0
    assert app(["buffer", "replay", "weather", "--plan"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "weather: sequencer 0: numbers [0, 2), up to 2 entries to read" in shown
    assert "weather: partition 2013-01-01: up to 1 rows to replace" in shown
    assert "how many rows come back" in shown
    assert app(["buffer", "replay", "weather", "--partition", "2013-01-01"]) == ExitCode.OK
    assert "weather: partition 2013-01-01: 1 rows to replace by 1" in capsys.readouterr().out
    done = tidemark("buffer", "replay", "weather", "--from", "0:1").json["collections"]["weather"]
    assert (done["outcome"], done["inserted"], done["retracted"]) == ("corrected", 1, 1)
    assert tidemark("buffer", "replay", "weather", "--from", "0").code == ExitCode.USAGE
    assert tidemark("buffer", "replay", "weather", "--from", "7:0").code == ExitCode.USAGE
    assert len(tidemark("read", "weather").json["rows"]) == 2
