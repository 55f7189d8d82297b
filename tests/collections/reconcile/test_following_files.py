"""A run reads the changed files of a source alone, and says why if it cannot; the result is that of a full run."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.file_sets import FileSet
from tests.support.homes import Home
from tests.support.twins import GUARDS
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.collections.digest import scan
from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.driver_room import DriverRoom
from tidemark.collections.digest.file_digests import FileDigest, FileDigests
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile import comparison, reconciliation
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE
from tidemark.collections.reconcile.following import replaced_files
from tidemark.collections.reconcile.following.replaced_files import FileSetChanges
from tidemark.collections.reconcile.following.row_lookup import RowLookup
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.sources import file_listing
from tidemark.collections.sources.file_listing import FileState
from tidemark.collections.sources.followed.file_set import FollowedFiles
from tidemark.collections.sources.formats.parquet_files import ParquetSource
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import GuardRefused
from tidemark.iceberg.shard.digest_file import bound_file, read_digest, write_digest
from tidemark.interval import DAY_MS
from tidemark.report import COMPARED_BECAUSE, FALLBACK, FILES, CollectionReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.collections.digest.row_layout import RowShape
    from tidemark.settings import Settings

    MakeFiles = Callable[..., FileSet]

SECOND_NS = 10**9
ROWS = {"a": [(1, "a"), (2, "b"), (3, "c")], "b": [(11, "x"), (12, "y")], "c": [(21, "z"), (None, "no key")][:1]}
KEYS = pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])


@pytest.fixture
def make_files(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FileSet]:
    """Return what makes three files, and a collection that equals them."""
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 100.0)  # of a folder of three files, one is much
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)

    def make(rows: dict[str, Any] = ROWS, **more: Any) -> FileSet:
        files = FileSet(home, home_spark, tmp_path, **more)
        for name, some in rows.items():
            files.write(name, some)
        files.start()
        loaded = files.run()
        assert (loaded.strategy, loaded.details) == (Method.LOAD, {})
        return files

    return make


def how(report: CollectionReport) -> tuple[str, object]:
    return report.strategy, report.details.get(FALLBACK)


def check(files: FileSet, report: CollectionReport, inserted: int, retracted: int, **numbers: int) -> None:
    """Check a run that followed, and the numbers of the files that it read."""
    assert how(report) == (Method.CHANGED_FILES, None)
    assert (report.inserted, report.retracted) == (inserted, retracted)
    assert report.details[FILES] == {"added": 0, "removed": 0, "replaced": 0, **numbers}
    check_rows(files, report)


def check_rows(files: FileSet, report: CollectionReport) -> None:
    assert report.rows_source == files.wanted().total()
    assert files.stored() == files.wanted()
    pinned = files.pinned()
    assert pinned.wrong_buckets() == 0
    assert pinned.file_digests is not None
    assert pinned.digest is not None
    assert len(pinned.file_digests.total().differing(pinned.digest)) == 0


@pytest.mark.spark
@KEYS
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_only_changed_files_are_read(make_files: MakeFiles, key: list[str], form: str) -> None:
    files = make_files(key=key, form=form)
    compared_ms = files.pinned().note.compared_ms
    files.write("a", [(1, "a"), (2, "B"), (4, "d")])
    check(files, files.run(), 2, 2, replaced=1)
    files.write("d", [(31, "new")])
    check(files, files.run(), 1, 0, added=1)
    files.remove("b")
    check(files, files.run(), 0, 2, removed=1)
    files.write("a", files.rows["a"])
    files.touch("c")
    check(files, files.run(), 0, 0, replaced=2)
    files.rename("d", "e")
    check(files, files.run(), 0, 0, added=1, removed=1)
    files.write("a", files.rows["a"][:1])
    files.write("c", [*files.rows["c"], *[(2, "B")]])
    check(files, files.run(), 0, 1, replaced=2)
    assert files.pinned().note.compared_ms == compared_ms, "not all rows were compared"


@pytest.mark.spark
@KEYS
@pytest.mark.parametrize(
    ("limits", "looks"),
    [
        ({"MOST_NEAR": -1}, [["stored_between"], ["stored_between"]]),
        ({"MOST_WHOLE": -1}, [["stored_hashes", "came", "stored"], ["stored_hashes", "stored"]]),
        (
            {"MOST_WHOLE": -1, "MOST_NEAR": -1},
            [["stored_hashes", "stored_hashes", "came", "stored"], ["stored_hashes", "stored_hashes", "stored"]],
        ),
    ],
    ids=["rows", "hashes", "what is asked for"],
)
def test_stored_rows_near_are_taken_whole_or_by_their_hashes_or_looked_up(
    make_files: MakeFiles,
    monkeypatch: pytest.MonkeyPatch,
    key: list[str],
    limits: dict[str, int],
    looks: list[list[str]],
) -> None:
    files = make_files(key=key)
    for name, limit in limits.items():
        monkeypatch.setattr(replaced_files, name, limit)
    looked = list[str]()
    for look in ("came", "stored", "stored_between", "stored_hashes"):
        monkeypatch.setattr(RowLookup, look, recording(getattr(RowLookup, look), looked))
    files.write("a", [(1, "a"), (2, "B")])
    check(files, files.run(), 1, 2, replaced=1)
    assert looked == looks[0]
    looked.clear()
    files.remove("b")
    check(files, files.run(), 0, 2, removed=1)
    assert looked == looks[1]


def recording(look: Callable[..., Any], looked: list[str]) -> Callable[..., Any]:
    def record(*arguments: Any, **named: Any) -> Any:
        looked.append(look.__name__)
        return look(*arguments, **named)

    return record


@pytest.mark.spark
def test_no_digests_are_kept_of_files_that_are_all_replaced_each_time(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files()
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 0.5)
    for word, reason in (("once", "most is in files that have changed"), ("again", "all had been replaced")):
        for name, rows in [*files.rows.items()]:
            files.write(name, [(key, word) for key, _ in rows])
        report = files.run()
        assert reason in str(report.details[FALLBACK])
        kept = files.pinned().file_digests
        assert kept is not None
        assert not kept.has_sums
        assert files.stored() == files.wanted()
    files.write("a", [(1, "a")])
    report = files.run()
    assert "all had been replaced" in str(report.details[FALLBACK])
    check_rows(files, report)
    files.write("a", [(1, "b")])
    check(files, files.run(), 1, 1, replaced=1)


@pytest.mark.spark
def test_files_that_were_all_touched_are_first_looked_at_as_a_whole(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files()
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 0.5)
    bucket_counts, scan_digest = list[int](), comparison.scan_digest

    def look(frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, **more: Any) -> scan.Scanned:
        bucket_counts.append(bucket_count)
        return scan_digest(frame, shape, prefix, bucket_count, **more)

    monkeypatch.setattr(comparison, "scan_digest", look)
    for _ in range(2):
        for name in files.rows:
            files.touch(name)
        assert files.run().outcome is Outcome.UNCHANGED
    assert bucket_counts == [1, 1]
    for name, rows in [*files.rows.items()]:
        files.write(name, [(key, value.swapcase()) for key, value in rows])
    assert files.run().inserted == len(files.wanted())
    assert bucket_counts[2] == 1, "the sizes are the same"
    assert files.stored() == files.wanted()


@pytest.mark.spark
def test_files_of_more_rows_than_the_driver_takes_are_followed(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "DRIVER_HASHES", 4)
    files = make_files()
    files.write("a", [(1, "A"), (2, "b"), (3, "c")])
    check(files, files.run(), 1, 1, replaced=1)


@pytest.mark.spark
@pytest.mark.parametrize("declared", [{"key": []}, {"key": ["k", "v"]}], ids=["multiset", "keyed"])
def test_rows_near_that_are_many_more_than_values_spread_evenly_are_not_taken(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any]
) -> None:
    """As where most orders have a quantity of at most ten, and one in each file has a million."""
    rows = {name: [(n % 10, f"{name}{n}") for n in range(999)] + [(10**6, name)] for name in "abc"}
    files = make_files({**rows, "d": [(n, "small") for n in range(10)]}, **declared)
    taken, limit = list[int](), 100
    monkeypatch.setattr(replaced_files, "MOST_NEAR", limit)
    monkeypatch.setattr(replaced_files, "MOST_WHOLE", limit * files.pinned().row_bytes)
    for look in ("stored", "stored_between", "stored_hashes"):
        monkeypatch.setattr(RowLookup, look, counting(getattr(RowLookup, look), taken))
    files.write("d", [(n, "small" if n else "other") for n in range(10)])
    check(files, files.run(), 1, 1, replaced=1)
    assert max(taken) <= limit
    files.remove("d")
    check(files, files.run(), 0, 10, removed=1)
    assert max(taken) <= limit


def counting(look: Callable[..., Any], taken: list[int]) -> Callable[..., Any]:
    def count(*arguments: Any, **named: Any) -> Any:
        found = look(*arguments, **named)
        taken.append(len(found))
        return found

    return count


@pytest.mark.spark
@pytest.mark.parametrize(("limit", "near_rows"), [(10**6, 4), (3, 3)], ids=["all", "a part"])
def test_stored_rows_near_are_counted_in_the_room_of_the_driver(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch, limit: int, near_rows: int
) -> None:
    files = make_files({"a": [(1, "a"), (2, "b")], "b": [(3, "c")], "c": [(4, "d")]})
    files.remove("c")
    wanted, taking = list[int](), DriverRoom.taking
    monkeypatch.setattr(DriverRoom, "taking", lambda room, size: wanted.append(size) or taking(room, size))
    monkeypatch.setattr(replaced_files, "MOST_WHOLE", 0)
    monkeypatch.setattr(replaced_files, "MOST_NEAR", limit)
    check(files, files.run(), 0, 1, removed=1)
    assert wanted == [near_rows * replaced_files._BYTES_PER_ROW], "and no row came"


@pytest.mark.spark
def test_copies_of_rows_are_counted(make_files: MakeFiles) -> None:
    files = make_files({"a": [(1, "a")] * 5 + [(2, "b")], "b": [(1, "a")] * 2, "c": [(9, "z")]}, key=[])
    files.write("a", [(1, "a")] * 3)
    check(files, files.run(), 0, 3, replaced=1)
    files.remove("b")
    check(files, files.run(), 0, 2, removed=1)
    files.write("c", [(9, "z"), (1, "a"), (1, "a")])
    report = files.run()
    assert how(report) == (Method.BUCKETS, None), "whether these are the copies of before is not known"
    assert report.details[FILES]["replaced"] == 1
    assert report.inserted == 2
    check_rows(files, report)


@pytest.mark.spark
def test_so_many_rows_that_went_that_they_are_not_known_are_compared_by_buckets(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_files, "settle", lambda *_: (None, [1]))
    files = make_files()
    files.write("a", [(1, "a")])
    report = files.run()
    assert how(report) == (Method.BUCKETS, None)
    assert (report.details[FILES]["replaced"], report.retracted) == (1, 2)
    check_rows(files, report)
    monkeypatch.setattr(replaced_files, "is_worth_filtering", lambda **_: False)
    files.write("a", [])
    assert "many rows went" in str(how(files.run())[1])
    assert files.stored() == files.wanted()


@pytest.mark.spark
@pytest.mark.parametrize("where", ["new", "old"])
def test_a_key_in_two_files_is_refused_with_both_rows(make_files: MakeFiles, where: str) -> None:
    files = make_files()
    files.write("d" if where == "new" else "a", [*files.rows.get("a", [])[: 3 * (where == "old")], (11, "again")])
    with pytest.raises(GuardRefused, match=r"1 keys .* occur more than once") as refused:
        files.run()
    found = sorted((row["v"], row["k"], row["_file"]) for row in refused.value.sample)
    paths = {name: f"file://{files.folder}/{name}.parquet" for name in "abd"}
    assert found == [("again", 11, paths["d" if where == "new" else "a"]), ("x", 11, paths["b"])]
    files.remove("b")
    assert files.run().rows_source == files.wanted().total()
    assert files.stored() == files.wanted()


@pytest.mark.spark
def test_rows_without_a_key_are_refused_or_dropped_as_ever(make_files: MakeFiles) -> None:
    files = make_files(guards={**GUARDS, "on_null_key": "drop"})
    files.write("d", [(None, "x"), (5, "e")])
    report = files.run()
    assert (how(report), report.inserted) == ((Method.CHANGED_FILES, None), 1)
    files.write("d", [(None, "y"), (None, "z"), (6, "f")])
    assert how(report := files.run()) == (Method.CHANGED_FILES, None)
    assert (report.inserted, report.retracted, report.rows_source) == (1, 1, 7)
    files = make_files()
    files.write("d", [(None, "x"), (5, "e")])
    with pytest.raises(GuardRefused, match="NULL"):
        files.run()


@pytest.mark.spark
def test_a_file_rewritten_in_place_with_its_size_and_time_is_read(make_files: MakeFiles) -> None:
    files = make_files(form="csv")
    path = files.folder / "b.csv"
    seen = path.stat()
    path.write_bytes(path.read_bytes().replace(b"11", b"13"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    files.rows["b"] = [(13, "x"), (12, "y")]
    check(files, files.run(), 1, 1, replaced=1)


@pytest.mark.spark
def test_a_full_run_tells_of_a_file_that_was_rewritten_without_a_trace(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = file_listing._state
    monkeypatch.setattr(file_listing, "_state", lambda *seen: replace(state(*seen), changed_ns=1))  # one that lies
    files = make_files(form="csv")
    name, deployment, clock = files.names["copy"], files.home.deployment, files.home.clock
    reconcile = partial(reconcile_all, files.spark, deployment, [name], clock=clock)
    assert "unnoticed" not in reconcile(full=True).collections[name].details, "nothing has changed"
    path = files.folder / "b.csv"
    seen = path.stat()
    path.write_bytes(path.read_bytes().replace(b"11", b"13"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    files.rows["b"] = [(13, "x"), (12, "y")]
    assert reconcile().collections[name].strategy == SAME_SOURCE, "nobody can know"
    report = reconcile(full=True).collections[name]
    assert (report.inserted, report.retracted) == (1, 1)
    told = str(report.details["unnoticed"])
    assert "has other rows, although its state has the same name" in told
    assert f"{name}: {told}" in caplog.messages
    check_rows(files, report)


@pytest.mark.spark
def test_a_file_that_may_change_in_the_same_second_is_read_again(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files()
    files.write("a", [(1, "A")])
    monkeypatch.setattr(replaced_files, "is_settled", lambda file, _: "a.parquet" not in file.uri)
    check(files, files.run(), 1, 3, replaced=1)
    monkeypatch.undo()
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 100.0)
    check(files, files.run(), 0, 0, replaced=1)


@pytest.mark.spark
def test_files_that_are_new_at_each_run_do_not_make_a_full_run_due(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of files whose times are in whole seconds: remote ones."""
    state = file_listing._state

    def coarse_state(path: str, stat: os.stat_result) -> FileState:
        found = state(path, stat)
        return FileState(found.uri, found.size_bytes, found.modified_ns // SECOND_NS * SECOND_NS)

    monkeypatch.setattr(file_listing, "_state", coarse_state)
    files = make_files(now_ms=SystemClock().now_ms())
    compared_ms = files.pinned().note.compared_ms
    assert not files.pinned().note.source, "a file that was written just now may change without a trace"
    for name in "ab":
        os.utime(files.folder / f"{name}.parquet", (0, 0))
    files.write("d", [(5, "e")])
    check(files, files.run(), 1, 0, added=1, replaced=3)
    files.write("d", [(5, "f")])
    check(files, files.run(), 1, 1, replaced=2)
    assert not files.pinned().note.source
    assert files.pinned().note.compared_ms == compared_ms
    files.home.clock.step(7 * DAY_MS)
    report = files.run()
    assert how(report) == (Method.DIGEST, None)
    assert "`verify_after` makes it due" in str(report.details[COMPARED_BECAUSE])
    assert files.pinned().note.compared_ms > compared_ms
    assert files.pinned().note.source


@pytest.mark.spark
def test_what_decides_beside_the_files_is_noticed(make_files: MakeFiles) -> None:
    files = make_files(source={"where": "k < 100"})
    files.write("d", [(5, "e")])
    check(files, files.run(), 1, 0, added=1)
    files.write("d", [(6, "f")])
    report = files.run(source={"where": "k < 20"})
    assert how(report)[1] == "the declaration, or a column of the collection, is another one"
    assert report.rows_source == files.wanted().total() - 1
    files.declared["source"] = {"where": "k < 20"}
    files.write("e", [(7, "g"), (70, "h")])
    check(files, files.run(), 1, 0, added=1)


@pytest.mark.spark
def test_other_columns_of_files_are_noticed(make_files: MakeFiles) -> None:
    files = make_files(schema="k bigint, v string")
    for name, rows in files.rows.items():
        table = pa.table({"k": [row[0] for row in rows], "v": [row[1] for row in rows], "more": ["m"] * len(rows)})
        pq.write_table(table, files.folder / f"{name}.parquet")
    report = files.run()
    assert how(report)[1] == "the declaration, or a column of the collection, is another one"
    check_rows(files, report)


@pytest.mark.spark
@pytest.mark.parametrize("damage", ["none", "bytes", "layout", "sums", "commit", "gone"])
def test_digests_that_do_not_fit_are_made_anew(
    make_files: MakeFiles, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    files = make_files()
    pinned = files.pinned()
    kept, head = pinned.file_digests, pinned.head
    bound, digest = bound_file(head), read_digest(head)
    assert kept is not None
    assert bound is not None
    assert digest is not None
    name = PurePath(bound.statistics_path).stem.removeprefix("tidemark-digest-")
    other = FileDigests(
        kept.decided_by,
        {uri: FileDigest(file.state, file.digest + file.digest, file.bounds) for uri, file in kept.files.items()},
    )
    layout = pinned.shape.layout
    parts = {
        "none": None,
        "bytes": b"TMFDxxxxxxxx",
        "layout": kept.to_bytes("another"),
        "sums": other.to_bytes(layout),
        "commit": kept.to_bytes(layout),
        "gone": None,
    }[damage]
    if damage == "commit":
        files.append_elsewhere((77, "foreign"))
        files.write("a", [(1, "a")])
        files.run(), files.run("twin")
        head = files.pinned().head
        written = bound_file(head)
        assert written is not None
        name = PurePath(written.statistics_path).stem.removeprefix("tidemark-digest-")
        digest = read_digest(head)
        assert digest is not None
    assert write_digest(head.table, name, digest, parts).statistics_path
    files.write("d", [(5, "e")])
    report = files.run()
    check_rows(files, report)
    assert report.strategy == Method.BUCKETS
    warned = "the digests of" in caplog.text
    assert warned == (damage in {"bytes", "layout", "sums", "commit"})
    assert not warned or files.names["copy"] in caplog.text
    files.write("d", [(5, "f")])
    check(files, files.run(), 1, 1, replaced=1)


@pytest.mark.spark
def test_little_is_compared_whole(make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files()
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 1 << 30)
    files.write("a", [(1, "a")])
    report = files.run()
    assert "all is little" in str(how(report)[1])
    check_rows(files, report)
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 0.1)
    files.write("a", [(1, "A")])
    assert "most is in files that have changed" in str(how(files.run())[1])


@pytest.mark.spark
def test_a_full_run_and_a_due_one_compare_all_rows(make_files: MakeFiles) -> None:
    files = make_files()
    files.write("d", [(5, "e")])
    name, deployment = files.names["copy"], files.home.deployment
    full = reconcile_all(files.spark, deployment, [name], full=True, clock=files.home.clock).collections[name]
    assert how(full) == (Method.BUCKETS, None)
    assert full.details[COMPARED_BECAUSE] == "`full` asks for it"
    files.write("d", [(5, "f")])
    report = files.run()
    assert how(report) == (Method.CHANGED_FILES, None)
    assert COMPARED_BECAUSE not in report.details
    files.write("d", [(5, "g")])
    report = files.run(verify_after=0)
    assert how(report) == (Method.BUCKETS, None)
    assert "`verify_after` makes it due" in str(report.details[COMPARED_BECAUSE])
    overrides, deployment = Overrides(allow_empty=True), files.home.deployment
    report = reconcile_all(files.spark, deployment, [name], overrides=overrides, clock=files.home.clock)
    assert report.collections[name].details[COMPARED_BECAUSE] == "guards of this run alone ask for it"


@pytest.mark.spark
def test_an_error_in_following_costs_a_full_run_alone(make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files()
    files.write("d", [(5, "e")])
    monkeypatch.setattr(FollowedFiles, "open", lambda *_: {}["gone"])
    report = files.run()
    assert "cannot be read" in str(how(report)[1])
    check_rows(files, report)


@pytest.mark.spark
def test_files_that_cannot_be_told_apart_are_compared_whole(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = make_files()
    files.write("d", [(5, "e")])
    monkeypatch.setattr("tidemark.collections.sources.followed.file_set._SALTS", 0)
    report = files.run()
    assert "cannot be told apart" in str(how(report)[1])
    assert "cannot be told apart" in caplog.text
    assert files.stored() == files.wanted()
    assert files.pinned().file_digests is None


@pytest.mark.spark
def test_what_is_staged_is_found_in_the_changed_files_and_keeps_no_digests(make_files: MakeFiles) -> None:
    files = make_files()
    name, deployment, clock = files.names["copy"], files.home.deployment, files.home.clock
    reconcile = partial(reconcile_all, files.spark, deployment, [name], clock=clock)
    files.write("d", [(5, "e")])
    reconcile(full=True)  # as declared
    files.home.switch(Mode.READ_ONLY)
    for value in "fg":
        files.write("d", [(5, value)])
        report = reconcile().collections[name]
        assert (report.outcome, how(report)) == (Outcome.STAGED, (Method.CHANGED_FILES, None))
    files.home.switch(Mode.READ_WRITE)
    flush_all(files.home.shards, deployment, [], clock=clock)
    assert files.stored() == files.wanted()
    files.write("d", [(5, "h")])
    report = reconcile().collections[name]
    assert how(report) == (Method.BUCKETS, None)
    assert "nothing is kept" in str(report.details[COMPARED_BECAUSE])
    files.write("d", [(5, "i")])
    assert how(reconcile().collections[name]) == (Method.CHANGED_FILES, None)
    assert files.stored() == files.wanted()


@pytest.mark.spark
def test_folders_that_are_columns_are_followed(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)
    files = FileSet(home, home_spark, tmp_path)
    for value in ("a", "b", "c=%"):
        folder = files.folder / f"v={value.replace('%', '%25').replace('=', '%3D')}"
        folder.mkdir()
        key = ord(value[0])
        pq.write_table(pa.table({"k": pa.array([key], pa.int64())}), folder / "x.parquet")
        files.rows[value] = [(key, value)]
    files.start()
    files.run()
    pq.write_table(pa.table({"k": pa.array([1, 2], pa.int64())}), files.folder / "v=a" / "x.parquet")
    files.rows["a"] = [(1, "a"), (2, "a")]
    check(files, files.run(), 2, 1, replaced=1)


def test_changes_of_a_set_of_files() -> None:
    def state(name: str, size: int = 1) -> FileState:
        return FileState(name, size, 0)

    def kept(**files: FileState | None) -> FileDigests:
        digest = Digest.empty(16)
        return FileDigests("", {name: FileDigest("" if f is None else str(f), digest) for name, f in files.items()})

    between = partial(FileSetChanges.between, kept(a=state("a"), b=state("b"), c=None))
    same = between([state("a"), state("b")])
    assert (same.came, same.gone) == ((), ("c",))
    changed = between([state("a", 2), state("c"), state("d")])
    assert [file.uri for file in changed.came] == ["a", "c", "d"]
    assert changed.gone == ("a", "b", "c")
    assert changed.to_json() == {"added": 1, "removed": 1, "replaced": 2}


@pytest.mark.spark
@pytest.mark.parametrize("name", ["_Metadata", "_tidemark_file", "_TIDEMARK_FILE"])
def test_files_with_a_column_of_a_name_that_is_needed_are_not_followed(
    home: Settings, home_spark: SparkSession, tmp_path: Path, name: str
) -> None:
    installation = Home(home, tmp_path, f"k bigint, `{name}` bigint")
    pq.write_table(pa.table({"k": [1, 2], name: [3, 4]}), tmp_path / "f.parquet")
    declaration = installation.declaration("c", source={"format": "parquet", "path": str(tmp_path / "f.parquet")})
    installation.apply(declaration)
    installation.reconcile(home_spark, declaration)
    pq.write_table(pa.table({"k": [1], name: [5]}), tmp_path / "f.parquet")
    installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(1, 5)]


@pytest.mark.spark
def test_a_file_that_is_replaced_while_it_is_opened_has_moved(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files()
    files.write("a", [(1, "A")])
    reading, reads = ParquetSource._read, []

    def read(source: ParquetSource, *arguments: Any, **named: Any) -> Any:
        reads.append(1)
        if len(reads) == 1:
            files.write("a", [(1, "A"), (2, "B")])
            raise EOFError("Cannot seek after EOF")
        return reading(source, *arguments, **named)

    monkeypatch.setattr(ParquetSource, "_read", read)
    report = files.run()
    assert report.details["attempts"] == 2
    check_rows(files, report)


@pytest.mark.spark
def test_a_file_that_is_replaced_while_changes_are_followed_is_followed_again(
    make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_files()
    files.write("a", [(1, "A")])
    opening, opened = FollowedFiles.open, []

    def open_some(followed: FollowedFiles, some: Any) -> Any:
        opened.append(1)
        if len(opened) == 1:
            files.write("a", [(1, "A"), (2, "B")])
            raise EOFError("Cannot seek after EOF")
        return opening(followed, some)

    monkeypatch.setattr(FollowedFiles, "open", open_some)
    monkeypatch.setattr(reconciliation, "wanted_rows", None)  # all rows are not compared meanwhile
    report = files.run()
    assert report.details["attempts"] == 2
    check(files, report, 2, 3, replaced=1)


@pytest.mark.spark
def test_what_is_followed_is_not_looked_at_as_a_whole(make_files: MakeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_files()
    files.write("a", [(1, "A")])
    monkeypatch.setattr(reconciliation, "wanted_rows", None)
    check(files, files.run(), 1, 3, replaced=1)
