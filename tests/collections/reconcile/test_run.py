"""Many collections in one run: all at once, inputs first, each one's failure its own."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from tests.support.declared import csv_declaration
from tests.support.homes import Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.files import sort_by_inputs
from tidemark.collections.reconcile.run import choose_declarations, reconcile_all, skip_stale
from tidemark.errors import ConfigurationInvalid, UnknownCollection, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.interval import Interval
from tidemark.report import CollectionReport, ErrorReport, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

DAY_MS = 86_400_000


def reads(*inputs: str) -> dict[str, object]:
    return {"inputs": {f"t{n}": {"collection": each} for n, each in enumerate(inputs)}, "sql": "SELECT * FROM t0"}


def totals_of(name: str) -> dict[str, object]:
    sql = f"SELECT cast(count(*) AS int) AS k, max(v) AS v FROM {name}"
    return {"inputs": {name: {"collection": name}}, "sql": sql}


def test_no_names_means_all_differential_collections() -> None:
    events = Declaration.model_validate({"name": "events", "kind": "append-only", "schema": "k int"})
    declared = {each.name: each for each in (csv_declaration("b"), csv_declaration("a"), events)}
    assert list(choose_declarations(declared, [])) == ["a", "b"]
    assert list(choose_declarations(declared, ["b"])) == ["b"]
    with pytest.raises(UnknownCollection) as unknown:
        choose_declarations({"planes": csv_declaration("planes")}, ["plains"])
    assert "planes" in unknown.value.hint
    with pytest.raises(UsageError, match="append-only"):
        choose_declarations(declared, ["events"])


def test_collection_comes_after_those_it_reads() -> None:
    declared = {
        each.name: each
        for each in (csv_declaration("a", source=reads("b", "elsewhere")), csv_declaration("b"), csv_declaration("c"))
    }
    sorter = sort_by_inputs(declared)
    assert set(sorter.get_ready()) == {"b", "c"}
    sorter.done("b")
    assert sorter.get_ready() == ("a",)


def test_circle_is_refused_by_name() -> None:
    declared = {"a": csv_declaration("a", source=reads("b")), "b": csv_declaration("b", source=reads("a"))}
    with pytest.raises(ConfigurationInvalid, match=r"circle: .*a.*b"):
        sort_by_inputs(declared)


CORRECTED, UNCHANGED = CollectionReport(outcome=Outcome.CORRECTED), CollectionReport(outcome=Outcome.UNCHANGED)
FAILED = CollectionReport(outcome=Outcome.FAILED, error=ErrorReport(kind="InputMissing", message="gone"))


def test_collection_that_reads_a_failed_one_is_skipped_and_so_is_what_reads_it() -> None:
    declared = csv_declaration("totals", source=reads("a", "b"))
    assert skip_stale(declared, {"a": CORRECTED, "b": UNCHANGED}) is None
    skipped = skip_stale(declared, {"a": CORRECTED, "b": FAILED})
    assert skipped is not None
    assert (skipped.outcome, skipped.error) == (Outcome.SKIPPED, None)
    assert skipped.details["skipped_because"] == "it reads b, which this run could not make equal to its source"
    assert skip_stale(declared, {"a": skipped}) is not None
    assert skip_stale(declared, {"a": CollectionReport(outcome=Outcome.SKIPPED)}) is None, "only for this reason"
    assert skip_stale(csv_declaration("totals", source=reads("a"), on_stale_input="go-on"), {"a": FAILED}) is None


@pytest.mark.spark
def test_one_bad_collection_among_five_fails_alone(installation: Home, home_spark: SparkSession) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        installation.write_rows(name, [(n, name) for n in range(5)])
    installation.write_rows("c", [(1, "one"), (1, "uno")])
    totals = csv_declaration("totals", source=totals_of("a"))
    missing = installation.declaration("missing")
    stale = [
        csv_declaration("stale", source=totals_of("missing")),
        csv_declaration("staler", source=totals_of("stale")),
        csv_declaration("patient", source=totals_of("missing"), on_stale_input="go-on"),
    ]
    installation.apply(*map(installation.declaration, names), missing, totals, *stale)
    events: list[tuple[str, CollectionReport | None]] = []

    report = reconcile_all(
        home_spark,
        deployment_of(installation.settings),
        [],
        clock=installation.clock,
        progress=lambda name, result: events.append((name, result)),
    )

    outcomes = {name: each.outcome for name, each in report.collections.items()}
    assert outcomes == {
        "a": Outcome.CORRECTED,
        "b": Outcome.CORRECTED,
        "c": Outcome.REFUSED,
        "d": Outcome.CORRECTED,
        "missing": Outcome.FAILED,
        "totals": Outcome.CORRECTED,
        "stale": Outcome.SKIPPED,
        "staler": Outcome.SKIPPED,
        "patient": Outcome.CORRECTED,
    }
    assert report.outcome == "partial"
    assert report.exit_code is ExitCode.REFUSED
    assert report.collections["missing"].exit_code is ExitCode.INPUT_MISSING
    assert {name for name, _ in events} == set(outcomes)
    totals_rows = home_spark.table("tidemark.collections.totals").select("k", "v").collect()
    assert [tuple(row) for row in totals_rows] == [(5, "a")], "it reads what this run has written"
    assert home_spark.table("tidemark.collections.c").count() == 0

    again = reconcile_all(home_spark, deployment_of(installation.settings), ["a", "b"], clock=installation.clock)
    assert {each.outcome for each in again.collections.values()} == {Outcome.UNCHANGED}
    assert again.exit_code is ExitCode.OK


@pytest.mark.spark
def test_dry_run_tells_and_changes_nothing(installation: Home, home_spark: SparkSession) -> None:
    installation.write_rows("a", [(1, "x"), (2, "y")])
    installation.apply(installation.declaration("a"))
    report = reconcile_all(
        home_spark, deployment_of(installation.settings), ["a"], dry_run=True, clock=installation.clock
    )
    planned = report.collections["a"]
    assert (report.operation, planned.outcome, planned.inserted, planned.upper) == ("plan", Outcome.CORRECTED, 2, 0)
    rows = planned.details["sample"]["inserted"]
    assert sorted(row["v"] for row in rows) == ["x", "y"]
    head = installation.shards.open("a").load()
    assert (head.state.upper, head.row_count) == (0, 0)


@pytest.mark.spark
def test_dry_run_of_a_collection_and_of_one_that_reads_it(installation: Home, home_spark: SparkSession) -> None:
    installation.write_rows("a", [(1, "x")])
    totals = csv_declaration("totals", source=totals_of("a"))
    installation.apply(installation.declaration("a"), totals)
    deployment = deployment_of(installation.settings)
    planned = reconcile_all(home_spark, deployment, ["a", "totals"], dry_run=True, clock=installation.clock)
    assert planned.collections["totals"].details["depends_on"] == ["a"]
    assert [tuple(row.values()) for row in planned.collections["totals"].details["sample"]["inserted"]] == [(1, "x")]
    assert "depends_on" not in planned.collections["a"].details
    reconcile_all(home_spark, deployment, [], clock=installation.clock)
    again = reconcile_all(home_spark, deployment, ["a", "totals"], dry_run=True, clock=installation.clock)
    assert {each.outcome for each in again.collections.values()} == {Outcome.UNCHANGED}


@pytest.mark.spark
def test_plan_foresees_each_collection_in_a_chain(home: Settings, tmp_path: Path, home_spark: SparkSession) -> None:
    place = Home(home, tmp_path, "k int, v string, day date")
    guards = {"on_null_key": "drop", "on_duplicate_key": {"first_by": "v"}}
    a = place.declaration("a", key=["k", "day"], guards=guards, scope={"column": "day", "every": "day"})
    chain = [csv_declaration(name, key=["k", "day"], source=reads(read)) for name, read in (("b", "a"), ("c", "b"))]
    first, second = date(1970, 1, 1), date(1970, 1, 2)
    place.write_rows("a", [(1, "a", first), (2, "b", second)])
    place.apply(a, *chain)
    deployment, day = deployment_of(home), Interval(DAY_MS, 2 * DAY_MS)
    reconcile_all(home_spark, deployment, [], clock=place.clock)
    place.write_rows("a", [(9, "x", first), (2, "z", second), (2, "y", second), (3, "c", second), (None, "n", second)])
    planned = reconcile_all(home_spark, deployment, [], interval=day, dry_run=True, clock=place.clock).collections
    done = reconcile_all(home_spark, deployment, [], interval=day, clock=place.clock).collections
    for name in ("a", "b", "c"):
        told, seen = ((it.outcome, it.inserted, it.retracted, it.rows_source) for it in (planned[name], done[name]))
        assert told == seen, name
    assert place.tuples("c") == [(1, "a", first), (2, "y", second), (3, "c", second)]
    assert planned["c"].details["depends_on"] == ["b"]


@pytest.mark.spark
def test_unknown_name_stops_the_run_before_anything_starts(installation: Home, home_spark: SparkSession) -> None:
    installation.write_rows("a", [(1, "x")])
    installation.apply(installation.declaration("a"))
    with pytest.raises(UnknownCollection):
        reconcile_all(home_spark, deployment_of(installation.settings), ["a", "aa"], clock=installation.clock)
    assert installation.shards.open("a").load().state.upper == 0
