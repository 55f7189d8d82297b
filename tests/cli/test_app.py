"""The command line as programs see it: exit codes, JSON on stdout and nothing else there, Spark only where needed."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.conftest import settings_in
from tests.support.damage import damage_metadata
from tests.support.homes import Home
from tests.support.prepared_folder import PreparedFolder
from tests.support.silent_server import PATIENCE_S, silent_server
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.protocol import WRITE_PERSIST
from tidemark.cli.app import app, is_not_in_a_report
from tidemark.cli.console import print_json
from tidemark.cli.options import complete_collection, complete_object, complete_selection, current_user
from tidemark.collections import isolation
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.state import NEVER
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings

DECLARATION = """version: 1
collections:
  planes:
    kind: differential
    key: [tailnum]
    source: {format: csv, path: planes.csv, options: {header: true}, schema: "tailnum string, seats int, built date"}
    tags: [reference]
  weather: {kind: append-only, schema: "origin string"}
"""
BUILT = "2000-01-31"
PROJECT = Path(__file__).parents[2]
CLOSED_PORT = 1
JVM_STARTED = "WARNING: Using incubator modules"  # what Spark's JVM says first


@dataclass(frozen=True)
class Answer:
    """What a finished command left."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.json) == {"error"}
        assert {"kind", "message", "hint"} <= set(self.json["error"])
        error: dict[str, Any] = self.json["error"]
        return error


@dataclass(frozen=True)
class CommandLine:
    """Runs `tidemark` on one home, from the folder with the declaration."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        """Run it in this process: most of what it takes to start would be Python."""
        self.capture.readouterr()
        code = app(list(arguments))
        return Answer(code, *self.capture.readouterr())

    def process(self, *arguments: str, **environ: str) -> Answer:
        """Run it as users do."""
        done = subprocess.run(
            [sys.executable, "-m", "tidemark", *arguments],
            env={**os.environ, **environ}, cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def applied_once(tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    def fill(folder: Path) -> None:
        (folder / "d.yaml").write_text(DECLARATION)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEMARK_HOME", str(folder / "home"))
            assert app(["apply", str(folder / "d.yaml")]) == ExitCode.OK

    return PreparedFolder(tmp_path_factory.mktemp("applied"), fill)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the test works: with everything applied for one that takes ``applied``, else empty."""
    if "applied" in request.fixturenames:
        prepared: PreparedFolder = request.getfixturevalue("applied_once")
        return prepared.restored()
    return tmp_path


@pytest.fixture
def home(folder: Path) -> Settings:
    (folder / "home").mkdir(exist_ok=True)
    return settings_in(folder / "home")


@pytest.fixture
def run(
    home: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "include"))
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.chdir(folder)
    (folder / "d.yaml").write_text(DECLARATION)
    return CommandLine(folder, capfd)


@pytest.fixture
def applied(run: CommandLine) -> CommandLine:
    return run


def publish(
    home: Settings, *, lower: int, added: dict[str, int], removed: bool = False, digest: bytes | None = None
) -> None:
    """Publish rows of ``planes`` at the time ``lower``, without Spark; ``removed`` takes all present rows out."""
    import datetime

    shard = Shards.connect(home).open("planes")
    writer, head = Writer.join(shard, 1), shard.load()

    def rows(seats: dict[str, int], diff: int) -> pa.Table:
        count = len(seats)
        built = pa.array([datetime.date.fromisoformat(BUILT)] * count, pa.date32())
        return pa.table(
            {"tailnum": pa.array(list(seats)), "seats": pa.array(list(seats.values()), pa.int32()), "built": built,
             "_time": pa.array([lower] * count, pa.int64()), "_diff": pa.array([diff] * count, pa.int64())}
        )  # fmt: skip

    batch = Batch(added=tuple(write_rows(head.table, rows(added, 1))), schema_id=head.table.schema().schema_id)
    if removed:
        files = read_data_files(head.table.io, head.contents)
        present = head.table.scan(snapshot_id=head.contents.snapshot_id).to_arrow().to_pylist()
        places = pa.table({"file_path": list(files), "pos": pa.array([0] * len(files), pa.int64())})
        gone = {row["tailnum"]: row["seats"] for row in present}
        batch = Batch(
            added=batch.added,
            retracted=tuple(write_rows(head.table, rows(gone, -1))),
            deletes=tuple(write_position_deletes(head.table, places, files)),
            pinned_snapshot_id=head.contents.snapshot_id,
            deleted_from=frozenset(files),
            schema_id=batch.schema_id,
        )
    writer.publish(batch, lower=head.state.upper, new_upper=lower + 1, digest=digest)


# -- completion ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("rec", "reconcile"),
        ("reconcile ", "planes weather tag:reference"),
        ("plan +p", "+planes"),
        ("plan tag:", "tag:reference"),
        ("show pl", "planes"),
        ("pause we", "weather"),
        ("show x", ""),
    ],
)
def test_the_shell_completes_commands_names_and_tags(
    applied: CommandLine, monkeypatch: pytest.MonkeyPatch, typed: str, offered: str
) -> None:
    monkeypatch.setenv("_TIDEMARK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tidemark {typed}")
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ") + 1))
    with pytest.raises(SystemExit):
        applied()
    assert applied.capture.readouterr().out.split() == offered.split()


def test_the_shell_offers_nothing_where_no_store_answers(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CATALOG_URI", f"postgresql://x:y@127.0.0.1:{CLOSED_PORT}/x")
    assert complete_selection("") == complete_collection("") == complete_object("") == []


# -- declarations --------------------------------------------------------------------------------------------------


def test_apply_says_what_it_does_and_is_idempotent(run: CommandLine) -> None:
    dry = run("apply", "d.yaml", "--dry-run", "--json")
    assert dry.code == ExitCode.OK
    assert dry.json["dry_run"] is True
    assert [(step["collection"], step["action"]) for step in dry.json["steps"]] == [
        ("planes", "create"), ("weather", "create"), ("planes", "register"), ("weather", "register"),
    ]  # fmt: skip
    assert run("collections", "--json").json == {"collections": []}
    assert "planes: create differential collection, key tailnum" in run("apply", "d.yaml").stdout
    again = run("apply", "d.yaml", "--json")
    assert again.json == {"dry_run": False, "steps": [], "unchanged": ["planes", "weather"], "kept": []}


def test_collections_and_show_have_their_shapes(applied: CommandLine) -> None:
    assert applied("collections", "--json").json == {
        "collections": [
            {"name": "planes", "kind": "differential", "upper": 0, "rows": 0, "tags": ["reference"]},
            {"name": "weather", "kind": "append-only", "upper": 0, "rows": 0, "tags": []},
        ]
    }
    shown = applied("show", "planes", "--json").json
    declaration = shown.pop("declaration")
    assert shown == {
        "name": "planes", "kind": "differential", "upper": 0, "since": 0, "generation": 0, "epoch": 0, "rows": 0,
        "staged": [], "holds": {}, "ledger": {},
    }  # fmt: skip
    assert declaration["key"] == ["tailnum"]
    assert "tailnum" in applied("show", "planes").stdout
    assert "reference" in applied("collections").stdout


def test_damaged_collection_is_listed_beside_the_others(applied: CommandLine, home: Settings) -> None:
    damage_metadata(Shards.connect(home).open("planes"), "cut")
    planes, weather = applied("collections", "--json").json["collections"]
    assert (planes["name"], planes["upper"]) == ("planes", None)
    assert "is damaged" in planes["error"]
    assert (weather["upper"], "error" in weather) == (0, False)
    assert "is damaged" in applied("collections").stdout


def test_show_names_holds_and_an_empty_frontier(applied: CommandLine, home: Settings) -> None:
    shard = Shards.connect(home).open("weather")
    hold(shard, "report", since=0, expires_at_ms=99)
    hold(shard, "durable", since=0, expires_at_ms=NEVER)
    holds = {"durable": {"since": 0, "expires_at": None}, "report": {"since": 0, "expires_at": 99}}
    assert applied("show", "weather", "--json").json["holds"] == holds
    release(shard, "durable")
    Writer.join(shard, 1).seal(now_ms=100)
    shown = applied("show", "weather", "--json").json
    assert (shown["upper"], shown["since"]) == ("empty", "empty")


# -- reading -------------------------------------------------------------------------------------------------------


def test_contents_and_changes_are_read_now_and_then(applied: CommandLine, home: Settings) -> None:
    assert applied("read", "planes", "--json").json == {
        "collection": "planes", "as_of": None, "upper": 0, "count": 0, "rows": [],
    }  # fmt: skip
    publish(home, lower=1_000, added={"N1": 5})
    publish(home, lower=2_000, added={"N1": 6}, removed=True)
    old, new = ({"tailnum": "N1", "seats": seats, "built": BUILT} for seats in (5, 6))
    assert applied("read", "planes", "--json").json == {
        "collection": "planes", "as_of": 2_000, "upper": 2_001, "count": 1, "rows": [new],
    }  # fmt: skip
    assert applied("read", "planes", "--as-of", "1970-01-01T00:00:01", "--json").json == {
        "collection": "planes", "as_of": 1_000, "count": 1, "rows": [old],
    }  # fmt: skip
    assert applied("read", "planes", "--with-time", "--json").json["rows"] == [{**new, "_time": 2_000}]
    assert applied("read", "planes", "--limit", "0", "--json").json["count"] == 0
    changed = applied("changes", "planes", "--from", "0", "--until", "2001", "--json").json
    rows = changed.pop("rows")
    assert changed == {"collection": "planes", "from": 0, "until": 2_001, "count": 3}
    assert sorted(rows, key=lambda row: (row["_time"], row["_diff"])) == [
        {**old, "_time": 1_000, "_diff": 1}, {**old, "_time": 2_000, "_diff": -1}, {**new, "_time": 2_000, "_diff": 1},
    ]  # fmt: skip
    table = applied("read", "planes").stdout
    assert table.split() == ["tailnum", "seats", "built", "N1", "6", BUILT]
    assert applied("read", "planes", "--as-of", "2001", "--json").error["kind"] == "NotYetAvailable"
    assert applied("compact", "planes", "--json").json["collections"]["planes"]["error"] is None
    assert applied("read", "planes", "--json").json["rows"] == [new]


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "message"),
    [
        (["nonsense"], ExitCode.USAGE, "UsageError", "No such command 'nonsense'"),
        (["read"], ExitCode.USAGE, "UsageError", "Missing argument 'NAME'"),
        (["read", "planes", "--nonsense"], ExitCode.USAGE, "UsageError", "--nonsense"),
        (["read", "planes", "--as-of", "soon"], ExitCode.USAGE, "UsageError", "'soon' is not a time"),
        (["changes", "planes", "--from", "5", "--until", "1"], ExitCode.USAGE, "UsageError", "reversed"),
        (["changes", "weather", "--from", "0"], ExitCode.USAGE, "UsageError", "append-only"),
        (["read", "plnes"], ExitCode.USAGE, "UnknownCollection", "'plnes'"),
        (["show", "plnes"], ExitCode.USAGE, "UnknownObject", "'plnes'"),
        (["plan", "plnes"], ExitCode.USAGE, "UnknownCollection", "'plnes'"),
        (["reconcile", "planes", "plnes"], ExitCode.USAGE, "UnknownCollection", "'plnes'"),
        (["reconcile", "weather"], ExitCode.USAGE, "UsageError", "append-only"),
        (["reconcile", "planes", "--interval", "2013-01-02", "2013-01-01"], ExitCode.USAGE, "UsageError", "reversed"),
        (["compact", "plnes"], ExitCode.USAGE, "UnknownCollection", "'plnes'"),
        (["apply", "none.yaml"], ExitCode.INPUT_MISSING, "InputMissing", "none.yaml does not exist"),
        (["apply", "gone.yaml"], ExitCode.INPUT_MISSING, "InputMissing", "the source of 'trains'"),
        (["apply", "bad.yaml"], ExitCode.CONFIGURATION, "ConfigurationInvalid", "bad.yaml:2: not valid YAML"),
        (["apply", "narrow.yaml"], ExitCode.NOT_POSSIBLE, "IncompatibleChange", "cannot become int"),
    ],
)  # fmt: skip
def test_errors_are_json_with_their_exit_code(
    applied: CommandLine, arguments: list[str], code: ExitCode, kind: str, message: str
) -> None:
    (applied.folder / "bad.yaml").write_text("version: 1\ncollections: {a: [}\n")
    narrow = DECLARATION.replace("tailnum string", "tailnum int")
    (applied.folder / "narrow.yaml").write_text(narrow)
    gone = "version: 1\ncollections:\n  trains: {kind: differential, source: {format: parquet, path: trains}}\n"
    (applied.folder / "gone.yaml").write_text(gone)
    answer = applied(*arguments, "--json")
    assert answer.code == code
    assert answer.error["kind"] == kind
    assert message in answer.error["message"]
    if kind in {"UnknownCollection", "UnknownObject"}:
        assert answer.error["hint"] == "did you mean 'planes'?"
    if arguments[0] == "changes" and "reversed" in message:
        assert "--from EARLIER --until LATER" in answer.error["hint"]
    assert "Traceback" not in answer.stderr
    for_people = applied(*arguments)
    assert (for_people.code, for_people.stdout) == (code, "")
    assert kind in for_people.stderr


@pytest.mark.parametrize("group", ["buffer", "catalog", "hold", "sink", "storage"])
def test_a_group_without_a_command_says_what_there_is(run: CommandLine, group: str) -> None:
    answer = run(group)
    assert (answer.code, answer.stderr) == (ExitCode.USAGE, "")
    assert "Commands" in answer.stdout


@pytest.mark.parametrize(
    "arguments",
    [["read", "pl\udcffnes"], ["mode", "read-only", "--why", "\udce9t\udce9"], ["catalog", "get", "setting", "\udcff"]],
)
def test_an_argument_that_is_not_utf_8_is_wrong_usage_and_stores_nothing(
    applied: CommandLine, home: Settings, arguments: list[str]
) -> None:
    before = Home(home).dumps()
    answer = applied(*arguments, "--json")
    assert (answer.code, answer.error["kind"]) == (ExitCode.USAGE, "UsageError")
    assert "not UTF-8" in answer.error["message"]
    assert "\\udc" in answer.error["message"]
    assert Home(home).dumps() == before


def test_an_end_of_file_in_our_own_code_is_a_bug_and_no_interruption(
    applied: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EOFError("cut")

    monkeypatch.setattr("tidemark.iceberg.reading.arrow.pin_contents", fail)
    answer = applied("read", "planes", "--json")
    assert (answer.code, answer.error["kind"]) == (ExitCode.BUG, "EOFError")


def test_a_store_that_fails_in_the_middle_is_unreachable_and_no_bug(
    applied: CommandLine, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(home, lower=1_000, added={"N1": 5})

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tidemark.iceberg.reading.arrow.ArrowScan.to_table", fail)
    answer = applied("read", "planes", "--json")
    assert (answer.code, answer.error["kind"]) == (ExitCode.UNREACHABLE, "Unreachable")
    monkeypatch.setattr("tidemark.iceberg.reading.arrow.pin_contents", fail)
    answer = applied("read", "planes", "--json")
    assert (answer.code, answer.error["kind"]) == (ExitCode.UNREACHABLE, "Unreachable")
    assert "Input/output error" in answer.error["message"]


@pytest.mark.parametrize("truth", ["stash", "persist"])
def test_a_home_that_nobody_can_write_is_read(
    applied: CommandLine, home: Settings, truth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(home, lower=1_000, added={"N1": 5})
    if truth == "persist":
        assert applied("catalog", "migrate").code == ExitCode.OK
    files = {path: path.read_bytes() for path in home.home.rglob("*") if path.is_file()}
    real = os.access

    def access(path: Path, mode: int) -> bool:  # as in a mounted backup; whoever runs as root may write any folder
        return real(path, mode) and not (mode & os.W_OK and Path(path).is_relative_to(home.home))

    monkeypatch.setattr(os, "access", access)
    for command in ("collections", "show planes", "read planes", "staged", "doctor --deep", "catalog status", "mode"):
        answer = applied(*command.split(), "--json")
        assert answer.code == ExitCode.OK, (command, answer)
    assert applied("read", "planes", "--json").json["count"] == 1
    refused = applied("mode", "read-only", "--json")
    assert refused.code in {ExitCode.NOT_POSSIBLE, ExitCode.UNREACHABLE, ExitCode.TRANSIENT}
    if truth == "stash":
        assert {path: path.read_bytes() for path in home.home.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("command", ["plan", "reconcile"])
def test_where_nothing_is_declared_there_is_nothing_to_do_and_no_spark(run: CommandLine, command: str) -> None:
    done = run(command, "--json")
    assert (done.code, done.json["operation"], done.json["collections"]) == (ExitCode.OK, command, {})
    assert "tidemark apply" in run(command).stdout
    assert JVM_STARTED not in done.stderr


def test_a_wrong_setting_is_named(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_GENERATION", "zero")
    answer = run("collections", "--json")
    assert answer.code == ExitCode.CONFIGURATION
    assert "TIDEMARK_GENERATION" in answer.error["message"]


JDBC = """version: 1
collections:
  planes: {kind: differential, source: {format: jdbc, connection: shop, dbtable: planes}, schema: "tailnum string"}
"""


def test_connection_that_is_not_set_is_said_before_spark(run: CommandLine) -> None:
    (run.folder / "d.yaml").write_text(JDBC)
    assert run("apply", "d.yaml").code == ExitCode.OK, "the declaration has the columns"
    (run.folder / "d.yaml").write_text(JDBC.replace(', schema: "tailnum string"', ""))
    for command in (["plan"], ["reconcile", "planes"], ["apply", "d.yaml"]):
        done = run(*command, "--json")
        assert done.code == ExitCode.CONFIGURATION
        assert "'planes': the connection 'shop' is not set" in done.error["message"]
        assert JVM_STARTED not in done.stderr


def test_a_collection_that_is_missing_from_the_file_is_named_and_stays(applied: CommandLine) -> None:
    (applied.folder / "d.yaml").write_text(JDBC.replace("planes", "boats"))
    said = applied("apply", "d.yaml")
    assert said.code == ExitCode.OK
    assert "kept: planes, weather: applied before, and in none of these files" in said.stdout
    assert applied("apply", "d.yaml", "--dry-run", "--json").json["kept"] == ["planes", "weather"]
    assert {row["name"] for row in applied("collections", "--json").json["collections"]} == {
        "boats",
        "planes",
        "weather",
    }


@pytest.mark.parametrize(
    "text", ["", "# nothing", "version: 1", "version: 1\ncollections:", "version: 1\ncollections: {}"]
)
def test_an_emptied_declaration_file_is_78_and_changes_nothing(applied: CommandLine, text: str) -> None:
    (applied.folder / "d.yaml").write_text(text)
    for option in ([], ["--dry-run"]):
        done = applied("apply", "d.yaml", *option, "--json")
        assert (done.code, done.error["kind"]) == (ExitCode.CONFIGURATION, "ConfigurationInvalid")
        assert "d.yaml:" in done.error["message"]
        assert "`tidemark drop NAME`" in done.error["hint"]
    assert len(applied("collections", "--json").json["collections"]) == 2


WRITING = [
    ["plan"],
    ["reconcile"],
    ["apply", "d.yaml"],
    ["compact", "planes"],
    ["flush"],
    ["append", "planes", "d.yaml", "--producer", "p", "--range", "0:1"],
    ["retain", "planes"],
    ["discard", "planes"],
    ["mode", "read-only"],
    ["catalog", "migrate"],
    ["catalog", "open"],
]


@pytest.mark.parametrize("command", WRITING, ids=lambda words: "-".join(words[:2]))
def test_a_warehouse_that_cannot_be_written_is_said_before_anything_is_done(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "file" / "warehouse"))
    done = run(*command, "--json")
    assert (done.code, done.error["kind"]) == (ExitCode.UNREACHABLE, "Unreachable")
    assert f"the warehouse {(tmp_path / 'file' / 'warehouse').as_uri()} cannot be" in done.error["message"]
    assert JVM_STARTED not in done.stderr


@pytest.mark.slow
def test_an_unreachable_store_is_said_within_five_seconds_and_before_spark(run: CommandLine) -> None:
    with silent_server() as server, ThreadPoolExecutor() as threads:
        answers = [
            threads.submit(
                run.process,
                *command,
                "--json",
                TIDEMARK_CATALOG_URI=f"postgresql://me:secret@127.0.0.1:{port}/tidemark",
            )
            for command in (["collections"], ["reconcile", "planes"])
            for port in (server.port, CLOSED_PORT)
        ]
        for answer in (each.result() for each in answers):
            assert answer.code == ExitCode.UNREACHABLE
            assert answer.error["kind"] == "Unreachable"
            assert "secret" not in answer.stdout + answer.stderr
            assert JVM_STARTED not in answer.stderr
        waits_s = server.waits_s(2)
        assert len(waits_s) == 2, "each asks once"
        assert max(waits_s) < PATIENCE_S


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error(applied: CommandLine, home: Settings) -> None:
    publish(home, lower=1_000, added={f"N{number}": number for number in range(20_000)})
    pipe = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m tidemark read planes --json | head -c 10"]
    done = subprocess.run(pipe, cwd=applied.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")


# -- the installation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "looking", ["collections", "show planes", "read planes", "changes planes --from 0", "staged", "doctor"]
)
def test_looking_at_a_home_that_is_not_there_makes_none(
    run: CommandLine, home: Settings, monkeypatch: pytest.MonkeyPatch, looking: str
) -> None:
    missing = home.home / "hoem"
    monkeypatch.setenv("TIDEMARK_HOME", str(missing))
    answer = run(*looking.split(), "--json")
    assert answer.code == ExitCode.CONFIGURATION
    assert f"there is no home at '{missing}'" in answer.stdout
    assert "tidemark init" in answer.stdout
    assert not missing.exists()
    assert run("apply", "d.yaml").code == ExitCode.OK
    assert run(*looking.split(), "--json").code == ExitCode.OK


def test_init_makes_the_home_and_doctor_finds_it_sound(run: CommandLine, home: Settings) -> None:
    made = run("init", "--json")
    assert made.code == ExitCode.OK
    assert made.json["home"] == str(home.home)
    assert home.catalog_path.exists()
    assert made.json["truth"] == "stash"
    assert run("catalog", "status", "--json").json["leader"] == "epoch 2 of generation 1"
    assert run("init").code == ExitCode.OK
    assert run("catalog", "status", "--json").json["stash_epoch"] == 2, "a catalog that is there is left alone"
    run("apply", "d.yaml")
    sound = run("doctor", "--deep", "--json")
    assert sound.code == ExitCode.OK, sound.stdout
    assert sound.json["ok"] is True
    assert {"Python", "Java", "Catalog", "Declarations", "planes", "weather"} <= {
        check["subject"] for check in sound.json["checks"]
    }


def test_init_can_put_the_catalog_into_persist_at_once_and_moves_none_that_is_there(run: CommandLine) -> None:
    assert run("init", "--catalog", "nowhere").code == ExitCode.USAGE
    for _ in range(2):
        made = run("init", "--catalog", "persist", "--json")
        assert (made.code, made.json["truth"]) == (ExitCode.OK, "persist")
    status = run("catalog", "status", "--json").json
    assert (status["truth"], status["tombstone"], status["persist_epoch"]) == ("persist", True, 2)
    moved = run("init", "--catalog", "stash", "--json")
    assert (moved.code, moved.error["hint"]) == (ExitCode.NOT_POSSIBLE, "run `tidemark catalog rollback`")
    assert run("apply", "d.yaml").code == ExitCode.OK
    assert {each["name"] for each in run("collections", "--json").json["collections"]} == {"planes", "weather"}


def test_init_completes_a_first_open_that_died_and_takes_no_leader_its_place(run: CommandLine, home: Settings) -> None:
    Home(home).die_after(Direction.MIGRATE, WRITE_PERSIST)
    assert run("init", "--json").json["truth"] == "stash"
    before = Home(home).dumps()
    assert run("init").code == ExitCode.OK
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMARK_GENERATION", "2")
        assert run("init").code == ExitCode.OK
        assert run("mode", "--json").json["mode"] == "read-only"
    assert Home(home).dumps() == before


def test_doctor_names_what_is_wrong(applied: CommandLine, home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    Shards.connect(home).drop("planes")
    sick = applied("doctor", "--json")
    assert sick.code == ExitCode.NOT_POSSIBLE
    wrong = [check for check in sick.json["checks"] if not check["ok"]]
    assert [check["subject"] for check in wrong] == ["Declarations"]
    assert "planes" in wrong[0]["message"]
    monkeypatch.setenv("TIDEMARK_JARS", "/nowhere")
    assert "WRONG" in applied("doctor").stdout


def test_files_that_were_removed_by_hand_are_said_and_are_no_bug(applied: CommandLine, home: Settings) -> None:
    publish(home, lower=1_000, added={"N1": 5})
    folder = home.home / "warehouse" / "collections" / "planes"
    for path in (folder / "data").rglob("*.parquet"):
        path.unlink()
    lost = applied("read", "planes", "--json")
    assert (lost.code, lost.error["kind"]) == (ExitCode.NOT_POSSIBLE, "CorruptState")
    assert ".parquet is gone (of main, updates, 1 rows)" in lost.error["message"]
    for path in (folder / "metadata").glob("*.metadata.json"):
        path.unlink()
    lost = applied("read", "planes", "--json")
    assert (lost.code, lost.error["kind"]) == (ExitCode.NOT_POSSIBLE, "CorruptState")
    assert "a metadata file of 'planes' is gone" in lost.error["message"]
    compacted = applied("compact", "planes", "weather", "--json")
    errors = {name: each["error"] and each["error"]["kind"] for name, each in compacted.json["collections"].items()}
    assert (compacted.code, errors) == (ExitCode.NOT_POSSIBLE, {"planes": "CorruptState", "weather": None})
    sick = applied("doctor", "--json")
    assert [check["subject"] for check in sick.json["checks"] if not check["ok"]] == ["planes"]
    assert sick.code == ExitCode.NOT_POSSIBLE


def test_tables_of_other_tools_do_not_hide_the_collections(applied: CommandLine, home: Settings) -> None:
    iceberg = Shards.connect(home).iceberg
    iceberg.create_table(("collections", "foreign"), schema=pa.schema([("a", pa.int32())]))
    assert [each["name"] for each in applied("collections", "--json").json["collections"]] == ["planes", "weather"]


@pytest.mark.slow
def test_output_fits_into_any_encoding(applied: CommandLine, home: Settings) -> None:
    publish(home, lower=1_000, added={"É": 5})
    program = "from tidemark.cli.app import app\nfor more in ([], ['--json']):\n    app(['read', 'planes', *more])"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    table, _, document = done.stdout.rpartition("\n{")
    assert "\\xc9" in table
    assert json.loads("{" + document)["rows"][0]["tailnum"] == "É"


@pytest.mark.slow
def test_commands_without_spark_do_not_load_it(applied: CommandLine) -> None:
    code = (
        "import sys\nfrom tidemark.cli.app import app\n"
        "for command in (['collections'], ['read', 'planes'], ['apply', 'd.yaml']):\n"
        "    assert app(command) == 0, command\n"
        "    assert not [name for name in sys.modules if name.split('.')[0] in {'pyspark', 'airflow'}], command\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=applied.folder, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.OK, done.stderr


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_000)  # as a container may start it
    assert current_user() == "2000000000"


def test_values_that_json_lacks_become_text(capsys: pytest.CaptureFixture[str]) -> None:
    import datetime
    from decimal import Decimal

    moment = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    print_json({"f": [float("nan"), float("inf"), 1.5], "d": Decimal("1.50"), "t": moment, "b": b"\xff", 1: None})
    assert json.loads(capsys.readouterr().out) == {
        "f": ["NaN", "Infinity", 1.5], "d": "1.50", "t": "2013-01-01T00:00:00+00:00", "b": "/w==", "1": None,
    }  # fmt: skip


# -- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("jvm")
def test_plan_and_reconcile_report_and_exit_as_they_should(applied: CommandLine) -> None:
    source = applied.folder / "planes.csv"
    source.write_text(f"tailnum,seats,built\nN1,5,{BUILT}\nN2,,{BUILT}\n")
    planned = applied("plan", "planes", "--detailed-exitcode", "--json")
    assert planned.code == ExitCode.DIFFERENCES
    assert planned.json["operation"] == "plan"
    assert planned.json["collections"]["planes"]["inserted"] == 2
    assert applied("read", "planes", "--json").json["count"] == 0
    done = applied("reconcile", "planes", "--json")
    assert done.code == ExitCode.OK
    report = done.json["collections"]["planes"]
    assert (report["outcome"], report["inserted"], report["retracted"]) == ("corrected", 2, 0)
    assert applied("plan", "planes", "--detailed-exitcode").code == ExitCode.OK
    source.write_text(f"tailnum,seats,built\nN1,6,{BUILT}\nN2,,{BUILT}\n")
    shown = " ".join(applied("plan", "planes").stdout.split())
    assert f"~ N1 5 → 6 {BUILT}" in shown


@pytest.mark.spark
@pytest.mark.usefixtures("jvm")
def test_doctor_checks_the_digest_that_reconciles_rely_on(applied: CommandLine, home: Settings) -> None:
    (applied.folder / "planes.csv").write_text(f"tailnum,seats,built\nN1,5,{BUILT}\n")
    assert applied("reconcile", "planes").code == ExitCode.OK

    def found() -> dict[str, Any]:
        checks = applied("doctor", "--deep", "--contents", "--json").json["checks"]
        (check,) = (check for check in checks if check["subject"] == "planes")
        assert isinstance(check, dict)
        return check

    assert found()["ok"]
    assert "the digest is that of the rows" in found()["message"]
    head = Shards.connect(home).open("planes").load()
    upper = head.state.upper
    assert isinstance(upper, int)
    publish(home, lower=upper + 1, added={"N2": 6}, digest=read_digest(head))
    assert "is not that of its rows, in 1 buckets" in found()["message"]
    assert ".puffin" in found()["hint"]


@pytest.mark.spark
@pytest.mark.usefixtures("jvm")
def test_without_names_all_differential_collections_are_meant(applied: CommandLine) -> None:
    (applied.folder / "planes.csv").write_text(f"tailnum,seats,built\nN1,5,{BUILT}\n")
    planned = applied("plan", "--detailed-exitcode", "--json")
    assert planned.code == ExitCode.DIFFERENCES
    assert list(planned.json["collections"]) == ["planes"]
    assert "All differential collections: planes" in planned.stderr
    assert applied("reconcile", "--json").json["collections"]["planes"]["inserted"] == 1


@pytest.mark.spark
@pytest.mark.usefixtures("jvm")
def test_a_refused_run_names_rule_and_rows_and_an_override_passes_it(applied: CommandLine) -> None:
    source = applied.folder / "planes.csv"
    source.write_text("tailnum,seats,built\n")
    refused = applied("reconcile", "planes", "--json")
    assert refused.code == ExitCode.REFUSED
    assert refused.json["collections"]["planes"]["error"]["kind"] == "GuardRefused"
    assert applied("reconcile", "planes", "--allow-empty").code == ExitCode.OK
    source.unlink()
    missing = applied("reconcile", "planes", "--json")
    assert missing.code == ExitCode.INPUT_MISSING
    assert missing.json["collections"]["planes"]["error"]["kind"] == "InputMissing"


@pytest.mark.spark
def test_stdout_of_a_process_with_spark_is_the_report_alone(applied: CommandLine) -> None:
    (applied.folder / "planes.csv").write_text(f"tailnum,seats,built\nN1,5,{BUILT}\n")
    done = applied.process("reconcile", "planes", "--json")
    assert done.code == ExitCode.OK
    assert done.json["outcome"] == "ok"
    assert "Traceback" not in done.stderr


def test_the_log_does_not_repeat_the_failures_that_a_command_prints() -> None:
    def is_shown(name: str, level: int) -> bool:
        return is_not_in_a_report(logging.LogRecord(name, level, "", 0, "it failed", None, None))

    assert not is_shown(isolation.log.name, logging.WARNING)
    assert is_shown(isolation.log.name, logging.ERROR), "the traceback of a bug"
    assert is_shown("tidemark.write_buffer", logging.WARNING)
