"""One collection is made equal to its source, whoever else writes, and whatever the source does meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyspark.sql import functions as F

from tests.support.homes import Home
from tidemark.collections.digest import scan as digest_scan
from tidemark.collections.digest.row_layout import OLD, RowShape
from tidemark.collections.digest.scan import Scanned, scan_digest
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile import comparison as difference
from tidemark.collections.reconcile.pinned_snapshot import pin_snapshot
from tidemark.errors import FencedByEpoch, ForeignCommit, GuardRefused, SchemaMismatch, SourceMoved, UpperMismatch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files import arrow_projection
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.interval import Interval
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


def loaded(installation: Home, spark: SparkSession, rows: list[tuple[object, ...]], **more: Any) -> Declaration:
    declaration = installation.declaration("c", **more)
    installation.write_rows("c", rows)
    installation.apply(declaration)
    installation.reconcile(spark, declaration)
    return declaration


def metadata_location(installation: Home) -> str:
    return installation.shard("c").load().table.metadata_location


class Opener:
    """Counts how often a source is opened, and does something at chosen times."""

    def __init__(self, actions: dict[int, Any]) -> None:
        self.count, self.actions = 0, actions

    def __call__(self, source: OpenedSource) -> OpenedSource:
        self.count += 1
        action = self.actions.get(self.count)
        if action is not None:
            action()
        return source


def test_source_that_is_as_it_was_is_first_looked_at_as_a_whole(
    installation: Home, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    looks: list[bool] = []

    def look(frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, **more: int) -> Scanned:
        looks.append(bucket_count == 1)
        return scan_digest(frame, shape, prefix, bucket_count, **more)

    for module in (difference, digest_scan):
        monkeypatch.setattr(module, "scan_digest", look)
    for rows in ([(1, "b" * 20)], [(1, "b" * 300)], [(1, "a")]):
        installation.write_rows("c", rows)
        installation.reconcile(home_spark, declaration)
    assert looks == [False, False, False], "the file has another size each time: what differs is sought at once"
    looks.clear()
    assert installation.reconcile(home_spark, declaration).outcome is Outcome.UNCHANGED
    assert looks == [True]


@pytest.mark.parametrize("size", ["small", "large"])
def test_inserted_rows_lie_in_the_declared_order(
    installation: Home, home_spark: SparkSession, size: str, request: pytest.FixtureRequest
) -> None:
    if size == "large":
        request.getfixturevalue("large")
    rows: list[tuple[object, ...]] = [(number, "caebd"[number % 5]) for number in range(20)]
    declaration = loaded(installation, home_spark, rows, cluster_by=["v"], guards={"max_delete_ratio": 1})
    assert [row["v"] for row in installation.rows("c")] == sorted("caebd" * 4)
    installation.write_rows("c", [(k, f"new {v}") for k, v in rows])
    assert installation.reconcile(home_spark, declaration).inserted == 20
    assert [row["v"] for row in installation.rows("c")] == [f"new {v}" for v in sorted("caebd" * 4)]


def test_upper_mismatch_computes_again_with_the_source_as_it_is_then(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    shard = installation.shard("c")

    def overtake() -> None:  # after this run has pinned and opened: another writer publishes, the source moves on
        upper = shard.load().state.upper
        installation.write_rows("c", [(1, "newer")])
        Writer.join(shard, 1).advance(lower=upper, new_upper=int(str(upper)) + 1)

    installation.write_rows("c", [(1, "older")])
    opener = Opener({1: overtake})
    report = installation.reconcile(home_spark, declaration, opened=opener)
    assert (report.outcome, report.details["attempts"], opener.count) == (Outcome.CORRECTED, 2, 2)
    assert installation.tuples("c") == [(1, "newer")]


def test_upper_that_never_settles_gives_up_after_bounded_attempts(installation: Home, home_spark: SparkSession) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    shard = installation.shard("c")

    def overtake() -> None:
        upper = int(str(shard.load().state.upper))
        Writer.join(shard, 1).advance(lower=upper, new_upper=upper + 1)

    opener = Opener(dict.fromkeys(range(1, 100), overtake))
    with pytest.raises(UpperMismatch):
        installation.reconcile(home_spark, declaration, opened=opener)
    assert opener.count == 5


def test_orphan_is_fenced_and_leaves_newer_contents_alone(installation: Home, home_spark: SparkSession) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    shard = installation.shard("c")
    orphan = Writer.join(shard, 1)
    retry = Writer.raise_token(shard, 1)
    installation.write_rows("c", [(1, "older")])
    with pytest.raises(FencedByEpoch):
        installation.reconcile(home_spark, declaration, writer=orphan)
    assert installation.tuples("c") == [(1, "a")]
    installation.reconcile(home_spark, declaration, writer=retry)
    assert installation.tuples("c") == [(1, "older")]


@pytest.mark.parametrize("path", ["small", "large"])
def test_files_replaced_between_the_passes_are_never_mixed(
    installation: Home, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, path: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if path == "large":
        request.getfixturevalue("large")
    declaration = loaded(installation, home_spark, [(n, "a") for n in range(20)])
    installation.write_rows("c", [(n, "b") for n in range(20)])
    passes = []

    def scan_and_replace(*arguments: Any, **options: Any) -> Any:
        found = scan_digest(*arguments, **options)
        passes.append(found)
        if len(passes) == 1:
            installation.write_rows("c", [(n, "c") for n in range(20)])
        return found

    monkeypatch.setattr(difference, "scan_digest", scan_and_replace)
    report = installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(n, "c") for n in range(20)]
    assert report.details["attempts"] == 2


def versions(folder: Path, *, moves: int) -> Any:
    """Return a stand-in for a database: every pass over it sees a newer version in all rows, ``moves`` times."""

    def version(_: int) -> str:
        seen = sorted(int(each.name) for each in folder.iterdir())
        newest = seen[-1] if seen else 0
        if newest < moves:
            (folder / str(newest + 1)).touch()
        return f"v{newest}"

    return F.udf(version, "string", useArrow=False).asNondeterministic()


@pytest.mark.parametrize("path", ["small", "large"])
def test_source_that_moves_all_the_time_gives_one_of_its_states(
    installation: Home, home_spark: SparkSession, tmp_path: Path, path: str, request: pytest.FixtureRequest
) -> None:
    if path == "large":
        request.getfixturevalue("large")
    declaration = loaded(installation, home_spark, [(1, "a")])
    folder = tmp_path / "versions"
    folder.mkdir()
    one = versions(folder, moves=10**6)

    def moving(source: OpenedSource) -> OpenedSource:
        # One row draws the version, all others repeat it: within a pass, a database shows one state.
        drawn = home_spark.range(0, 1, 1, 1).select(one("id").alias("v"))
        rows: DataFrame = drawn.select(F.explode(F.array(*map(F.lit, range(1, 9)))).alias("k"), "v")
        return replace(source, desired=rows, pins=(), pinnable=False)

    report = installation.reconcile(home_spark, declaration, opened=moving)
    found = installation.tuples("c")
    assert [key for key, _ in found] == list(range(1, 9))
    assert len({version for _, version in found}) == 1
    assert report.outcome is Outcome.CORRECTED
    assert not list((tmp_path / "home" / "warehouse" / "_scratch").iterdir()), "the copy is gone"


def test_unpinned_source_that_stands_still_needs_no_copy(
    installation: Home, home_spark: SparkSession, tmp_path: Path
) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    installation.write_rows("c", [(1, "b"), (2, "c")])
    report = installation.reconcile(
        home_spark, declaration, opened=lambda source: replace(source, pins=(), pinnable=False)
    )
    assert installation.tuples("c") == [(1, "b"), (2, "c")]
    assert "attempts" not in report.details
    assert not (tmp_path / "home" / "warehouse" / "_scratch").exists()


SCOPED = "k int, v string, day date"


def scoped_rows(*rows: tuple[int, str, int]) -> list[tuple[object, ...]]:
    return [(key, value, date(1970, 1, day)) for key, value, day in rows]


def test_scope_repairs_its_slice_and_leaves_the_others_alone(
    home: Settings, tmp_path: Path, home_spark: SparkSession
) -> None:
    installation = Home(home, tmp_path, SCOPED)
    scope = {"column": "day", "every": "day"}
    before = scoped_rows((1, "a", 1), (1, "b", 2), (2, "c", 2), (1, "d", 3))
    declaration = loaded(installation, home_spark, before, key=["k", "day"], scope=scope)
    installation.write_rows("c", scoped_rows((1, "A", 1), (1, "B", 2), (3, "C", 2), (1, "D", 3)))
    second = Interval(DAY_MS, 2 * DAY_MS)
    report = installation.reconcile(home_spark, declaration, interval=second)
    assert installation.tuples("c") == sorted(scoped_rows((1, "a", 1), (1, "B", 2), (3, "C", 2), (1, "d", 3)))
    assert (report.inserted, report.retracted, report.rows_source) == (2, 2, 2)
    assert "1970-01-02" in report.details["slice"]
    again = installation.reconcile(home_spark, declaration, interval=second)
    assert again.outcome is Outcome.UNCHANGED

    pinned = pin_snapshot(home_spark, installation.shard("c"), installation.shard("c").load(), declaration.key)
    kept = pinned.digest
    assert kept is not None, "a slice adds to the digest of the whole"
    scanned = scan_digest(pinned.read(), pinned.shape, OLD, kept.bucket_count).digest
    assert len(kept.differing(scanned)) == 0
    whole = installation.reconcile(home_spark, declaration)
    assert (whole.inserted, whole.retracted) == (2, 2)


def test_empty_slice_is_refused_only_if_rows_would_go(home: Settings, tmp_path: Path, home_spark: SparkSession) -> None:
    installation = Home(home, tmp_path, SCOPED)
    scope = {"column": "day", "every": "day"}
    declaration = loaded(installation, home_spark, scoped_rows((1, "a", 1)), key=["k", "day"], scope=scope)
    empty = installation.reconcile(home_spark, declaration, interval=Interval(4 * DAY_MS, 5 * DAY_MS))
    assert empty.outcome is Outcome.UNCHANGED
    installation.write_rows("c", scoped_rows((1, "a", 2)))
    with pytest.raises(GuardRefused, match="no rows in this slice"):
        installation.reconcile(home_spark, declaration, interval=Interval(0, DAY_MS))


TEN: list[tuple[object, ...]] = [(n, "a") for n in range(10)]
REFUSED: dict[str, tuple[list[tuple[object, ...]], str]] = {
    "empty": ([], "no rows"),
    "ratio": ([(1, "a")], "would vanish"),
    "duplicate": ([*TEN, (3, "b")], "1 keys .* 2 rows"),
    "equal duplicate": ([*TEN, (3, "a")], "1 keys .* 2 rows"),
    "new duplicate": ([*TEN, (77, "x"), (77, "y")], "1 keys .* 2 rows"),
    "null key": ([*TEN, (None, "b")], "1 source rows have a NULL"),
    "both": ([*TEN, (None, "b"), (None, "c"), (3, "b")], "2 source rows have a NULL .*; and 1 keys .* 2 rows"),
}


@pytest.mark.parametrize("path", ["small", "large"])
def test_refused_run_changes_nothing(
    installation: Home, home_spark: SparkSession, request: pytest.FixtureRequest, path: str
) -> None:
    declaration = loaded(installation, home_spark, TEN)
    if path == "large":
        request.getfixturevalue("large")
    before = metadata_location(installation)
    for case, (rows, match) in REFUSED.items():
        installation.write_rows("c", rows)
        with pytest.raises(GuardRefused, match=match) as refused:
            installation.reconcile(home_spark, declaration)
        assert refused.value.sample or not rows, case
        assert metadata_location(installation) == before, case
        plan = installation.reconciliation(home_spark, declaration).plan()
        assert plan.outcome is Outcome.REFUSED, case
        assert plan.error is not None, case


def test_declared_answers_to_bad_keys_are_followed(installation: Home, home_spark: SparkSession) -> None:
    guards = {"on_duplicate_key": {"first_by": "v"}, "on_null_key": "drop"}
    declaration = loaded(installation, home_spark, [(1, "b"), (1, "a"), (None, "x"), (2, "c")], guards=guards)
    assert installation.tuples("c") == [(1, "a"), (2, "c")]
    assert installation.reconcile(home_spark, declaration).outcome is Outcome.UNCHANGED
    installation.write_rows("c", [(1, "b"), (2, "c"), (2, "d")])
    report = installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(1, "b"), (2, "c")]
    assert (report.inserted, report.retracted) == (1, 1)


def test_override_holds_for_one_run_and_is_reported(installation: Home, home_spark: SparkSession) -> None:
    declaration = loaded(installation, home_spark, [(n, "a") for n in range(10)])
    installation.write_rows("c", [])
    report = installation.reconcile(home_spark, declaration, overrides=Overrides(allow_empty=True))
    assert installation.tuples("c") == []
    assert report.details["guard_overrides"] == {"allow_empty": True}


def test_foreign_rows_go_and_equal_rows_stay(installation: Home, home_spark: SparkSession) -> None:
    declaration = loaded(installation, home_spark, [(1, "a"), (2, "b")])
    name = installation.shard("c").spark_name
    home_spark.sql(f"INSERT INTO {name} VALUES (9, 'foreign', 1, 1)")
    files = {task.file.file_path for task in installation.shard("c").load().table.scan().plan_files()}
    assert installation.reconciliation(home_spark, declaration).plan().outcome is Outcome.CORRECTED
    report = installation.reconcile(home_spark, declaration)
    assert installation.tuples("c") == [(1, "a"), (2, "b")]
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 0, 0)
    assert report.details["foreign_commits"] == "1 foreign commits, +1 rows: 1 written, 0 taken away"
    kept = {task.file.file_path for task in installation.shard("c").load().table.scan().plan_files()}
    assert kept < files, "own files are untouched, the foreign one is out"

    failing = installation.declaration("c", on_foreign_commit="fail")
    home_spark.sql(f"INSERT INTO {name} VALUES (9, 'foreign', 1, 1)")
    with pytest.raises(ForeignCommit, match="another engine wrote to 'c'"):
        installation.reconcile(home_spark, failing)


def test_foreign_rows_of_the_change_log_alone_go_with_the_next_run(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    home_spark.sql(f"INSERT INTO {installation.shard('c').spark_name}.branch_updates VALUES (9, 'foreign', 1, 1)")
    with pytest.raises(ForeignCommit, match="another engine wrote to 'c'"):
        installation.reconcile(home_spark, installation.declaration("c", on_foreign_commit="fail"))
    report = installation.reconcile(home_spark, declaration)
    assert report.outcome is Outcome.UNCHANGED
    assert report.details["foreign_updates"] == "1 foreign commits, +1 rows: 1 written, 0 taken away"
    assert installation.shard("c").load().foreign_updates is None


def test_guard_counts_what_foreign_commits_wrote_though_they_took_as_much_away(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = loaded(installation, home_spark, [(n, "a") for n in range(10)], guards={"max_delete_ratio": 0.1})
    home_spark.sql(f"UPDATE {installation.shard('c').spark_name} SET v = 'foreign' WHERE k < 4")
    with pytest.raises(GuardRefused, match=r"4 of 14 stored rows \(4 of them written by other engines\)"):
        installation.reconcile(home_spark, declaration)
    plan = installation.reconciliation(home_spark, declaration).plan()
    assert plan.details["foreign_commits"] == "1 foreign commits, +0 rows: 4 written, 4 taken away"
    installation.reconcile(home_spark, declaration, overrides=Overrides(max_delete_ratio=0.5))
    assert installation.tuples("c") == [(n, "a") for n in range(10)]


def test_column_of_another_type_is_named(installation: Home, home_spark: SparkSession) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    with pytest.raises(SchemaMismatch, match="'k'"):
        installation.reconcile(
            home_spark,
            declaration,
            opened=lambda source: replace(source, desired=source.desired.withColumn("k", F.col("k").cast("string"))),
        )


def test_writer_that_loses_a_null_publishes_nothing(
    home: Settings, tmp_path: Path, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Home(home, tmp_path, schema="k int, v array<struct<a: int>>")
    source = {"format": "json", "path": str(tmp_path / "events.json"), "schema": installation.schema}
    declaration = installation.declaration("events", source=source)
    installation.apply(declaration)
    installation.write_json("events", {"k": 2, "v": []})
    installation.reconcile(home_spark, declaration)
    installation.write_json("events", {"k": 1, "v": None}, {"k": 2, "v": []})
    with monkeypatch.context() as unmended:
        unmended.setattr(ArrowProjectionVisitor, "list", arrow_projection.PROJECT_LIST)
        with pytest.raises(ValueError, match="the column 'v' would be written with other values"):
            installation.reconcile(home_spark, declaration)
    assert installation.tuples("events") == [(2, [])]
    assert installation.reconcile(home_spark, declaration).inserted == 1
    assert installation.tuples("events") == [(1, None), (2, [])]


def test_files_of_a_batch_that_lost_are_deleted(installation: Home, home_spark: SparkSession, tmp_path: Path) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    data = tmp_path / "home" / "warehouse"
    before = set(data.rglob("*.parquet"))
    orphan = Writer.join(installation.shard("c"), 1)
    Writer.raise_token(installation.shard("c"), 1)
    installation.write_rows("c", [(1, "b")])
    with pytest.raises(FencedByEpoch):
        installation.reconcile(home_spark, declaration, writer=orphan)
    assert set(data.rglob("*.parquet")) == before


def test_lost_large_batch_leaves_no_branch(installation: Home, home_spark: SparkSession, large: None) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    orphan = Writer.join(installation.shard("c"), 1)
    Writer.raise_token(installation.shard("c"), 1)
    installation.write_rows("c", [(1, "b")])
    with pytest.raises(FencedByEpoch):
        installation.reconcile(home_spark, declaration, writer=orphan)
    assert installation.shard("c").load().staged_branches == {}


def test_source_whose_files_never_rest_is_copied(installation: Home, home_spark: SparkSession) -> None:
    declaration = installation.declaration("c")
    installation.write_rows("c", [(1, "a")])
    installation.apply(declaration)
    pin = Restless(moves=2)
    report = installation.reconcile(home_spark, declaration, opened=lambda source: replace(source, pins=(pin,)))
    assert report.details["attempts"] == 3
    assert installation.tuples("c") == [(1, "a")]


def test_source_that_moves_even_while_it_is_copied_is_never_stored(
    installation: Home, home_spark: SparkSession
) -> None:
    declaration = loaded(installation, home_spark, [(1, "a")])
    installation.write_rows("c", [(1, "b")])
    pin = Restless(moves=100)
    with pytest.raises(SourceMoved):
        installation.reconcile(home_spark, declaration, opened=lambda source: replace(source, pins=(pin,)))
    assert installation.tuples("c") == [(1, "a")]


class Restless:
    """A pin on something that moves each time before it is asked, and then rests."""

    def __init__(self, moves: int) -> None:
        self.moves = moves

    def moved(self) -> bool:
        self.moves -= 1
        return self.moves >= 0

    def text(self) -> str:
        return "moving"


@pytest.mark.parametrize("size", ["small", "large"])
def test_samples_tell_days_beyond_the_years_of_python_as_text(
    installation: Home, home_spark: SparkSession, size: str, request: pytest.FixtureRequest
) -> None:
    if size == "large":
        request.getfixturevalue("large")
    installation.schema = "k int, v date"
    declaration = loaded(
        installation, home_spark, [(1, "2000-01-01"), (2, "2000-01-01")], guards={"max_delete_ratio": 0}
    )
    installation.write_rows("c", [(1, "+10183-09-21"), (3, "-0221-09-04"), (2, "2000-01-01")])
    planned = installation.reconciliation(home_spark, declaration).plan().details["sample"]
    assert planned["inserted"] == [{"k": 3, "v": "-0221-09-04"}]
    assert planned["updated"] == [{"before": {"k": 1, "v": date(2000, 1, 1)}, "after": {"k": 1, "v": "10183-09-21"}}]
    assert installation.reconcile(home_spark, declaration).outcome is Outcome.CORRECTED
    read = to_rows(read_arrow(installation.shard("c")).sort_by("k"))
    assert [row["v"] for row in read] == ["10183-09-21", date(2000, 1, 1), "-0221-09-04"]
    installation.write_rows("c", [(1, "+10183-09-21"), (None, "+10183-09-21")])
    with pytest.raises(GuardRefused) as refused:
        installation.reconcile(home_spark, declaration)
    file = (installation.folder / "c.csv").as_uri()
    assert refused.value.sample == [{"k": None, "v": "10183-09-21", "_file": file}]
