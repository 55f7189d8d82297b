"""`tidemark buffer …`: shapes and exit codes, on files and on a real Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.exit_codes import ExitCode
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.formats.entry import Row
from tidemark.write_buffer.partitioner import Partitioner
from tools.kafka_broker import KafkaBroker, free_ports

if TYPE_CHECKING:
    from pathlib import Path

WEATHER = [{"origin": origin, "hour": hour, "temp": 39.5} for hour in range(4) for origin in ("EWR", "JFK", "LGA")]
POINTS = "weather,origin=EWR temp=39.5 1\nweather,origin=JFK temp=40 1\n# a comment\nweather,origin=EWR temp=41 2\n"


class Answer(NamedTuple):
    code: int
    json: Any


@pytest.fixture
def tidemark(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = app(["buffer", *arguments, "--json"])
        return Answer(code, json.loads(capsys.readouterr().out))

    return run


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest, tmp_path: Path, unique_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a buffer that does not exist yet."""
    uri = (tmp_path / "buffer").as_uri()
    if request.param == "kafka":
        broker = request.getfixturevalue("kafka")
        assert isinstance(broker, KafkaBroker)
        uri = f"kafka://{broker.address}/{unique_name}"
    monkeypatch.setenv("TIDEMARK_BUFFER_MINE", uri)
    return "mine"


@pytest.fixture
def weather(tmp_path: Path) -> str:
    path = tmp_path / "weather.ndjson"
    path.write_text("".join(json.dumps(row) + "\n" for row in WEATHER), encoding="utf-8")
    return str(path)


def test_from_create_to_seek(tidemark: Any, address: str, weather: str) -> None:
    missing = tidemark("status", address)
    assert (missing.code, missing.json["error"]["kind"]) == (ExitCode.INPUT_MISSING, "BufferMissing")
    made = tidemark("create", address, "--sequencers", "2")
    assert (made.code, made.json["sequencers"]) == (0, [0, 1])
    assert tidemark("create", address, "--sequencers", "5").json == made.json, "what exists is left as it is"
    assert [each["watermark"] for each in tidemark("status", address).json["sequencers"]] == [0, 0]
    assert tidemark("read", address).json["entries"] == []

    arguments = ("--table", "weather", "--key", "origin,hour", "--rows-per-entry", "2")
    written = tidemark("write", address, weather, *arguments)
    assert written.code == 0
    assert sum(each["entries"] for each in written.json["written"]) >= 6
    entries = tidemark("read", address, "--limit", "100").json["entries"]
    partitioner = Partitioner({0, 1}, {"weather": ["origin", "hour"]})
    for sequencer in (0, 1):
        rows = [row for each in entries if each["sequencer"] == sequencer for row in each["rows"]]
        expected = [row for row in WEATHER if partitioner.sequencer_of(Row("weather", row)) == sequencer]
        assert [row["values"] for row in rows] == expected, "in the order of the file"
        assert {row["table"] for row in rows} <= {"weather"}

    status = tidemark("status", address).json["sequencers"]
    assert [each["entries"] for each in status] == [each["entries"] for each in written.json["written"]]
    assert all(abs(SystemClock().now_ms() - each["last_time_ms"]) < 60_000 for each in status)
    watermark = status[0]["watermark"]
    asked = tidemark("seek", address, "--sequencer", "0", "--to", "1").json
    assert (asked["next"], asked["watermark"]) == (1, watermark)
    assert tidemark("seek", address, "--sequencer", "0", "--to", "watermark").json["next"] is None
    assert tidemark("seek", address, "--sequencer", "0", "--to", "earliest").json["next"] == 0
    last = tidemark("read", address, "--sequencer", "0", "--from", str(watermark - 1)).json["entries"]
    assert [each["number"] for each in last] == [watermark - 1]


def test_points_are_written_as_points(tidemark: Any, address: str, tmp_path: Path) -> None:
    (tmp_path / "points.txt").write_text(POINTS, encoding="utf-8")
    tidemark("create", address)
    assert tidemark("write", address, str(tmp_path / "points.txt"), "--format", "line-protocol").code == 0
    (entry,) = tidemark("read", address).json["entries"]
    assert entry["format"] == "application/vnd.influxdata.line-protocol; version=1"
    assert entry["rows"][2] == {"table": "weather", "values": {"origin": "EWR", "temp": 41.0, "time": 2}}


def test_key_of_a_table_is_kept_with_the_buffer(tidemark: Any, address: str, weather: str, tmp_path: Path) -> None:
    tidemark("create", address, "--sequencers", "3")
    by_key = ("write", address, weather, "--table", "weather")
    first = tidemark(*by_key, "--key", "origin,hour").json["written"]
    again = tidemark(*by_key).json["written"]
    assert [(each["sequencer"], each["entries"]) for each in again] == [
        (each["sequencer"], each["entries"]) for each in first
    ], "later writes need not name it"
    for past in (("--key", "origin"), ("--key", "hour,origin"), ("--sequencer", "0")):
        refused = tidemark(*by_key, *past)
        assert (refused.code, refused.json["error"]["kind"]) == (ExitCode.USAGE, "UsageError"), past
        assert "the buffer keeps" in refused.json["error"]["message"]
    (tmp_path / "points.txt").write_text(POINTS, encoding="utf-8")
    points = tidemark("write", address, str(tmp_path / "points.txt"), "--format", "line-protocol")
    assert points.code == ExitCode.USAGE, "points of that table have another key"
    entries = sum(each["entries"] for each in tidemark("status", address).json["sequencers"])
    assert entries == 2 * sum(each["entries"] for each in first), "what is refused is not written"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_folder(tmp_path / "buffer", sequencers=2)
    return tmp_path / "buffer"


def test_a_file_with_a_bad_row_is_refused_as_a_whole(tidemark: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.ndjson").write_text('{"a": 1}\n{"a":\n', encoding="utf-8")
    arguments = (folder.as_uri(), str(tmp_path / "bad.ndjson"), "--table", "t", "--sequencer", "0")
    refused = tidemark("write", *arguments)
    assert refused.code == ExitCode.REFUSED
    assert "1 line is no row; nothing was written" in refused.json["error"]["message"]
    ((line, reason, text),) = [(each["line"], each["reason"], each["text"]) for each in refused.json["error"]["sample"]]
    assert (line, reason, text) == (2, "row-unreadable", '{"a":')
    assert [each["watermark"] for each in tidemark("status", folder.as_uri()).json["sequencers"]] == [0, 0]


def test_bad_lines_are_named_by_their_number_and_text(tidemark: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "json").write_bytes(b'{"a": 1}\n\nx\r\n{"a": 2}\n{}\nx\n\xff\n')
    (tmp_path / "points").write_text('m a="1\n2" 1\nm\n# m\nm a\nm\n', encoding="utf-8")
    as_points = ("--format", "line-protocol")
    for name, arguments, lines in (
        ("json", ("--table", "t", "--sequencer", "0"), {3: "x\r", 6: "x", 7: "\ufffd"}),
        ("points", as_points, {3: "m", 5: "m a", 6: "m"}),
    ):
        refused = tidemark("write", folder.as_uri(), str(tmp_path / name), *arguments)
        assert refused.code == ExitCode.REFUSED
        assert {each["line"]: each["text"] for each in refused.json["error"]["sample"]} == lines, name


def test_what_cannot_be_meant_is_refused(tidemark: Any, folder: Path, weather: str, tmp_path: Path) -> None:
    uri = folder.as_uri()
    for code, kind, arguments in (
        (64, "UsageError", ("write", uri, weather, "--table", "t")),  # two sequencers, and no key
        (64, "UsageError", ("write", uri, weather, "--table", "t", "--key", "origin", "--sequencer", "1")),
        (64, "UsageError", ("write", uri, weather, "--table", "t", "--key", "origin,misspelt")),
        (64, "UsageError", ("write", uri, weather, "--format", "line-protocol", "--key", "a")),
        (64, "UnknownSequencer", ("write", uri, weather, "--table", "t", "--sequencer", "2")),
        (64, "UnknownSequencer", ("read", uri, "--sequencer", "2")),
        (64, "UnknownSequencer", ("seek", uri, "--sequencer", "2", "--to", "0")),
        (64, "UsageError", ("seek", uri, "--sequencer", "1", "--to", "the end")),
        (66, "InputMissing", ("write", uri, str(tmp_path / "gone"), "--sequencer", "0")),
        (66, "BufferMissing", ("status", (tmp_path / "gone").as_uri())),
        (78, "ConfigurationInvalid", ("status", "rabbit://host/queue")),
        (78, "ConfigurationInvalid", ("status", "memory:test")),
        (78, "ConfigurationInvalid", ("status", "unset")),
    ):
        answer = tidemark(*arguments)
        assert (answer.code, answer.json["error"]["kind"]) == (code, kind), arguments


def test_what_is_gone_is_said(tidemark: Any, folder: Path, weather: str) -> None:
    arguments = ("--table", "t", "--sequencer", "1", "--rows-per-entry", "1")
    assert tidemark("write", folder.as_uri(), weather, *arguments).code == 0
    open_folder(folder).logs[1].expire(5)
    gone = tidemark("seek", folder.as_uri(), "--sequencer", "1", "--to", "2")
    assert (gone.code, gone.json["error"]["kind"]) == (66, "NoLongerExists")
    assert "up to 3 entries are lost" in gone.json["error"]["message"]
    assert tidemark("status", folder.as_uri()).json["sequencers"][1]["earliest"] == 5


@pytest.mark.slow  # waits for a broker
def test_a_broker_that_is_down_is_69_within_5_seconds() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tidemark", "buffer", "status", f"kafka://127.0.0.1:{port}/t", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert time.monotonic() - began < 5
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (69, "BufferUnreachable")
    assert done.stderr == ""


def test_rules_are_tried_before_they_are_declared(tidemark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cold = ("simulate", "--pattern", "cold", "--days", "1")
    answer = tidemark(*cold, "--rule", "persist_when_cold=false", "--rule", "persist_age=1h")
    assert (answer.code, answer.json["files"], answer.json["persisted"]) == (0, 12, answer.json["arrived"])
    assert sum("oldest open row 60 min >= 60 min" in event for event in answer.json["events"]) > 0
    answer = tidemark(*cold, "--rule", "persist_aeg=1h")
    assert (answer.code, answer.json["error"]["kind"]) == (ExitCode.USAGE, "UsageError")
    assert app(["buffer", *cold]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "persist  2013-01-01T23 before 2013-01-01 23:59:51.196: cold: no row for 5 min >= 5 min" in shown
    assert " are persisted in 12 files; at most " in shown
