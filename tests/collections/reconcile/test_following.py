"""A run follows an Iceberg source by its changed files, and says why if it cannot; the result is that of a full run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.lakes import Lake
from tests.support.twins import GUARDS
from tidemark.collections.digest.digest import DigestNote
from tidemark.collections.reconcile.following import row_lookup
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.sources.followed import iceberg_changes
from tidemark.collections.sources.followed.iceberg_changes import Mark
from tidemark.errors import GuardRefused
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.interval import DAY_MS
from tidemark.report import COMPARED_BECAUSE, FALLBACK, FILES, CollectionReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

    MakeLake = Callable[..., Lake]

pytestmark = pytest.mark.spark

ROWS = [(1, "a"), (2, "b"), (3, "c")]
FOLLOWED = (Method.CHANGED_FILES, None)


@pytest.fixture
def make_lake(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lake]:
    """Return what makes a lake of two files, and a collection that equals it."""
    monkeypatch.setattr(iceberg_changes, "MOST_SHARE", 100.0)  # of a table of two files, one is too much

    def make(*, rows: bool = True, **more: Any) -> Lake:
        lake = Lake(home, home_spark, tmp_path, **more)
        if not rows:
            return lake
        lake.insert(*ROWS)
        lake.insert((10, "x"), (11, "y"))
        assert lake.run().strategy == Method.LOAD
        return lake

    return make


def how(report: CollectionReport) -> tuple[str, object]:
    return report.strategy, report.details.get(FALLBACK)


def check(lake: Lake, report: CollectionReport, inserted: int, retracted: int) -> None:
    assert (report.inserted, report.retracted) == (inserted, retracted)
    assert report.rows_source == lake.wanted().total()
    assert lake.stored() == lake.wanted()
    assert lake.pinned().wrong_buckets() == 0


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
@pytest.mark.parametrize(("mode", "version"), [("copy-on-write", 2), ("merge-on-read", 2), ("merge-on-read", 3)])
def test_only_changed_files_are_read(make_lake: MakeLake, key: list[str], mode: str, version: int) -> None:
    lake = make_lake(key=key, mode=mode, version=version)
    compared_ms = lake.pinned().note.compared_ms
    steps = {
        "UPDATE LAKE SET v = 'B' WHERE k = 2": (1, 1),
        "DELETE FROM LAKE WHERE k = 1": (0, 1),
        "INSERT INTO LAKE VALUES (4, 'd')": (1, 0),
        "UPDATE LAKE SET v = 'z' WHERE k IN (3, 11)": (2, 2),
    }
    for step, counts in steps.items():
        lake.sql(step)
        report = lake.run()
        assert how(report) == FOLLOWED, step
        check(lake, report, *counts)
    assert lake.pinned().note.compared_ms == compared_ms, "not all rows were compared"


def test_what_was_compacted_between_is_not_read(make_lake: MakeLake) -> None:
    lake = make_lake(is_named=True)
    lake.compact()
    lake.insert((4, "d"))
    lake.compact()
    lake.insert((5, "e"))
    lake.expire()
    report = lake.run()
    assert how(report)[0] != Method.CHANGED_FILES, "the first compaction has expired, and with it what was read last"
    lake.compact()
    lake.expire()
    lake.insert((6, "f"))
    report = lake.run()
    assert how(report) == FOLLOWED
    assert report.details[FILES] == {"added": 1, "removed": 0, "with_other_deletes": 0}
    check(lake, report, 1, 0)
    lake.compact()
    report = lake.run()
    assert (how(report), report.details[FILES]) == (FOLLOWED, {"added": 0, "removed": 0, "with_other_deletes": 0})
    check(lake, report, 0, 0)


def test_a_run_over_many_collections_follows_unless_all_rows_are_asked_for(make_lake: MakeLake) -> None:
    lake = make_lake()
    for full, strategy in ((True, Method.BUCKETS), (False, Method.CHANGED_FILES)):
        lake.insert((lake.home.clock.now_ms(), "new"))
        lake.home.clock.step(10)
        name, deployment = lake.names["copy"], lake.home.deployment
        report = reconcile_all(lake.spark, deployment, [name], full=full, clock=lake.home.clock).collections[name]
        assert how(report) == (strategy, None)
        check(lake, report, 1, 0)


def test_a_condition_limits_what_came_and_what_went(make_lake: MakeLake) -> None:
    lake = make_lake(source={"where": "v < 'm'"})
    lake.sql("UPDATE LAKE SET v = 'z' WHERE k = 2", "UPDATE LAKE SET v = 'd' WHERE k = 10")
    report = lake.run()
    assert how(report) == FOLLOWED
    check(lake, report, 1, 1)


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
def test_deletes_by_value_and_by_position_are_applied(make_lake: MakeLake, key: list[str]) -> None:
    lake = make_lake(key=key, mode="merge-on-read")
    before = lake.snapshots()[-1]
    lake.delete_equal(2, 11)
    report = lake.run()
    assert (how(report), report.details[FILES]) == (FOLLOWED, {"added": 0, "removed": 0, "with_other_deletes": 2})
    check(lake, report, 0, 2)
    lake.sql("DELETE FROM LAKE WHERE k = 3")
    lake.insert((2, "new"))
    check(lake, lake.run(), 1, 1)
    lake.set_snapshot(before)  # deleted rows come back
    report = lake.run()
    assert how(report) == FOLLOWED
    check(lake, report, 3, 1)


def test_copies_of_a_row_are_counted_and_the_youngest_go(make_lake: MakeLake) -> None:
    lake = make_lake(key=[])
    lake.insert((1, "a"), (1, "a"), (4, "d"))
    check(lake, lake.run(), 3, 0)
    lake.sql("DELETE FROM LAKE WHERE k IN (1, 4)")
    lake.insert((1, "a"))
    report = lake.run()
    assert how(report) == FOLLOWED
    check(lake, report, 0, 3)
    kept = [row["_time"] for row in lake.home.rows(lake.names["copy"]) if row["k"] == 1]
    assert kept == [min(row["_time"] for row in lake.home.rows(lake.names["copy"]))]


# -- what cannot be followed ------------------------------------------------------------------------------------------


def replace_table(lake: Lake) -> None:
    lake.sql("DROP TABLE LAKE")
    shutil.rmtree(lake.place, ignore_errors=True)
    lake.create(mode="copy-on-write", version=2)
    lake.insert((1, "other"))


def lose_old_file(lake: Lake) -> None:
    """Remove a file as an orphan that the last snapshot does not have any more."""
    before = {each["file_path"] for each in files_of(lake)}
    lake.sql("UPDATE LAKE SET v = 'new' WHERE k = 1")
    for path in before - {each["file_path"] for each in files_of(lake)}:
        Path(path.removeprefix("file:")).unlink()


def files_of(lake: Lake) -> list[Any]:
    return lake.spark.sql(f"SELECT file_path FROM {lake.catalog}.a.lake.files").collect()


def lose_digest(lake: Lake) -> None:
    location = lake.home.shard(lake.names["copy"]).load().table.location().removeprefix("file://")
    for path in Path(location).rglob("*.puffin"):
        path.unlink()
    lake.insert((5, "e"))


def change_columns(lake: Lake) -> None:
    lake.sql("ALTER TABLE LAKE ADD COLUMN w int", "ALTER TABLE LAKE DROP COLUMN w")  # that alone is seen as no change
    lake.sql("ALTER TABLE LAKE ALTER COLUMN v COMMENT 'what is worth knowing'")
    lake.insert((6, "f"))


def expire(lake: Lake) -> None:
    lake.insert((7, "g"))
    lake.expire()


def set_mark(lake: Lake, mark: str) -> None:
    """Say that the contents are those of another snapshot, which nothing but a bug could do."""
    shard, upper = lake.home.shard(lake.names["copy"]), lake.home.upper(lake.names["copy"])
    head = shard.load()
    Writer.join(shard, 1).advance(
        lower=upper,
        new_upper=upper + 1,
        digest=read_digest(head),
        digest_note=str(replace(lake.pinned().note, mark=mark)),
        digest_schema_id=head.table.metadata.current_schema_id,
    )


REASONS: dict[str, Callable[[Lake], None]] = {
    "has expired": expire,
    "the columns of the table": change_columns,
    "cannot be read": lose_old_file,
    "no digest": lose_digest,
    "another table": replace_table,
}


def test_all_rows_are_compared_if_the_changes_are_not_known(make_lake: MakeLake) -> None:
    lake = make_lake()
    for reason, change in REASONS.items():
        change(lake)
        report = lake.run()
        assert report.strategy != Method.CHANGED_FILES
        assert reason in str(report.details[FALLBACK])
        assert lake.stored() == lake.wanted(), reason
        assert lake.pinned().wrong_buckets() == 0
        lake.insert((lake.home.clock.now_ms(), "and then"))
        assert how(lake.run()) == FOLLOWED, f"again after: {reason}"


def test_another_declaration_a_full_run_and_a_week_compare_all_rows(make_lake: MakeLake) -> None:
    lake = make_lake()
    lake.insert((4, "d"))
    report = lake.run(verify_after="8d")
    assert how(report) == (Method.BUCKETS, "the declaration, or a column of the collection, is another one")
    lake.names["twin"] = lake.names["copy"]
    lake.declared["verify_after"] = "8d"
    lake.insert((5, "e"))
    assert COMPARED_BECAUSE not in report.details
    report = lake.run("twin")
    assert how(report) == (Method.BUCKETS, None), "asked for"
    assert report.details[COMPARED_BECAUSE] == "`full` asks for it"
    lake.insert((6, "f"))
    lake.home.clock.step(8 * DAY_MS)
    report = lake.run()
    assert how(report) == (Method.BUCKETS, None), "due"
    last = "all rows were compared last at 1970-01-01 00:00:01.030 UTC"
    assert report.details[COMPARED_BECAUSE] == f"`verify_after` makes it due: {last}"
    lake.insert((7, "g"))
    lake.home.clock.step(-DAY_MS)
    report = lake.run()
    assert how(report) == (Method.BUCKETS, None), "the last comparison is to come"
    assert "the clock was set back" in str(report.details[COMPARED_BECAUSE])
    lake.insert((8, "h"))
    report = lake.run()
    assert how(report) == FOLLOWED
    assert COMPARED_BECAUSE not in report.details


def test_it_is_told_that_nothing_is_kept_from_which_changes_could_be_followed(make_lake: MakeLake) -> None:
    lake = make_lake()
    set_mark(lake, "")
    lake.insert((4, "d"))
    report = lake.run()
    assert how(report) == (Method.BUCKETS, None)
    assert report.details[COMPARED_BECAUSE] == "nothing is kept from which the changes could be followed"
    lake.declared["guards"] = {**GUARDS, "on_duplicate_key": {"first_by": "v"}}
    lake.run()
    lake.insert((5, "e"))
    assert COMPARED_BECAUSE not in lake.run().details, "such a source is never followed"


def test_comparing_all_rows_is_less_work_if_most_files_changed(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    monkeypatch.undo()
    lake.sql("UPDATE LAKE SET v = 'new' WHERE k = 1")
    assert "too much has changed" in str(lake.run().details[FALLBACK])
    assert lake.stored() == lake.wanted()


def test_a_key_that_came_again_is_refused_with_its_rows(make_lake: MakeLake) -> None:
    lake = make_lake()
    lake.insert((2, "b"))
    with pytest.raises(GuardRefused) as refused:
        lake.run()
    assert refused.value.sample == [{"k": 2, "v": "b"}, {"k": 2, "v": "b"}]
    planned = lake.reconciliation().plan()
    assert planned.details[FALLBACK] == "a key that came is stored already"
    lake.sql("DELETE FROM LAKE WHERE k = 2")
    lake.insert((12, "m"), (12, "n"))
    assert lake.reconciliation().plan().details[FALLBACK] == "a key came more than once"
    lake.sql("DELETE FROM LAKE WHERE v = 'n'")
    lake.insert((2, "moved"))
    report = lake.run()
    assert how(report) == FOLLOWED
    check(lake, report, 2, 1)


def test_guards_mean_what_they_mean_in_a_full_run(make_lake: MakeLake) -> None:
    lake = make_lake(guards={"max_delete_ratio": 0.3})
    lake.sql("DELETE FROM LAKE WHERE k < 3")
    with pytest.raises(GuardRefused, match="2 of 5 stored rows would vanish"):
        lake.run()
    planned = lake.reconciliation().plan()
    assert how(planned) == FOLLOWED
    lake.sql("DELETE FROM LAKE WHERE true")
    with pytest.raises(GuardRefused, match="the source has no rows, 5 are stored"):
        lake.run()
    lake.insert(*ROWS, (10, "x"), (11, "y"), (None, "nobody"))
    with pytest.raises(GuardRefused, match="1 source rows have a NULL in their key"):
        lake.run()


def test_a_source_of_which_no_row_meets_the_condition_is_refused(make_lake: MakeLake) -> None:
    lake = make_lake(guards={"max_delete_ratio": 1.0}, source={"where": "v < 'm'"})
    lake.sql("UPDATE LAKE SET v = 'z' WHERE true")
    assert lake.reconciliation().plan().details[FALLBACK] == "no row would be left"
    with pytest.raises(GuardRefused, match="the source has no rows, 3 are stored"):
        lake.run()


def test_rows_without_a_key_are_dropped_if_that_is_declared(make_lake: MakeLake) -> None:
    lake = make_lake(guards={**GUARDS, "on_null_key": "drop"})
    lake.insert((None, "nobody"), (4, "d"))
    report = lake.run()
    assert (how(report), report.inserted) == (FOLLOWED, 1)
    lake.sql("DELETE FROM LAKE WHERE k IS NULL")
    report = lake.run()
    assert (how(report), report.inserted, report.retracted) == (FOLLOWED, 0, 0)


@pytest.mark.parametrize(
    ("key", "reason"),
    [(["k"], "a row that went is stored with other values"), ([], "a row that went is not stored")],
    ids=["keyed", "multiset"],
)
def test_contents_that_are_not_the_old_rows_are_found_out(make_lake: MakeLake, key: list[str], reason: str) -> None:
    lake = make_lake(key=key)
    before = lake.pinned().note.mark
    lake.sql("UPDATE LAKE SET v = 'other' WHERE k = 1", "DELETE FROM LAKE WHERE k = 10")
    assert how(lake.run()) == FOLLOWED
    set_mark(lake, before)
    lake.sql("UPDATE LAKE SET v = 'B' WHERE k = 1")
    lake.insert((10, "x"))
    report = lake.run()
    assert report.details[FALLBACK] == reason
    assert lake.stored() == lake.wanted()
    set_mark(lake, before)
    lake.sql("DELETE FROM LAKE WHERE k = 1", "DELETE FROM LAKE WHERE k = 10")
    lake.run()
    set_mark(lake, before)
    assert lake.reconciliation().plan().details[FALLBACK] == "a row that went is not stored"


def test_rows_that_would_be_inserted_twice_are_found_out_by_their_number(make_lake: MakeLake) -> None:
    lake = make_lake(key=[])
    before = lake.pinned().note.mark
    lake.insert((20, "q"))
    lake.run()
    set_mark(lake, before)
    lake.insert((21, "r"))
    report = lake.run()
    assert report.details[FALLBACK] == "the table would have 8 rows, and says that it has 7 to 7"
    assert lake.stored() == lake.wanted()


DECLARED: dict[str, dict[str, Any]] = {
    "options": {"source": {"options": {"split-size": "1000000"}}},
    "another table": {"source": {"where": "k <= (SELECT max(k) FROM LAKE)"}},
    "the first row of a key": {"guards": {**GUARDS, "on_duplicate_key": {"first_by": "v"}}},
}


def test_what_depends_on_more_than_single_rows_has_no_mark(make_lake: MakeLake) -> None:
    lake = make_lake()
    assert lake.pinned().note.mark
    for name, declared in DECLARED.items():
        where = declared.get("source", {}).get("where", "").replace("LAKE", f"{lake.catalog}.a.lake")
        lake.run(**{**declared, **({"source": {"where": where}} if where else {})})
        assert not lake.pinned().note.mark, name


@pytest.mark.parametrize("declared", [{}, {"key": []}, {"source": {"where": "v <> 'no'"}}], ids=str)
def test_another_file_under_the_name_of_one_that_went_is_found_out(
    make_lake: MakeLake, declared: dict[str, Any]
) -> None:
    """As where a nightly job overwrites `data.parquet`, and registers it again."""
    lake = make_lake(**declared)
    file = lake.folder / "nightly" / "data.parquet"
    file.parent.mkdir()
    for values in (["one", "two"], ["six", "two"]):
        pq.write_table(pa.table({"k": pa.array([20, 21], pa.int64()), "v": values}), file)
        lake.sql("DELETE FROM LAKE WHERE k >= 20")
        lake.call("add_files", f"source_table => '`parquet`.`{file.parent}`'", "check_duplicate_files => false")
        report = lake.run()
    assert how(report)[1] == "a file went, and another one came under its name"
    check(lake, report, 1, 1)


def test_nested_fields_that_are_never_null_are_followed(make_lake: MakeLake) -> None:
    lake = make_lake(columns="k bigint, s struct<a: int NOT NULL, b: string>", rows=False)
    lake.sql("INSERT INTO LAKE VALUES (1, named_struct('a', 1, 'b', 'x')), (2, named_struct('a', 2, 'b', 'y'))")
    assert lake.run().inserted == 2
    for step, counts in {
        "INSERT INTO LAKE VALUES (3, NULL)": (1, 0),
        "UPDATE LAKE SET s = named_struct('a', 3, 'b', 'z') WHERE k = 3": (1, 1),
        "UPDATE LAKE SET s = NULL WHERE k = 1": (1, 1),
    }.items():
        lake.sql(step)
        report = lake.run()
        assert (how(report), report.inserted, report.retracted) == (FOLLOWED, *counts), step
    assert lake.pinned().wrong_buckets() == 0


def test_a_column_may_have_any_name(make_lake: MakeLake) -> None:
    lake = make_lake(columns="k bigint, place string", mode="merge-on-read")
    lake.sql("DELETE FROM LAKE WHERE k = 1")
    report = lake.run()
    assert (how(report), report.retracted) == (FOLLOWED, 1)


LIMITS = {
    "too many rows equal those that changed": (row_lookup, "MOST_COPIES", 1),
    "too many files of deletes apply to the files of the table: it wants to be compacted": (
        iceberg_changes, "MOST_DELETES", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("why", "limit"), LIMITS.items(), ids=LIMITS)
def test_what_takes_too_much_memory_is_not_followed(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch, why: str, limit: tuple[Any, str, int]
) -> None:
    lake = make_lake(key=[], mode="merge-on-read")
    lake.insert(*[(7, "same")] * 3)
    lake.run()
    lake.insert((7, "same"))
    lake.run()
    monkeypatch.setattr(*limit)
    lake.sql("DELETE FROM LAKE WHERE k = 1")
    lake.set_snapshot(lake.snapshots()[-3]) if limit[1] == "MOST_COPIES" else None
    report = lake.run()
    assert how(report)[1] == why
    assert lake.stored() == lake.wanted()


def test_what_fails_in_following_fails_no_run(make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake()
    lake.insert((4, "d"))
    monkeypatch.setattr(iceberg_changes.FollowedTable, "find_changes", lambda *_, **__: {}["gone"])
    report = lake.run()
    assert "cannot be read" in str(how(report)[1])
    check(lake, report, 1, 0)


def test_a_mark_is_written_and_read() -> None:
    mark = Mark("0-a", -5, 2, "beef")
    assert Mark.parse(str(mark)) == mark
    assert Mark.parse("") is None
    note = DigestNote(4, 0.5, is_quiet=True, source="ab", compared_ms=7, mark=str(mark))
    assert DigestNote.parse(str(note)) == note
    older = DigestNote.parse("buckets=4 change-rate=0.5 quiet=yes source=ab compared=7")
    assert older == DigestNote(4, 0.5, is_quiet=True, source="ab", compared_ms=7)
