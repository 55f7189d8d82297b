"""Files: what they give, what pins them, and what becomes of input that cannot be read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.sources import rows, write_parquet
from tidemark.collections.sources.formats.parquet_files import ParquetSource
from tidemark.collections.sources.pins import name_state
from tidemark.errors import (
    CommitStateUnknown,
    InputMissing,
    Refused,
    SchemaMismatch,
    SourceMoved,
    TidemarkError,
    UsageError,
)
from tidemark.interval import Interval

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sources import Opener

pytestmark = pytest.mark.spark


def test_both_passes_read_the_same_files_although_more_arrive(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/a.parquet", x=[1, 2])
    opened = opener({"format": "parquet", "path": "data"})
    assert rows(opened) == [(1,), (2,)]
    write_parquet(tmp_path / "data/b.parquet", x=[3])
    assert rows(opened) == [(1,), (2,)]
    assert not opened.moved()
    assert opened.pinnable
    assert rows(opener({"format": "parquet", "path": "data"})) == [(1,), (2,), (3,)]


def test_a_replaced_file_counts_as_moved_even_with_the_same_size_and_age(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    seen = path.stat()
    opened = opener({"format": "parquet", "path": "a.parquet"})
    before = name_state(opened.state or ())
    assert not opened.moved()
    other = write_parquet(tmp_path / "new.parquet", x=[2])
    other.replace(path)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert path.stat().st_size == seen.st_size
    assert opened.moved()
    assert name_state(opener({"format": "parquet", "path": "a.parquet"}).state or ()) != before


def test_a_file_that_vanishes_while_it_is_read_means_that_the_source_moved(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.unlink()
    assert opened.moved()
    with pytest.raises(SourceMoved):
        rows(opened)


@pytest.mark.parametrize("reads", ["read", "copied"])
def test_a_file_that_is_rewritten_while_it_is_read_moved_and_is_not_damaged(
    opener: Opener, tmp_path: Path, reads: str
) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.write_bytes(b"PAR1, and the rest is yet to come")
    with pytest.raises(SourceMoved, match=r"the source of 'planes' was changed while it was read: .*a\.parquet"):
        rows(opened) if reads == "read" else opened.materialise((tmp_path / "copy").as_uri())
    with pytest.raises(Refused):  # nobody touches it any more
        opener({"format": "parquet", "path": "a.parquet"})


def test_a_file_that_is_rewritten_while_it_is_opened_moved_and_is_not_damaged(
    opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])

    check_files = ParquetSource.check_files

    def rewrite_and_check(*arguments: Any) -> None:
        path.write_bytes(b"PAR1, and the rest is yet to come")
        check_files(*arguments)

    monkeypatch.setattr(ParquetSource, "check_files", rewrite_and_check)
    with pytest.raises(SourceMoved, match="was changed while it was opened"):
        opener({"format": "parquet", "path": "a.parquet"})


def test_what_a_moved_source_is_not_to_blame_for_stays_what_it_is(opener: Opener, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", x=[1])
    opened = opener({"format": "parquet", "path": "a.parquet"})
    path.unlink()
    with pytest.raises(CommitStateUnknown), opened.reading():
        raise CommitStateUnknown("the catalog did not answer")


@pytest.mark.parametrize("schema", [None, "k int, v string, a int"])
def test_headers_of_csv_files_lack_the_columns_of_folders(opener: Opener, tmp_path: Path, schema: str | None) -> None:
    for number in (1, 2):
        path = tmp_path / "src" / f"a={number}" / "x.csv"
        path.parent.mkdir(parents=True)
        path.write_text(f"k,v\n{number},x\n")
    source = {"format": "csv", "path": "src", "options": {"header": True}, "schema": schema}
    key = int if schema else str
    assert rows(opener(source)) == [(key(1), "x", 1), (key(2), "x", 2)]
    (tmp_path / "src" / "a=2" / "x.csv").write_text("k\n2\n")
    if schema:
        with pytest.raises(SchemaMismatch, match="lacks the column 'v'"):
            opener(source)


def test_partition_folders_become_columns_and_hidden_files_are_left_out(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "t/day=2013-01-01/a.parquet", x=[1])
    write_parquet(tmp_path / "t/day=2013-01-02/b.parquet", x=[2])
    (tmp_path / "t/_SUCCESS").write_text("")
    (tmp_path / "t/.hidden").write_text("")
    opened = opener({"format": "parquet", "path": "t", "where": "day >= '2013-01-02'"})
    assert [row[0] for row in rows(opened)] == [2]
    assert opened.desired.schema["day"].dataType.simpleString() == "date"
    assert opened.pinnable


def test_file_names_are_names_and_not_patterns(opener: Opener, tmp_path: Path) -> None:
    folder = tmp_path / "odd [a]{b}%20 c"
    folder.mkdir()
    (folder / "f*x.csv").write_text("a\n1\n")
    (folder / "f_x.csv").write_text("a\n2\n")
    source = {"format": "csv", "options": {"header": True}, "schema": "a int"}
    assert rows(opener({**source, "path": "odd [a]{b}%20 c/f*x.csv"})) == [(1,)]
    assert rows(opener({**source, "path": "odd*/*.csv"})) == [(1,), (2,)]


def test_a_materialised_copy_no_longer_follows_its_source(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,x\n")
    opened = opener({"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"})
    copy = opened.materialise((tmp_path / "copy").as_uri())
    path.write_text("a,b\n2,y\n")
    assert opened.moved()
    assert rows(copy) == [(1, "x")]
    assert not copy.moved()
    assert copy.desired.schema == opened.desired.schema
    assert name_state(copy.state or ()) == name_state(opened.state or ())


def test_the_interval_cuts_a_source(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("t\n2013-01-01 23:00:00\n2013-01-02 00:00:00\n2013-01-03 00:00:00\n")
    source = {
        "format": "csv", "path": "w.csv", "options": {"header": True}, "schema": "t timestamp",
        "where": "t >= '{start}' AND t < '{end}'",
    }  # fmt: skip
    day = Interval(1357084800000, 1357171200000)
    assert len(rows(opener(source, day))) == 1
    with pytest.raises(UsageError, match="data interval"):
        opener(source)


@pytest.mark.parametrize(
    ("source", "files", "error", "message"),
    [
        pytest.param({"format": "parquet", "path": "none"}, {}, InputMissing, "none", id="missing"),
        pytest.param({"format": "csv", "path": "*.csv", "schema": "a int"}, {}, InputMissing, "csv", id="no match"),
        pytest.param({"format": "parquet", "path": "a"}, {"a": "no parquet"}, Refused, "a is no", id="corrupt parquet"),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "a,c\n1,x\n"}, SchemaMismatch, "a.csv lacks the column 'b'", id="header",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int"},
            {"a.csv": "a,c\n1,x\n"}, SchemaMismatch, "undeclared columns: 'c'", id="more columns",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "b,a\n1,x\n"}, SchemaMismatch, "another order", id="order",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "options": {"header": True}, "schema": "a int, b string"},
            {"a.csv": "a,b\nfoo,x\n"}, Refused, r"a\.csv holds a malformed record", id="malformed value",
        ),
        pytest.param(
            {"format": "csv", "path": "a.csv", "schema": "a int, b string"},
            {"a.csv": "1,x\n2\n"}, Refused, r"a\.csv holds a malformed record: 2", id="short row",
        ),
        pytest.param(
            {"format": "json", "path": "a.json", "schema": "a int"},
            {"a.json": '{"a":1}\n{"a":'}, Refused, r"a\.json holds a malformed record", id="corrupt json",
        ),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_name(
    opener: Opener, tmp_path: Path, *, source: Any, files: Any, error: type[TidemarkError], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message) as caught:
        rows(opener(source))
    assert type(caught.value) is error


def test_parquet_files_of_one_folder_must_be_alike_unless_merging_is_declared(opener: Opener, tmp_path: Path) -> None:
    write_parquet(tmp_path / "t/a.parquet", x=[1], y=["old"])
    write_parquet(tmp_path / "t/b.parquet", x=[2])
    with pytest.raises(SchemaMismatch, match=r"column 'y' .* is string in .*a\.parquet, but missing in .*b\.parquet"):
        opener({"format": "parquet", "path": "t"})
    merged = opener({"format": "parquet", "path": "t", "options": {"mergeSchema": True}})
    assert rows(merged) == [(1, "old"), (2, None)]
