"""Parquet files: what the manifests name, what they leave alone, and what is removed when."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.sinks.targets.driving import OWNER, PLAIN, Driven, columns
from tests.support.dying import Crash, dying_at, interrupted_at
from tidemark.errors import (
    CommitStateUnknown,
    ConfigurationInvalid,
    CorruptState,
    NotPossible,
    Refused,
    SchemaMismatch,
    StaleState,
    Unreachable,
)
from tidemark.sinks.targets.files import partitions
from tidemark.sinks.targets.files.folder import GRACE_S
from tidemark.sinks.targets.files.partitions import count_buckets, directory_name
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from tidemark.settings import Settings


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def plain(home: Settings, out: Path) -> Driven:
    return Driven(home, {"path": str(out)})


@pytest.fixture
def partitioned(home: Settings, out: Path) -> Driven:
    return Driven(home, {"path": str(out), "partition": ["name"]})


def row(id_: int, name: str | None) -> dict[str, Any]:
    return {"id": id_, "name": name}


def paths(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("part-*.parquet")}


def named(out: Path) -> set[str]:
    return {file["path"] for file in read_manifest(out)["files"]}


def test_a_partition_that_nothing_touches_keeps_its_files(partitioned: Driven, out: Path) -> None:
    run = partitioned.run()
    run.load([row(1, "JFK"), row(2, "LGA"), row(3, "EWR")])
    assert {path.split("/")[0] for path in named(out)} == {"name=JFK", "name=LGA", "name=EWR"}
    before = named(out)
    run.mirror([row(3, "LGA")])  # which moves from one partition to another
    assert {path.split("/")[0] for path in named(out)} == {"name=JFK", "name=LGA"}
    assert {path.split("/")[0] for path in named(out) & before} == {"name=JFK"}
    assert run.rows() == [row(1, "JFK"), row(2, "LGA"), row(3, "LGA")]


def test_few_changes_write_few_rows_anew(plain: Driven, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BUCKET_ROWS", 100)
    run = plain.run()
    run.load([row(id_, "n") for id_ in range(1_000)])
    before = named(out)
    assert len(before) == read_manifest(out)["buckets"] == 10
    run.mirror([row(7, "changed")])
    assert len(named(out) & before) == 9
    run.mirror([row(id_, "more") for id_ in range(1_000, 6_000)])
    assert read_manifest(out)["buckets"] == 60, "the collection has outgrown its buckets"
    assert len(run.rows()) == 6_000
    run.mirror([], [row(id_, None) for id_ in range(5_999)])
    assert run.rows() == [row(5_999, "more")]


def test_buckets_are_made_for_the_rows_of_a_partition() -> None:
    found = [
        count_buckets(rows, directories) for rows, directories in [(0, 0), (1, 1), (10**6, 1), (10**6, 5), (10**9, 1)]
    ]
    assert found == [1, 1, 10, 2, 1_024]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        ("a/b=c%", "c=a%2Fb%3Dc%25"),
        ("tab\tnul\0", "c=tab%09nul%00"),
        ("München", "c=München"),
        (True, "c=true"),
        (-0.0, "c=0.0"),
        (7, "c=7"),
    ],
)
def test_folders_have_the_names_of_hive(value: object, name: str) -> None:
    assert directory_name("c", value) == name


def test_a_value_too_long_for_a_folder_is_refused(partitioned: Driven) -> None:
    with pytest.raises(Refused, match="too long"):
        partitioned.run().load([row(1, "x" * 300)])


def test_a_partition_by_what_has_no_text_is_refused(home: Settings, out: Path) -> None:
    target = open_target(Driven(home, {"path": str(out), "partition": ["name", "gone"]}).sink, home)
    with pytest.raises(SchemaMismatch, match=r"'name', 'gone'.*binary"):
        target.inspect(columns(id_1="bigint", name_2="binary"))


def test_the_log_is_in_order_and_small_files_grow(plain: Driven, out: Path) -> None:
    plain.mode = "changes"
    run = plain.run()
    run.load([{**row(0, "a"), "_time": 9, "_diff": 1}])
    for time in range(10, 15):
        run.append([{**row(time, "b"), "_time": time, "_diff": 1}, {**row(time, "c"), "_time": time, "_diff": 1}])
    assert len(named(out)) == 1
    log = arrow_rows(files_of(out, read_manifest(out)))
    assert [each["_time"] for each in log] == sorted(each["_time"] for each in log)
    assert len(log) == 11


def test_all_files_of_a_manifest_have_the_same_columns(partitioned: Driven, out: Path) -> None:
    run = partitioned.run()
    run.load([row(1, "a"), row(2, "b")])
    more = columns(id_1="bigint", name_2="string", more_3="date")
    run.mirror([{**row(3, "a"), "more": None}], cols=more)
    schemas = {str(pq.read_schema(path)) for path in files_of(out, read_manifest(out))}
    assert len(schemas) == 1
    again = columns(id_1="bigint", name_2="string", more_4="string")
    run.mirror([], cols=PLAIN)
    run.mirror([{**row(4, "c"), "more": "text"}], cols=again)
    old = [{**each, "more": None} for each in (row(1, "a"), row(2, "b"), row(3, "a"))]
    assert run.rows() == [*old, {**row(4, "c"), "more": "text"}], (
        "another column of a name takes the place of one that was dropped"
    )


def test_a_reader_of_any_manifest_of_the_last_hour_sees_one_state(partitioned: Driven, out: Path) -> None:
    run = partitioned.run()
    run.load([row(1, "a"), row(2, "b")])
    old = read_manifest(out)
    run.mirror([row(1, "A")], [row(2, None)])
    partitioned.run().mirror([row(3, "c")])
    assert sorted(arrow_rows(files_of(out, old)), key=repr) == [row(1, "a"), row(2, "b")]


def test_what_no_manifest_of_the_last_hour_names_is_removed(plain: Driven, out: Path) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    first = named(out)
    run.mirror([row(1, "b")])
    second = named(out)
    with dying_at("sink.files-written"), pytest.raises(Crash):
        run.mirror([row(1, "c")])
    (out / "theirs.parquet").write_bytes(b"another program's")
    assert len(paths(out)) == 3
    grow_older(out, GRACE_S - 60)
    plain.run()
    assert len(paths(out)) == 3
    grow_older(out, 120)
    last = plain.run()
    assert paths(out) == second
    assert first.isdisjoint(second)
    assert (out / "theirs.parquet").exists()
    assert len(list((out / "_tidemark").glob("manifest-*"))) == 3, "those that were the last one within the hour"
    assert last.rows() == [row(1, "b")]


def go_on_for_hours(plain: Driven, out: Path) -> None:
    """Let another run write, and a later one remove the manifests in between, whose numbers so are free again."""
    plain.run().mirror([row(1, "newer")])
    grow_older(out, 2 * GRACE_S)
    plain.run()


def test_a_run_that_stood_still_for_hours_before_it_published_is_refused(plain: Driven, out: Path) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    with (
        interrupted_at("sink.files-written", lambda: go_on_for_hours(plain, out)) as failures,
        pytest.raises(StaleState, match="another run"),
    ):
        run.mirror([row(1, "older")])
    assert not failures
    newest = plain.run()
    assert newest.rows() == [row(1, "newer")]
    newest.mirror([row(2, "b")])
    assert newest.rows() == [row(1, "newer"), row(2, "b")]


def test_a_run_that_stood_still_for_hours_in_its_claim_claims_again(plain: Driven, out: Path) -> None:
    plain.run().load([row(1, "a")])
    with interrupted_at("sink.files-read", lambda: go_on_for_hours(plain, out)) as failures:
        late = plain.run()
    assert not failures
    late.mirror([row(2, "b")])
    assert late.rows() == [row(1, "newer"), row(2, "b")]


def test_files_that_a_later_manifest_may_name_stay(plain: Driven) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    with interrupted_at("sink.files-committed", plain.run) as failures, pytest.raises(CommitStateUnknown):
        run.mirror([row(2, "b")])
    assert not failures
    assert plain.run().rows() == [row(1, "a"), row(2, "b")]


def test_the_files_of_a_sink_in_a_folder_inside_stay(plain: Driven, out: Path) -> None:
    inner = Driven(plain.settings, {"path": str(out / "name=x")}).run(owner=OWNER._replace(sink="inner"))
    inner.load([row(1, "inner")])
    plain.to = {**plain.to, "existing": "replace"}
    plain.run().load([row(2, "outer")])
    grow_older(out, 3 * GRACE_S)
    plain.run()
    assert inner.rows() == [row(1, "inner")]


def grow_older(out: Path, seconds: float) -> None:
    for path in out.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


def test_a_state_that_was_replaced_just_now_stays_for_an_hour(plain: Driven, out: Path) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    first = named(out)
    grow_older(out, 3 * GRACE_S)
    run.mirror([row(1, "b")])
    plain.run()
    assert first < paths(out), "somebody may have begun to read it a minute ago"


def test_the_next_run_repairs_the_name_of_the_latest_manifest(plain: Driven, out: Path) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    with dying_at("sink.files-committed"), pytest.raises(Crash):
        run.mirror([row(1, "b")])
    assert run.rows() == [row(1, "a")], "an older state, and a complete one"
    run = plain.run()
    assert run.rows() == [row(1, "b")]


def test_a_run_that_fails_leaves_no_files(plain: Driven, out: Path) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    newer = plain.run()
    before = paths(out)
    with pytest.raises(Exception, match="epoch"):
        run.mirror([row(2, "b")])
    with pytest.raises(Refused):
        newer.load([row(1, "a"), row(1, "b")])
    assert paths(out) == before
    assert not list(out.glob("*.arrow")) + list(out.glob("tmp*"))


@pytest.mark.parametrize("has_landed", [True, False])
def test_a_commit_whose_outcome_is_unknown_keeps_its_files(
    plain: Driven, monkeypatch: pytest.MonkeyPatch, *, has_landed: bool
) -> None:
    run = plain.run()
    run.load([row(1, "a")])
    real = os.link

    def link(*paths: Any) -> None:
        if has_landed:
            real(*paths)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(CommitStateUnknown):
        run.mirror([row(1, "b")])
    monkeypatch.undo()
    run = plain.run()
    assert run.rows() == [row(1, "b" if has_landed else "a")]


def test_a_file_system_without_hard_links_is_76(plain: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_paths: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(NotPossible, match="hard links"):
        plain.run()


@pytest.mark.parametrize("path", ["s3://bucket/rows", "hdfs:///rows"])
def test_another_file_system_is_78(home: Settings, path: str) -> None:
    with pytest.raises(ConfigurationInvalid, match="not a folder of this machine"):
        open_target(Driven(home, {"path": path}).sink, home)


def test_a_folder_that_cannot_be_made_is_69(home: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unreachable, match="is a file"):
        open_target(Driven(home, {"path": str(tmp_path / "file" / "out")}).sink, home).check()


def test_files_of_somebody_else_are_65(plain: Driven, out: Path) -> None:
    out.mkdir()
    (out / "theirs.parquet").write_bytes(b"")
    target = open_target(plain.sink, plain.settings)
    with pytest.raises(Refused, match="rows already"):
        target.inspect(PLAIN)
    assert [path.name for path in out.iterdir()] == ["theirs.parquet"]


def test_an_edited_manifest_is_never_guessed_at(plain: Driven, out: Path) -> None:
    plain.run().load([row(1, "a")])
    last = max((out / "_tidemark").glob("manifest-*"))
    value = json.loads(last.read_text())
    last.write_text(json.dumps({**value, "version": 99}))
    with pytest.raises(NotPossible, match="version 99"):
        plain.run(owner=OWNER)
    last.write_text("{")
    with pytest.raises(CorruptState):
        plain.run(owner=OWNER)


def test_a_disk_that_is_full_is_69_and_keeps_nothing_half_written(
    plain: Driven, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plain.run()

    def fill_up(rows: Any, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(pq, "write_table", fill_up)
        with pytest.raises(Unreachable, match="No space left"):
            run.load([row(1, "a")])
    assert paths(out) == set()
    run.load([row(1, "a")])
