"""The latest row of each key comes out of a buffer, with its corrections and its numbers in one commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.clock import SteppedClock
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.reconcile.run import choose_declarations
from tidemark.errors import IncompatibleChange, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.ingest.latest import commit
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.quarantine import list_quarantined, retry
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def send(home: Home, sequencer: int, *rows: dict[str, Any]) -> None:
    home.send(sequencer, *(json.dumps(row).encode() for row in rows))


def test_the_last_change_of_a_key_wins(ingesting: Home) -> None:
    ingesting.declare_latest(delete_when={"op": "d"})
    send(ingesting, 0, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"})
    send(ingesting, 1, {"id": 3, "name": "d"}, {"id": 4, "op": "d"})
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.retracted, report.rows_source) == (Outcome.CORRECTED, 3, 0, 5)
    assert ingesting.tuples("events") == [(1, "c"), (2, "b"), (3, "d")]
    assert ingesting.ledgers() == {"0": "0:3", "1": "0:2"}
    send(ingesting, 0, {"id": 1, "name": "e"}, {"id": 2, "op": "d"}, {"id": 5, "name": None})
    send(ingesting, 1, {"id": 3, "name": "d"})
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 2, 2)
    assert ingesting.tuples("events") == [(1, "e"), (3, "d"), (5, None)]
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert check_invariant(ingesting.shard()).holds


def test_everything_bad_is_put_aside_in_the_same_commit(ingesting: Home) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, {"id": 1, "name": "a"}, {"name": "b"})
    ingesting.send(0, b'{"id":', None)
    send(ingesting, 1, {"id": 2, "name": "c"}, {"id": None})
    report = ingesting.ingest()
    assert (report.inserted, report.rows_source, report.details["quarantined"]) == (2, 6, 4)
    assert ingesting.tuples("events") == [(1, "a"), (2, "c")]
    assert ingesting.bad() == [
        (0, 1, "key-missing", b'{"name": "b"}'),
        (0, 2, "row-unreadable", b'{"id":'),
        (0, 3, "payload-missing", None),
        (1, 1, "key-missing", b'{"id": null}'),
    ]
    assert ingesting.branches() == set()
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert len(ingesting.bad()) == 4


def test_a_key_in_two_sequencers_is_put_aside(ingesting: Home) -> None:
    ingesting.declare_latest(delete_when={"op": "d"})
    send(ingesting, 1, {"id": 1, "name": "first"}, {"id": 2, "name": "b"})
    ingesting.ingest()
    send(ingesting, 0, {"id": 1, "name": "x"}, {"id": 1, "op": "d"}, {"id": 3, "name": "c"})
    send(ingesting, 1, {"id": 3, "name": "y"}, {"id": 1, "name": "second"})
    report = ingesting.ingest()
    assert ingesting.tuples("events") == [(1, "second"), (2, "b"), (3, "c")]
    assert (report.details["key_spread"], report.details["quarantined"], report.rows_source) == (3, 3, 5)
    assert [(row[0], row[2]) for row in ingesting.bad()] == [(0, "key-spread"), (0, "key-spread"), (1, "key-spread")]
    assert {(row["id"], row["_producer"][-1]) for row in ingesting.rows()} == {(1, "1"), (2, "1"), (3, "0")}


def test_a_key_in_two_sequencers_is_refused(ingesting: Home) -> None:
    ingesting.declare_latest(on_key_spread="refuse")
    send(ingesting, 1, {"id": 1, "name": "first"})
    ingesting.ingest()
    send(ingesting, 0, {"id": 1, "name": "x"}, {"id": 2, "name": "b"})
    report = ingesting.ingest()
    assert (report.outcome, report.exit_code) == (Outcome.REFUSED, ExitCode.REFUSED)
    assert report.error is not None
    assert (report.error.kind, report.error.sample) == ("KeySpread", [{"id": 1, "sequencer": 0, "first_sequencer": 1}])
    assert ingesting.tuples("events") == [(1, "first")]
    ingesting.declare_latest()
    assert ingesting.ingest().inserted == 1
    assert ingesting.tuples("events") == [(1, "first"), (2, "b")]


def test_of_a_log_that_is_made_anew_each_change_is_later_than_all_before(ingesting: Home) -> None:
    """Whatever its number, and whichever sequencer its key was in; keys that it does not name stay."""
    ingesting.declare_latest(delete_when={"op": ["d"]})
    send(ingesting, 1, *({"id": number, "name": "old"} for number in range(1, 5)), {"id": 1, "name": "older log"})
    ingesting.ingest()
    ingesting.make_buffer_anew()
    send(ingesting, 0, {"id": 1, "name": "new"}, {"id": 2, "op": "d"})
    failed = ingesting.ingest()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("LogRecreated", ExitCode.NOT_POSSIBLE)
    ingesting.declare_latest(delete_when={"op": ["d"]}, source={"on_recreated": "earliest"})
    report = ingesting.ingest()
    assert "key_spread" not in report.details
    assert ingesting.tuples("events") == [(1, "new"), (3, "old"), (4, "old")]
    assert check_invariant(ingesting.shard()).holds


def test_portions_are_commits_of_their_own(ingesting: Home) -> None:
    declaration = ingesting.declare_latest()
    for number in range(10):
        send(
            ingesting, number % 2, *({"id": 2 * (id_ % 3) + number % 2, "name": f"{number}/{id_}"} for id_ in range(6))
        )
    arguments = {"deployment": ingesting.deployment, "clock": ingesting.clock}
    report = ingest_latest(ingesting.shards, declaration, **arguments, portion_entries=7)
    assert (report.batches, report.rows_source) == (2, 60)
    assert ingesting.ledgers() == {"0": "0:30", "1": "0:30"}
    assert ingesting.tuples("events") == sorted((2 * (i % 3) + n, f"{8 + n}/{i}") for n in (0, 1) for i in (3, 4, 5))
    head = ingesting.shard().load()
    kinds = [each.summary["tidemark.kind"] for each in head.table.metadata.snapshots if each.summary]
    assert kinds.count("correct") >= 9
    assert check_invariant(ingesting.shard()).holds


def test_changes_that_need_much_memory_are_cut(ingesting: Home) -> None:
    declaration = ingesting.declare_latest()
    for number in range(40):
        send(ingesting, number % 2, {"id": number, "name": "x" * 100})
    arguments = {"deployment": ingesting.deployment, "clock": ingesting.clock}
    ingest_latest(ingesting.shards, declaration, **arguments, portion_bytes=500)
    assert ingesting.ids() == list(range(40))
    assert ingesting.ledgers() == {"0": "0:20", "1": "0:20"}


def test_a_limit_ends_a_run(ingesting: Home) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, *({"id": number} for number in range(5)))
    report = ingesting.ingest(max_entries=3)
    assert (ingesting.ids(), report.details["sequencers"]["0"]["sequence_number_lag"]) == ([0, 1, 2], 2)


def test_while_read_only_the_buffer_keeps_the_changes(ingesting: Home) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, {"id": 1, "name": "a"})
    ingesting.switch(Mode.READ_ONLY)
    before = ingesting.shard().load().state
    report = ingesting.ingest()
    assert (report.outcome, report.exit_code) == (Outcome.SKIPPED, ExitCode.OK)
    assert "read-only" in report.details["skipped_because"]
    assert report.details["sequencers"]["0"]["sequence_number_lag"] == 1
    assert ingesting.shard().load().state == before
    ingesting.switch(Mode.READ_WRITE)
    assert ingesting.ingest().inserted == 1


def test_another_commit_in_the_middle_makes_a_run_plan_again(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, {"id": 1, "name": "a"}, {"name": "bad"})
    ingesting.ingest()
    send(ingesting, 0, {"id": 1, "name": "b"}, {"name": "bad"})
    real, ran = commit._put_aside, []

    def meanwhile(attempt: Any) -> None:
        real(attempt)
        if not ran:
            ran.append(1)
            send(ingesting, 1, {"id": 2, "name": "c"})
            ingesting.ingest()

    monkeypatch.setattr(commit, "_put_aside", meanwhile)
    report = ingesting.ingest()
    assert (report.outcome, ran) == (Outcome.UNCHANGED, [1]), "the other run took everything"
    assert ingesting.tuples("events") == [(1, "b"), (2, "c")]
    assert [row[1] for row in ingesting.bad()] == [1, 3]
    assert ingesting.branches() == set()
    assert check_invariant(ingesting.shard()).holds


def test_a_compaction_in_the_middle_makes_a_run_plan_again(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.declare_latest(delete_when={"op": "d"})
    for number in range(6):
        send(ingesting, 0, {"id": number, "name": "a"}, {"id": 0, "name": f"{number}"})
        ingesting.ingest()
    send(ingesting, 0, {"id": 1, "name": "b"}, {"id": 2, "op": "d"})
    real, ran = commit._write, []

    def meanwhile(attempt: Any) -> None:
        real(attempt)
        if not ran:
            ran.append(compact(Writer.join(ingesting.shard(), 1), policy=CompactionPolicy(min_small_files=2)))

    monkeypatch.setattr(commit, "_write", meanwhile)
    ingesting.ingest()
    assert ingesting.tuples("events") == [(0, "5"), (1, "b"), (3, "a"), (4, "a"), (5, "a")]
    assert ran
    assert check_invariant(ingesting.shard()).holds


def test_a_clock_that_steps_back_stops_no_commit(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, {"id": 1, "name": "a"})
    real = commit._write

    def and_step_back(attempt: Any) -> None:
        real(attempt)
        ingesting.clock.step(-500_000)

    monkeypatch.setattr(commit, "_write", and_step_back)
    assert ingesting.ingest().inserted == 1


def test_history_is_that_of_a_differential_collection(ingesting: Home) -> None:
    ingesting.declare_latest(delete_when={"op": "d"})
    send(ingesting, 0, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    ingesting.ingest()
    between = ingesting.upper("events") - 1
    ingesting.clock.step(100)
    send(ingesting, 0, {"id": 1, "name": "c"}, {"id": 2, "op": "d"}, {"id": 3, "name": "d"})
    ingesting.ingest()
    shard = ingesting.shard()
    assert sorted(map(tuple, (row.values() for row in read_arrow(shard, between).to_pylist()))) == [(1, "a"), (2, "b")]
    changes = changes_arrow(shard, between + 1)
    assert changes.column_names == ["id", "name", "_time", "_diff"]
    assert sorted((row["id"], row["name"], row["_diff"]) for row in changes.to_pylist()) == [
        (1, "a", -1), (1, "c", 1), (2, "b", -1), (3, "d", 1)
    ]  # fmt: skip
    assert check_invariant(shard).holds
    ahead = ingesting.of_generation(1)
    ahead.clock = SteppedClock(10**13)
    report = maintain_all(None, ahead.deployment, [], clock=ahead.clock)
    assert [each.error for each in report.collections.values() if each.error] == []
    assert ingesting.tuples("events") == [(1, "c"), (3, "d")]
    send(ingesting, 0, {"id": 1, "name": "e"})
    ingesting.ingest()
    assert ingesting.tuples("events") == [(1, "e"), (3, "d")]
    assert check_invariant(ingesting.shard()).holds


def test_what_another_engine_wrote_is_undone_or_refused(ingesting: Home) -> None:
    ingesting.declare_latest()
    send(ingesting, 0, {"id": 1, "name": "a"})
    ingesting.ingest()
    table = ingesting.shard().load().table
    row = {"id": 9, "name": "foreign", "_time": 1, "_diff": 1, "_producer": None}
    table.append(pa.Table.from_pylist([row], schema=arrow_schema(table)))
    ingesting.declare_latest(on_foreign_commit="fail")
    report = ingesting.ingest()
    assert report.error is not None
    assert report.error.kind == "ForeignCommit"
    ingesting.declare_latest()
    report = ingesting.ingest()
    assert (report.outcome, "foreign_commits" in report.details) == (Outcome.CORRECTED, True)
    assert ingesting.tuples("events") == [(1, "a")]
    assert ingesting.ingest().outcome is Outcome.UNCHANGED


YAML = """
version: 1
collections:
  events:
    kind: latest
    key: [id, at]
    schema: "{schema}"
    source: {{buffer: "{buffer}"}}
    delete_when: {{op: [d]}}
    buckets: 2
"""


def test_columns_are_added_and_widened_while_changes_come(ingesting: Home) -> None:
    text = {"buffer": ingesting.buffer_folder.as_uri()}
    ingesting.declare(YAML.format(schema="id int, at date, tags array<string>", **text))
    assert ingesting.declare(YAML.format(schema="id int, at date, tags array<string>", **text)).steps == ()
    send(ingesting, 0, *({"id": n, "at": "2013-01-01", "tags": ["a", None]} for n in range(4)))
    ingesting.ingest()
    send(ingesting, 0, {"id": 0, "at": "2013-01-01", "tags": ["a", None]})
    assert ingesting.ingest().outcome is Outcome.UNCHANGED, "the row is equal"
    plan = ingesting.declare(YAML.format(schema="id bigint, at date, tags array<string>, size double", **text))
    assert [step.action for step in plan.steps] == ["widen column", "add column", "register"]
    send(ingesting, 0, {"id": 1, "at": "2013-01-01", "op": "d"}, {"id": 2, "at": "2013-01-01", "size": 1.5})
    report = ingesting.ingest()
    assert (report.inserted, report.retracted) == (1, 2)
    found = sorted((row["id"], row["tags"], row["size"]) for row in ingesting.rows())
    assert found == [(0, ["a", None], None), (2, None, 1.5), (3, ["a", None], None)]
    assert check_invariant(ingesting.shard()).holds
    csv = "{format: csv, path: x.csv, schema: 'id int, at date'}"
    other = f"version: 1\ncollections: {{events: {{kind: differential, key: [id, at], source: {csv}}}}}"
    with pytest.raises(IncompatibleChange, match="cannot become differential"):
        ingesting.declare(other)


def test_a_column_that_comes_in_the_middle_keeps_its_values(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"buffer": ingesting.buffer_folder.as_uri()}
    ingesting.declare(YAML.format(schema="id int, at date", **text))
    send(ingesting, 0, {"id": 0, "at": "2013-01-01"})
    ingesting.ingest()
    send(ingesting, 0, {"id": 0, "at": "2013-01-01", "size": 1.5})
    real, ran = commit._write, []

    def meanwhile(attempt: Any) -> None:
        real(attempt)
        if not ran:
            ran.append(ingesting.declare(YAML.format(schema="id int, at date, size double", **text)))

    monkeypatch.setattr(commit, "_write", meanwhile)
    report = ingesting.ingest()
    assert report.error is not None
    assert (report.error.kind, len(ran)) == ("AppliedMeanwhile", 1)
    assert ingesting.ingest().outcome is Outcome.CORRECTED
    assert [row["size"] for row in ingesting.rows()] == [1.5]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("string", ["a", "ü", ""]),
        ("binary", ["YQ==", "Yg==", ""]),
        ("boolean", [True, False, None]),
        ("double", [0.0, 1.5, -1.5]),
        ("decimal(10,2)", ["1.50", "2.00", "-3.25"]),
        ("timestamp", ["2013-01-01T05:00:00Z", "2013-01-01T05:00:00.000001Z", "1969-12-31T00:00:00+01:00"]),
        ("date", ["2013-01-01", "2013-01-02", "1969-12-31"]),
    ],
)
def test_any_type_that_can_be_a_key_finds_its_rows(ingesting: Home, type_: str, values: list[Any]) -> None:
    ingesting.declare_latest(schema=f"k {type_}, id int, v int", key=["k", "id"], delete_when={"op": "d"})
    send(ingesting, 0, *({"k": value, "id": id_, "v": 1} for value in values for id_ in (1, 2)))
    ingesting.ingest()
    known = [value for value in values if value is not None]
    assert len(ingesting.rows()) == 2 * len(known)
    send(ingesting, 0, {"k": known[0], "id": 1, "op": "d"}, {"k": known[1], "id": 2, "v": 2})
    send(ingesting, 0, {"k": known[1], "id": 1, "v": 1})
    report = ingesting.ingest()
    assert (report.inserted, report.retracted) == (1, 2)
    assert sorted(row["v"] for row in ingesting.rows()) == [1] * (2 * len(known) - 2) + [2]
    assert check_invariant(ingesting.shard()).holds


def test_what_is_for_other_kinds_is_refused(ingesting: Home) -> None:
    declaration = ingesting.declare_latest()
    ingesting.send(0, b"no")
    ingesting.ingest()
    with pytest.raises(UsageError, match="may be older than the present row"):
        retry(ingesting.shards, ingesting.deployment, declaration, clock=ingesting.clock)
    with pytest.raises(UsageError, match="made equal to nothing") as caught:
        choose_declarations({"events": declaration}, ["events"])
    assert "tidemark buffer ingest events" in caught.value.hint
    assert choose_declarations({"events": declaration}, []) == {}
    assert len(list_quarantined(ingesting.shards, "events")) == 1
