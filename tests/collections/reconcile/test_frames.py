"""Collections whose rows a program hands over: the same guards, fencing, report and digest as in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError
from pyspark.sql import functions as F

from tests.support.crash import die_in_fork
from tests.support.frames import SCHEMA, Hands, frame_declaration
from tests.support.homes import Home
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.reconcile import frames, reconciliation
from tidemark.collections.reconcile.choosing.choice import skip_handed_over, skip_stale
from tidemark.collections.reconcile.choosing.same_source import reconcile_unchanged
from tidemark.collections.reconcile.following import handed_changes
from tidemark.collections.reconcile.frames import reconcile_frame
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.stale import reconcile_stale
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.tables import read_newest
from tidemark.errors import (
    FencedByEpoch,
    ForeignCommit,
    GuardRefused,
    NotPossible,
    Paused,
    ReadOnly,
    Refused,
    SchemaMismatch,
    UnknownCollection,
    UpperMismatch,
    UsageError,
)
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.writer import Writer
from tidemark.interval import DAY_MS, Interval
from tidemark.report import SKIPPED_BECAUSE, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

OTHER = "reflect('java.util.UUID', 'randomUUID')"  # another text each time
ABC = [(1, "a"), (2, "b"), (3, "c")]
TOTALS = {"inputs": {"c": {"collection": "c"}}, "sql": "SELECT cast(count(*) AS int) AS k, max(v) AS v FROM c"}


def declared(**more: object) -> Declaration:
    return Declaration.model_validate(
        {"name": "c", "kind": "differential", "schema": "k int", "source": {"format": "frame"}} | more
    )


@pytest.fixture(autouse=True)
def _records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save what most calls would take longest for."""
    monkeypatch.setattr(frames, "record_run", lambda *_, **__: None)


@pytest.fixture
def hands(installation: Home, home_spark: SparkSession) -> Hands:
    return Hands(installation, home_spark)


# -- what is declared ------------------------------------------------------------------------------------------------


def test_a_frame_is_declared_and_stored() -> None:
    found = declared(key=["k"], guards={"max_delete_ratio": 0.1})
    assert found.is_handed_over
    assert Declaration.model_validate(found.to_json()) == found
    assert (found.inputs, found.connections, found.assets, found.watched_paths) == ((), (), (), ())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schema": None}, "need a `schema`"),
        ({"verify_after": "1h"}, "`verify_after` is about sources that a run looks at"),
        ({"source": {"format": "frame", "watch": "5s"}}, "`watch` is of no use: the program"),
        ({"source": {"format": "frame", "asset": "a"}}, "`asset` is of no use: the program"),
        ({"source": {"format": "frame", "where": "k > 1"}}, "Extra inputs are not permitted"),
        ({"source": {"format": "frames", "path": "/a"}}, "unknown format 'frames': known are frame, "),
        ({"source": {"inputs": {"f": {"format": "frame"}}, "sql": "SELECT * FROM f"}}, "is no input of a query"),
        ({"kind": "append-only"}, "`append_rows` or `append_frame`"),
        ({"kind": "latest", "key": ["k"]}, "needs a `source` with `buffer: NAME`"),
    ],
)
def test_what_does_not_fit_a_frame_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        declared(**more)


def test_rows_that_are_handed_over_are_not_stale() -> None:
    skipped = skip_handed_over(declared())
    assert skipped is not None
    assert (skipped.outcome, skipped.error) == (Outcome.SKIPPED, None)
    assert "reconcile_frame" in skipped.details[SKIPPED_BECAUSE]
    assert skip_stale(declared(name="totals", source=TOTALS), {"c": skipped}) is None
    assert skip_handed_over(declared(name="totals", source=TOTALS)) is None


def test_a_run_over_all_collections_leaves_it_out_without_spark(installation: Home) -> None:
    declaration = frame_declaration(installation)
    installation.apply(declaration)
    for names in ({}, {"dry_run": True}, {"full": True}):
        report, left = reconcile_unchanged(
            installation.deployment, {"c": declaration}, clock=installation.clock, **names
        )
        assert (report.collections["c"].outcome, report.exit_code, left) == (Outcome.SKIPPED, 0, [])


# -- reconcile_frame -------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
def test_a_collection_equals_the_frame(installation: Home, home_spark: SparkSession, key: list[str]) -> None:
    hands = Hands(installation, home_spark, key=key)
    report = hands.reconcile(ABC)
    assert (report.outcome, report.inserted, report.strategy) == (Outcome.CORRECTED, 3, Method.LOAD)
    wanted = [(2, "b"), (3, "d"), (4, None)] + ([] if key else [(4, None)])
    odd = hands.frame([(row[1], row[0], 0) for row in wanted], "v string, k int, diff int")
    planned = hands.reconcile(odd, dry_run=True)
    assert (planned.outcome, hands.rows()) == (Outcome.CORRECTED, ABC)
    report = hands.reconcile(odd)
    assert (report.outcome, report.retracted, hands.rows()) == (Outcome.CORRECTED, 2, sorted(wanted, key=repr))
    assert report.inserted == planned.inserted == len(wanted) - 1
    assert hands.reconcile(odd.repartition(2)).outcome is Outcome.UNCHANGED
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_guards_and_columns_are_those_of_a_run(hands: Hands) -> None:
    hands.reconcile(ABC)
    refused = [
        (hands.frame([(1, "a"), (1, "b")]), GuardRefused, "occur more than once"),
        (hands.frame([(None, "a")]), GuardRefused, "NULL in their key"),
        (hands.frame([]), GuardRefused, "no rows"),
        (hands.frame([(1, "a")]), GuardRefused, "max_delete_ratio"),
        (hands.frame([(1,)], "k int"), SchemaMismatch, "lacks the column 'v'"),
        (hands.frame([(1, "a")], "k bigint, v string"), SchemaMismatch, "the collection stores int"),
    ]
    with pytest.raises(GuardRefused, match="occur more than once"):
        hands.reconcile(refused[0][0])
    for frame, error, said in refused:
        planned = hands.reconcile(frame, dry_run=True)
        assert planned.error is not None
        assert (planned.outcome, planned.error.kind) == (Outcome.REFUSED, error.__name__)
        assert said in planned.error.message
    assert hands.rows() == ABC
    report = hands.reconcile(hands.frame([(1, "a")]), max_delete_ratio=1.0)
    assert report.details["guard_overrides"] == {"max_delete_ratio": 1.0}
    assert hands.reconcile([], allow_empty=True).retracted == 1
    assert hands.rows() == []


@pytest.mark.spark
def test_a_frame_that_differs_each_time_is_copied(hands: Hands) -> None:
    hands.reconcile(ABC)
    frame = hands.spark.range(40).select(F.col("id").cast("int").alias("k"), F.expr(OTHER).alias("v"))
    report = hands.reconcile(frame)
    assert report.details["attempts"] == 3, "both other ones saw the frame change"
    assert len(hands.rows()) == report.rows_source == 40
    assert hands.pinned().wrong_buckets() == 0, "all rows are of one evaluation"


@pytest.mark.spark
def test_only_the_slice_of_an_interval_is_corrected(home: Settings, tmp_path: Path, home_spark: SparkSession) -> None:
    installation = Home(home, tmp_path, "day date, k int")
    hands = Hands(installation, home_spark, key=["day", "k"], scope={"column": "day", "every": "day"})
    days = home_spark.sql("SELECT date_from_unix_date(cast(id % 3 AS int)) AS day, cast(id AS int) AS k FROM range(9)")
    hands.reconcile(days)
    report = hands.reconcile(days.where("k = 1"), interval=Interval(DAY_MS, 2 * DAY_MS), max_delete_ratio=1.0)
    assert (report.outcome, report.retracted, report.rows_source) == (Outcome.CORRECTED, 2, 1)
    assert len(hands.rows()) == 7
    installation.registry.replace(
        [hands.declaration.model_copy(update={"scope": None})], seen=installation.registry.read()
    )
    with pytest.raises(UsageError, match="no `scope`"):
        hands.reconcile(days, interval=Interval(0, DAY_MS))


@pytest.mark.spark
def test_only_collections_without_another_source_take_frames(hands: Hands) -> None:
    hands.home.apply(hands.home.declaration("mirror"))
    hands.home.declare_reader("events")
    for name, error, said in (
        ("mirror", UsageError, "take the rows back"),
        ("events", UsageError, "append-only"),
        ("b", UnknownCollection, "'b'"),
    ):
        with pytest.raises(error, match=said):
            reconcile_frame(hands.spark, name, hands.frame(ABC), deployment=hands.home.deployment)


@pytest.mark.spark
def test_what_reads_the_collection_is_reconciled_beside_it(hands: Hands) -> None:
    home, deployment = hands.home, hands.home.deployment
    home.apply(home.declaration("totals", source=TOTALS, guards={"max_delete_ratio": 1.0}))
    hands.reconcile(ABC)
    for names in ([], ["c", "totals"]):
        report = reconcile_all(hands.spark, deployment, names, clock=home.clock)
        outcomes = {name: each.outcome for name, each in report.collections.items()}
        assert outcomes == {"c": Outcome.SKIPPED, "totals": Outcome.UNCHANGED if names else Outcome.CORRECTED}
        assert report.exit_code == 0
    assert home.tuples("totals") == [(3, "c")]
    hands.apply([(4, "d", 1)])
    report = reconcile_all(hands.spark, deployment, [], dry_run=True, clock=home.clock)
    assert {name: each.outcome for name, each in report.collections.items()} == {
        "c": Outcome.SKIPPED,
        "totals": Outcome.CORRECTED,
    }
    reconcile_all(hands.spark, deployment, [], full=True, clock=home.clock)
    assert home.tuples("totals") == [(4, "d")]


@pytest.mark.spark
def test_a_read_only_deployment_stages_all_rows_and_refuses_changes(hands: Hands) -> None:
    home = hands.home
    hands.reconcile(ABC)
    home.switch(Mode.READ_ONLY)
    for value in "xy":
        assert hands.reconcile([(1, value), (2, "b"), (3, "c")]).outcome is Outcome.STAGED
    with pytest.raises(ReadOnly, match="cannot be staged") as refused:
        hands.apply([(4, "d", 1)])
    assert "reconcile_frame" in refused.value.hint
    assert hands.rows() == ABC
    home.switch(Mode.READ_WRITE)
    with pytest.raises(NotPossible, match="are staged"):
        hands.apply([(4, "d", 1)])
    flushed = flush_all(home.shards, home.deployment, [], clock=home.clock).collections["c"]
    assert flushed.outcome is Outcome.FLUSHED
    compared_ms = hands.pinned().note.compared_ms
    hands.apply([(4, "d", 1)])
    assert hands.rows() == [(1, "y"), (2, "b"), (3, "c"), (4, "d")]
    assert hands.pinned().note.compared_ms == compared_ms > 0, "changes are not all rows"


@pytest.mark.spark
def test_what_was_staged_and_does_not_fit_waits_for_the_program(hands: Hands) -> None:
    home, newer = hands.home, hands.home.of_generation(2)
    home.switch(Mode.READ_WRITE)
    hands.reconcile(ABC)
    assert hands.reconcile([*ABC, (4, "d")], deployment=newer.deployment).outcome is Outcome.STAGED
    hands.apply([(5, "e", 1)])
    newer.switch(Mode.READ_WRITE)
    flushed = flush_all(newer.shards, newer.deployment, [], clock=home.clock)
    done = reconcile_stale(flushed, newer.deployment, start_spark=lambda: hands.spark, clock=home.clock)
    error = done.collections["c"].error
    assert error is not None
    assert "by `reconcile_frame`" in error.hint
    report = hands.reconcile([*ABC, (4, "d")], deployment=newer.deployment)
    assert report.details["superseded"]
    assert (hands.rows(), home.branches()) == ([*ABC, (4, "d")], set())


@pytest.mark.spark
def test_a_paused_collection_is_left_alone(hands: Hands) -> None:
    hands.reconcile(ABC)
    hands.home.deployment.objects.pause(["c"], why="rest")
    report = hands.reconcile([(1, "x")])
    assert report.outcome is Outcome.SKIPPED
    assert "rest" in report.details[SKIPPED_BECAUSE]
    with pytest.raises(Paused, match="rest"):
        hands.apply([(4, "d", 1)])
    assert hands.rows() == ABC


@pytest.mark.spark
def test_what_it_came_to_is_recorded(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "record_run", record_run)
    hands.reconcile(ABC)
    with pytest.raises(GuardRefused):
        hands.reconcile([])
    rows = read_newest(hands.home.shards, "system_status", key=("object",), keep=2)
    assert [row["status"] for row in rows if row["object"] == "c"] == ["stalled", "running"]


# -- apply_changes ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_changes_of_keyed_rows(hands: Hands) -> None:
    hands.reconcile(ABC)
    report = hands.apply(
        [(1, "a", -1), (1, "z", 1), (4, "d", 3), (4, "d", -2), (5, "e", 2), (5, "e", -2), (3, "c", -1)]
    )
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 2, 2)
    assert (report.strategy, report.rows_source) == (Method.CHANGES, 3)
    assert hands.rows() == [(1, "z"), (2, "b"), (4, "d")]
    nothing = hands.apply([(9, "x", 1), (9, "x", -1)])
    assert (nothing.outcome, nothing.lower) == (Outcome.UNCHANGED, report.upper)
    assert hands.home.upper("c") == nothing.upper
    assert nothing.upper != nothing.lower
    assert hands.pinned().digest is not None
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_changes_of_a_multiset(installation: Home, home_spark: SparkSession) -> None:
    hands = Hands(installation, home_spark, key=[])
    changes = [(1, "a", 3), (None, None, 2), (2, "b", 1)]
    types = {"tinyint", "smallint", "bigint"}
    for number, type_ in enumerate(sorted(types)):
        hands.apply(hands.frame(changes[number : number + 1], f"k int, v string, _diff {type_}"))
    report = hands.apply([(1, "a", -2), (None, None, -1)])
    assert (report.inserted, report.retracted) == (0, 3)
    assert hands.rows() == sorted([(1, "a"), (2, "b"), (None, None)], key=repr)
    with pytest.raises(Refused, match="not stored, or not in so many copies") as refused:
        hands.apply([(1, "a", -2), (2, "b", -1)])
    assert refused.value.sample == [{"k": 1, "v": "a", "_diff": -2, "stored": 1}]
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_changes_that_do_not_add_up_are_refused(hands: Hands) -> None:
    hands.reconcile(ABC)
    upper = hands.home.upper("c")
    refused = [
        ([(1, "b", -1)], Refused, "not stored"),
        ([(9, "a", -1)], Refused, "not stored"),
        ([(1, "a", -2)], Refused, "not in so many copies"),
        ([(1, "z", 1)], GuardRefused, "1 keys (k) would occur more than once"),
        ([(1, "a", 1)], GuardRefused, "would occur more than once"),
        ([(4, "d", 2)], GuardRefused, "would occur more than once"),
        ([(4, "d", 1), (4, "e", 1)], GuardRefused, "would occur more than once"),
        ([(None, "d", 1)], GuardRefused, "NULL in their key"),
        ([(4, "d", None)], Refused, "NULL for '_diff'"),
        ([(1, "a", -1), (2, "b", -1)], GuardRefused, "max_delete_ratio"),
        ([(1, "a", -1), (2, "b", -1), (3, "c", -1)], GuardRefused, "no rows"),
        ([(4, "d", 2_000_000_000), (5, "e", 1)], Refused, "more than"),
    ]
    with pytest.raises(GuardRefused, match="would occur more than once"):
        hands.apply([(1, "z", 1)])
    for rows, error, said in refused:
        planned = hands.apply(rows, dry_run=True)
        assert planned.error is not None
        assert (planned.outcome, planned.error.kind) == (Outcome.REFUSED, error.__name__)
        assert said in planned.error.message
        assert planned.error.sample or said in {"no rows", "more than"}
    for diff in ("diff int", "_DIFF int", "_diff double"):
        with pytest.raises(SchemaMismatch, match="'_diff' of whole numbers"):
            hands.apply(hands.frame([], f"{SCHEMA}, {diff}"))
    assert (hands.rows(), hands.home.upper("c")) == (ABC, upper)
    hands.apply([(row[0], row[1], -1) for row in ABC], allow_empty=True)
    assert hands.rows() == []


@pytest.mark.spark
def test_rows_without_a_key_are_dropped_where_that_is_declared(installation: Home, home_spark: SparkSession) -> None:
    hands = Hands(installation, home_spark, guards={"on_null_key": "drop"})
    hands.apply([(None, "d", 1), (1, "a", 1), (None, "e", -1)])
    assert hands.rows() == [(1, "a")]


@pytest.mark.spark
def test_changes_are_applied_once_to_what_they_were_computed_against(hands: Hands) -> None:
    upper = hands.reconcile(ABC).upper
    changes = [(4, "d", 1)]
    hands.apply(changes, upper=upper)
    for _ in range(2):
        with pytest.raises(UpperMismatch):
            hands.apply(changes, upper=upper)
    assert hands.rows() == [*ABC, (4, "d")]


@pytest.mark.spark
@pytest.mark.parametrize("is_bound", [True, False])
def test_a_commit_in_between_is_seen(hands: Hands, monkeypatch: pytest.MonkeyPatch, *, is_bound: bool) -> None:
    """Without an upper the changes are computed again, with one they are the caller's to compute."""
    upper = hands.reconcile(ABC).upper
    others = [[(5, "e", 1)], [(6, "f", 1)]]

    def write(attempt: reconciliation.Attempt) -> None:
        if others:
            hands.apply(others.pop())
        reconciliation.write(attempt)

    steps = (*reconciliation.CHANGE_STEPS[:3], write, reconciliation.publish)
    monkeypatch.setattr(reconciliation, "CHANGE_STEPS", steps)
    if is_bound:
        with pytest.raises(UpperMismatch):
            hands.apply([(1, "a", -1), (1, "z", 1)], upper=upper)
    else:
        assert hands.apply([(1, "a", -1), (1, "z", 1)]).details["attempts"] == 2
    rows = dict(hands.rows())
    assert (len(rows), rows[1]) == (5, "a" if is_bound else "z")
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_a_fenced_writer_changes_nothing(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    hands.reconcile(ABC)

    def write(attempt: reconciliation.Attempt) -> None:
        Writer.raise_token(hands.home.shard("c"), 1)
        reconciliation.write(attempt)

    steps = (*reconciliation.CHANGE_STEPS[:3], write, reconciliation.publish)
    monkeypatch.setattr(reconciliation, "CHANGE_STEPS", steps)
    with pytest.raises(FencedByEpoch):
        hands.apply([(4, "d", 1)])
    assert hands.rows() == ABC


@pytest.mark.spark
def test_a_frame_that_differs_each_time_is_evaluated_once(hands: Hands) -> None:
    frame = hands.spark.range(20).selectExpr("cast(id AS int) AS k", f"{OTHER} AS v", "1L AS _diff")
    assert hands.apply(frame).inserted == 20
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_rows_are_scanned_once_where_no_digest_is_kept(hands: Hands) -> None:
    hands.reconcile(ABC)
    shard = hands.home.shard("c")
    writer, upper = Writer.join(shard, 1), hands.home.upper("c")
    writer.publish(lower=upper, new_upper=upper + 1)  # a commit that keeps no digest
    assert hands.pinned().digest is None
    hands.apply([(4, "d", 1)])
    assert hands.pinned().digest is not None
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_rows_of_other_engines_go_or_are_refused(installation: Home, home_spark: SparkSession) -> None:
    hands = Hands(installation, home_spark, on_foreign_commit="fail")
    hands.reconcile(ABC)
    home_spark.sql("INSERT INTO tidemark.collections.c (k, v, _time, _diff) VALUES (9, 'x', 1, 1)")
    with pytest.raises(ForeignCommit):
        hands.apply([(4, "d", 1)])


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.parametrize("point", reconciliation.FAIL_POINTS)
def test_changes_of_a_process_that_died_are_there_or_not(hands: Hands, point: str) -> None:
    upper = hands.reconcile(ABC).upper
    changes = [(1, "a", -1), (1, "z", 1), (4, "d", 1)]
    assert die_in_fork(point, lambda: hands.apply(changes, upper=upper)) == FAIL_POINT_EXIT
    if point == "reconcile.published":
        with pytest.raises(UpperMismatch):
            hands.apply(changes, upper=upper)
    else:
        hands.apply(changes, upper=upper)
    assert hands.rows() == [(1, "z"), (2, "b"), (3, "c"), (4, "d")]
    assert hands.pinned().wrong_buckets() == 0


@pytest.mark.spark
def test_changes_that_the_driver_does_not_hold_are_refused_before_it_takes_them(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_changes, "DRIVER_BYTES", 1 << 20)
    wide, other = "x" * (600 << 10), "y" * (600 << 10)
    with pytest.raises(Refused, match=r"or 1 MiB: they are 2, of about 1 MiB"):
        hands.apply([(1, wide, 1), (2, other, 1)])
    hands.apply([(1, wide, 1)])
    hands.apply([(key, "narrow", 1) for key in range(2, 4000)])  # whatever is stored
    monkeypatch.setattr(handed_changes, "DRIVER_CANDIDATES", 10)
    with pytest.raises(Refused, match="they are 11, "):
        hands.apply([(9999, "many", 11)])


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "given"),
    [("_diff int, _DIFF int", "_diff int, _DIFF int"), ("_diff string", "_diff string"), ("d int", "none")],
)
def test_one_number_of_copies_is_needed(hands: Hands, schema: str, given: str) -> None:
    frame = hands.spark.createDataFrame([], f"{SCHEMA}, {schema}")
    with pytest.raises(SchemaMismatch, match=f"need one column '_diff' of whole numbers; there is {given}"):
        hands.apply(frame)
