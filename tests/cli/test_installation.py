"""`tidemark doctor` on what other engines wrote, and on what was lost: it says what is, and promises no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.homes import Home
from tests.support.rows import SCHEMA, local_path
from tidemark.cli.app import app
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard import damage
from tidemark.iceberg.shard.head import MAIN, UPDATES, ShardHead
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def append(shard: Shard, branch: str = MAIN) -> None:
    table = shard.load().table
    schema = table.schema().as_arrow()
    values = {"k": 1, "v": "foreign", "_time": 0, "_diff": 1, "id": 1, "name": "foreign", "_producer": "?", "_batch": 0}
    row = {name: values[name] for name in schema.names}
    table.append(pa.Table.from_pylist([row], schema=schema), branch=branch)


def test_doctor_says_what_becomes_of_foreign_rows(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation = Home(home, tmp_path)
    failing = installation.declaration("failing", on_foreign_commit="fail")
    installation.apply(installation.declaration("reset"), installation.declaration("log"), failing)
    for name in ("reset", "failing"):
        append(installation.shard(name))
    append(installation.shard("log"), UPDATES)
    append(installation.shards.create("undeclared", schema=SCHEMA, key=["id"]))
    append(installation.shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY))
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    app(["doctor", "--json"])
    said = {each["subject"]: each["message"] for each in json.loads(capsys.readouterr().out)["checks"]}
    found = "1 foreign commits, +1 rows: 1 written, 0 taken away, which "
    endings = {name: said[name].partition(found)[2] for name in ("reset", "log", "failing", "undeclared", "events")}
    assert endings == {
        "reset": "the next reconcile puts right",
        "log": "the next reconcile puts right",
        "failing": "the next reconcile refuses (`on_foreign_commit: fail`)",
        "undeclared": "stay until it is declared again and reconciled",
        "events": "stay as they are",
    }


class Doctor:
    """Runs `tidemark doctor` on one home."""

    def __init__(self, home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
        self._capsys = capsys

    def __call__(self, *options: str) -> dict[str, dict[str, Any]]:
        """Return the findings about collections by name."""
        self._capsys.readouterr()
        self.code = app(["doctor", *options, "--json"])
        checks = json.loads(self._capsys.readouterr().out)["checks"]
        return {check["subject"]: check for check in checks}


@pytest.fixture
def doctor(home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(home, monkeypatch, capsys)


def data_files(shard: Shard) -> list[Path]:
    head = shard.load()
    return [Path(local_path(path)) for path in sorted(read_data_files(head.table.io, head.contents))]


@pytest.fixture
def events(home: Settings) -> Shard:
    """An append-only collection with two batches, in a file each, and a third one staged."""
    installation = Home(home, schema="id bigint, name string")
    shard = installation.shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    for start in (0, 10, 20):
        if start == 20:
            installation.switch(Mode.READ_ONLY)
        rows = pa.table({"id": pa.array([start], pa.int64()), "name": ["a"]})
        append_rows(
            shard,
            BatchName("p", Range(start, start + 10)),
            rows,
            deployment=installation.deployment,
            clock=installation.clock,
        )
    installation.shards.create("others", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    return shard


def test_a_deep_look_at_a_sound_collection_says_what_was_looked_at(events: Shard, doctor: Doctor) -> None:
    found = doctor("--deep")["events"]
    assert found["ok"]
    assert "2 rows" in found["message"]
    assert "every file is there; the ledgers have the batches of all rows" in found["message"]
    assert "change log" not in found["message"], "it has none"
    assert "every file can be read" in doctor("--deep", "--contents")["events"]["message"]
    assert found["damage"] == []


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_deep_look_names_each_damaged_file_and_the_others_stay_sound(events: Shard, doctor: Doctor, how: str) -> None:
    paths = data_files(events)
    for path in paths:
        path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-1])
    assert doctor()["events"]["ok"], "without --deep nobody looks at the files"
    found = doctor("--deep")
    assert (found["events"]["ok"], found["others"]["ok"]) == (False, True)
    assert doctor.code == ExitCode.NOT_POSSIBLE
    assert {Path(local_path(each["file"])) for each in found["events"]["damage"]} == set(paths)
    assert all(each["refs"] == ["main"] for each in found["events"]["damage"])
    assert all(path.name in found["events"]["message"] for path in paths)
    assert "What still reads: all other collections" in found["events"]["message"]
    assert "restore" in found["events"]["hint"]


def test_what_expires_during_the_look_is_no_damage(
    events: Shard, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = damage.find_damage, list[ShardHead]()

    def expire_first(head: ShardHead, **how: Any) -> list[damage.NamedFile]:
        looks.append(head)
        if len(looks) == 1:
            writer, upper = Writer.raise_token(events, 1), head.state.upper
            assert isinstance(upper, int)
            assert compact(writer, policy=CompactionPolicy(min_small_files=2)).outcome == "compacted"
            writer.advance(lower=upper, new_upper=upper + 2)
            downgrade_since(events, upper + 1, now_ms=1)
            assert expire(writer, older_than_ms=1 << 50).files
        return real(head, **how)

    monkeypatch.setattr(damage, "find_damage", expire_first)
    assert doctor("--deep")["events"]["ok"]
    assert len(looks) == 3, "twice at the events"


def test_a_damaged_batch_that_is_only_staged_can_be_appended_again(events: Shard, doctor: Doctor) -> None:
    head = events.load()
    (branch,) = head.staged_branches
    snapshot = head.table.metadata.snapshot_by_name(branch)
    assert snapshot is not None
    (file,) = read_data_files(head.table.io, snapshot)
    Path(local_path(file)).unlink()
    found = doctor("--deep")["events"]
    assert [each["refs"] for each in found["damage"]] == [[branch]]
    assert "the present contents" in found["message"]
    assert "append these batches again, or discard them" in found["hint"]


def test_rows_of_a_batch_that_is_not_in_the_ledger_are_said(events: Shard, doctor: Doctor) -> None:
    with events.load().table.transaction() as edit:
        edit.set_properties({"tidemark.ledger.p": "0:10"})
    found = doctor("--deep")["events"]
    assert not found["ok"]
    assert "{'p': 1}" in found["message"]


def test_damage_inside_a_file_is_found_by_reading_its_contents(events: Shard, doctor: Doctor) -> None:
    path, *_ = data_files(events)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)
    found = doctor("--deep", "--contents")["events"]
    assert [Path(local_path(each["file"])) for each in found["damage"]] == [path]
    assert app(["doctor", "--contents"]) == ExitCode.USAGE
