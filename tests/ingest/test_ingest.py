"""Rows come out of a buffer once, with their numbers in one commit; what cannot be a row is kept, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dying import Crash, dying_at
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.collections.append.file import set_aside
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.branches import drop_staged, list_staged
from tidemark.ingest.parts import steps
from tidemark.ingest.quarantine import list_quarantined
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.catalog.items.kinds import AuditEventValue

pytestmark = pytest.mark.slow  # stores that are really written, again and again

BAD_LINE = b'{"id":'
POINTS = (("content-type", b"application/vnd.influxdata.line-protocol"),)
UNKNOWN = (("content-type", b"application/x-new"), ("trace", b"\x00\x01"))


def test_rows_come_once_with_their_numbers(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 3)
    ingesting.send_rows(1, 2)
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.batches) == (Outcome.APPENDED, 5, 2)
    assert ingesting.ids() == list(range(5))
    assert ingesting.ledgers() == {"0": "0:3", "1": "0:2"}
    head = ingesting.shard().load()
    kinds = [each.summary["tidemark.kind"] for each in head.table.metadata.snapshots if each.summary]
    assert kinds == ["genesis", "fence", "staged", "append"], "one publish"
    assert {(row["_producer"].rsplit(".", 1)[1], row["_batch"]) for row in ingesting.rows()} == {("0", 0), ("1", 0)}
    assert {tuple(map(tuple, each)) for each in report.details["ranges"].values()} == {((0, 3),), ((0, 2),)}
    again = ingesting.ingest()
    assert (again.outcome, again.inserted) == (Outcome.UNCHANGED, 0)
    ingesting.send_rows(1, 4)
    assert ingesting.ingest().inserted == 4
    assert ingesting.ids() == list(range(9))
    assert ingesting.branches() == set()


def test_what_is_bad_is_put_aside_and_the_rest_kept(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send(0, b'{"id":1}\n{"id":"x"}\n{"id":2}', None)
    ingesting.send(1, b"payload", headers=UNKNOWN)
    report = ingesting.ingest()
    assert (report.inserted, report.rows_source, report.exit_code) == (2, 5, ExitCode.OK)
    assert (report.details["quarantined"], report.details["quarantine"]) == (3, "events_quarantine")
    assert ingesting.bad() == [
        (0, 0, "row-unreadable", b'{"id":"x"}'),
        (0, 1, "payload-missing", None),
        (1, 0, "format-unknown", b"payload"),
    ]
    (row,) = [row for row in ingesting.rows("events_quarantine") if row["partition"] == 1]
    assert [tuple(pair.values()) for pair in row["headers"]] == list(UNKNOWN)
    assert row["topic"] == str(ingesting.buffer_folder)
    assert row["time_ms"] == ingesting.clock.now_ms()
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert len(ingesting.bad()) == 3


def test_a_quarantine_that_files_left_takes_the_bad_rows_of_a_buffer(ingesting: Home) -> None:
    ingesting.declare_reader()
    name, rejected = BatchName("p", Range(0, 1)), [RejectedRow(1, "no number", "x,y")]
    deployment = deployment_of(ingesting.settings)
    more = {"deployment": deployment, "clock": ingesting.clock}
    set_aside(ingesting.shards, ingesting.shard(), name, rejected, file="rows.csv", **more)
    ingesting.send(0, BAD_LINE)
    assert ingesting.ingest().details["quarantined"] == 1
    rows = ingesting.rows("events_quarantine")
    assert [(row["file"], row["raw"]) for row in rows] in (
        [("rows.csv", None), (None, BAD_LINE)],
        [(None, BAD_LINE), ("rows.csv", None)],
    )
    assert len(list_quarantined(ingesting.shards, "events")) == 1


def test_rows_are_routed_to_the_collections_that_take_their_tables(ingesting: Home) -> None:
    ingesting.declare_reader("all_rows")
    ingesting.declare_reader("ones", source={"table": "one"})
    ingesting.declare_reader("twos", source={"table": "two"})
    ingesting.send(0, b'{"id":1,"_table":"one"}\n{"id":2,"_table":"two"}', b'{"id":3,"_table":"three"}')
    ingesting.send(1, b'one id=4i,name="p" 7', headers=(("content-type", b"application/vnd.influxdata.line-protocol"),))
    report = ingesting.ingest_all()
    assert sorted(report.collections) == ["all_rows", "ones", "twos"]
    assert [ingesting.ids(name) for name in ("all_rows", "ones", "twos")] == [[1, 2, 3, 4], [1, 4], [2]]
    measured = report.collections["twos"].details["sequencers"]
    assert (measured["0"]["rows"], measured["0"]["rows_of_other_tables"]) == (1, 2)


def test_a_collection_that_is_declared_later_gets_everything(ingesting: Home) -> None:
    ingesting.declare_reader("first")
    ingesting.send_rows(0, 3)
    ingesting.ingest_all()
    ingesting.declare_reader("second")
    ingesting.send_rows(0, 1)
    ingesting.ingest_all()
    assert ingesting.ids("first") == ingesting.ids("second") == [0, 1, 2, 3]


def test_a_limit_is_shared_by_backlog(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 9)
    ingesting.send_rows(1, 3)
    report = ingesting.ingest(max_entries=4)
    assert ingesting.ledgers() == {"0": "0:3", "1": "0:1"}
    ingesting.clock.step(500)
    measured = report.details["sequencers"]["0"]
    assert (measured["sequence_number_lag"], measured["last_sequence_number"]) == (6, 2)
    while ingesting.ingest(max_entries=4).outcome is Outcome.APPENDED:
        pass
    assert ingesting.ids() == list(range(12))


def test_measures_say_how_far_and_how_late(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send(0, b"t id=1i 10\nu id=2i 30\nt id=3i 20", headers=POINTS)
    ingesting.send(0, BAD_LINE)
    ingesting.clock.step(2_000)
    measured = ingesting.ingest(max_entries=1).details["sequencers"]["0"]
    assert (measured["last_min_time_ns"], measured["last_max_time_ns"]) == (10, 30)
    assert (measured["last_sequence_number"], measured["watermark"], measured["sequence_number_lag"]) == (0, 2, 1)
    assert (measured["lag_ms"], measured["last_ingest_time_ms"]) == (2_000, 1_000_000)
    measured = ingesting.ingest().details["sequencers"]["0"]
    assert (measured["requests_ok"], measured["requests_client_error"]) == (0, 1)
    assert (measured["sequence_number_lag"], measured["lag_ms"], measured["read_bytes"]) == (0, 0, len(BAD_LINE))


def test_expired_entries_fail_or_are_counted(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.send_rows(0, 5)
    ingesting.buffer.logs[0].expire(5)
    failed = ingesting.ingest()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("NoLongerExists", ExitCode.INPUT_MISSING)
    assert "up to 3 entries are lost" in failed.error.message
    assert ingesting.ids() == [0, 1]
    ingesting.declare_reader(source={"on_expired": "earliest"})
    report = ingesting.ingest()
    assert (report.inserted, report.details["lost"], report.details["sequencers"]["0"]["lost"]) == (2, 3, 3)
    assert (ingesting.ids(), ingesting.ledgers()) == ([0, 1, 5, 6], {"0": "0:7"})
    assert [(event.details["lost"], event.details["total"]) for event in losses(ingesting)] == [({"0": [2, 5]}, 3)]


def losses(home: Home) -> list[AuditEventValue]:
    """What the audit says of entries that were lost."""
    with home.catalog.join() as handle:
        events = handle.transact(lambda transaction: [event for _, event in transaction.items(AUDIT_EVENT)])
    return [event for event in events if event.operation == "skip-lost"]


def test_a_loss_is_recorded_once_whoever_dies_before_the_rows_come(ingesting: Home) -> None:
    ingesting.declare_reader(source={"on_expired": "earliest"})
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.send_rows(0, 5)
    ingesting.buffer.logs[0].expire(5)
    for _ in range(2):
        with pytest.raises(Crash), dying_at("ingest.after-record-lost"):
            ingesting.ingest()
    ingesting.ingest()
    (event,) = losses(ingesting)
    assert (event.details["total"], "on_expired" in event.who, ingesting.ids()) == (3, True, [0, 1, 5, 6])


def test_a_loss_of_latest_rows_is_recorded_too(ingesting: Home) -> None:
    ingesting.declare_latest(source={"on_expired": "earliest"})
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.send_rows(0, 5)
    ingesting.buffer.logs[0].expire(5)
    ingesting.ingest()
    (event,) = losses(ingesting)
    assert (event.details["lost"], ingesting.ids()) == ({"0": [2, 5]}, [0, 1, 5, 6])


def test_what_expires_while_it_is_read_is_counted(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.declare_reader(source={"on_expired": "earliest"})
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.send_rows(0, 5)
    monkeypatch.setattr(steps, "fail_point", lambda _: ingesting.buffer.logs[0].expire(5))
    report = ingesting.ingest()
    assert (report.details["lost"], ingesting.ids()) == (3, [0, 1, 5, 6])


def test_a_log_that_is_made_anew_is_noticed(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.make_buffer_anew()
    ingesting.send_rows(0, 5)
    failed = ingesting.ingest()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("LogRecreated", ExitCode.NOT_POSSIBLE)
    ingesting.declare_reader(source={"on_recreated": "earliest"})
    assert ingesting.ingest().inserted == 5
    assert ingesting.ids() == list(range(7))


def test_one_bad_buffer_does_not_stop_the_others(ingesting: Home) -> None:
    ingesting.declare_reader("good")
    ingesting.declare_reader("bad", source={"buffer": "file:///nowhere/at/all"})
    ingesting.declare_reader("unset", source={"buffer": "unset"})
    ingesting.send_rows(0, 2)
    report = ingesting.ingest_all()
    assert report.outcome == "partial"
    kinds = {name: each.error.kind for name, each in report.collections.items() if each.error}
    assert kinds == {"bad": "BufferMissing", "unset": "ConfigurationInvalid"}
    assert ingesting.ids("good") == [0, 1]


def test_read_only_deployment_stages_and_a_flush_publishes(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 2)
    ingesting.ingest()
    ingesting.switch(Mode.READ_ONLY)
    ingesting.send_rows(0, 2)
    ingesting.send(1, BAD_LINE, b'{"id":4}')
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.batches, report.rows_source) == (Outcome.STAGED, 0, 2, 4)
    assert "ranges" not in report.details
    assert ingesting.ingest().outcome is Outcome.UNCHANGED, "what is staged is not read again"
    ingesting.send_rows(1, 1)
    assert ingesting.ingest().outcome is Outcome.STAGED
    assert (ingesting.ids(), ingesting.bad()) == ([0, 1], [])
    ingesting.switch(Mode.READ_WRITE)
    ingesting.send_rows(0, 1)
    assert ingesting.ingest().inserted == 1, "behind what is staged"
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert ingesting.ids() == [0, 1, 2, 3, 4, 4, 5]
    assert ingesting.bad() == [(1, 0, "row-unreadable", BAD_LINE)]
    assert ingesting.ledgers() == {"0": "0:5", "1": "0:3"}
    assert ingesting.ingest().outcome is Outcome.UNCHANGED


@pytest.fixture
def begun(ingesting: Home) -> Home:
    """Of [1, 4) the bad row is staged, and the good ones are given up; a good and a bad entry came later."""
    ingesting.declare_reader(source={"on_expired": "earliest"})
    ingesting.send(0, b'{"id":0}')
    ingesting.ingest()
    ingesting.switch(Mode.READ_ONLY)
    ingesting.send(0, b'{"id":1}', BAD_LINE, b'{"id":2}')
    ingesting.ingest()
    drop_staged(ingesting.shard(), [each.branch for each in list_staged(ingesting.shard().load())])
    ingesting.send(0, b'{"id":3}', BAD_LINE)
    return ingesting


def flush(ingesting: Home) -> None:
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)


@pytest.mark.parametrize(("limit", "flushed"), [(None, True), (1, False), (2, True)])
def test_bad_rows_of_what_was_given_up_stand_once(
    begun: Home,
    limit: int | None,
    flushed: bool,  # noqa: FBT001
) -> None:
    if flushed:
        begun.switch(Mode.READ_WRITE)
        flush(begun)
        begun.switch(Mode.READ_ONLY)
    while (report := begun.ingest(max_entries=limit)).outcome is not Outcome.UNCHANGED:
        assert report.outcome is Outcome.STAGED, report.error
    begun.switch(Mode.READ_WRITE)
    flush(begun)
    assert begun.ids() == [0, 1, 2, 3]
    assert begun.bad() == [(0, 2, "row-unreadable", BAD_LINE), (0, 5, "row-unreadable", BAD_LINE)]
    assert (begun.ledgers(), begun.branches()) == ({"0": "0:6"}, set())


def test_what_was_begun_may_expire(begun: Home) -> None:
    begun.buffer.logs[0].expire(5)
    assert begun.ingest().details["lost"] == 4
    begun.switch(Mode.READ_WRITE)
    flush(begun)
    assert begun.ids() == [0]
    assert [offset for _, offset, _, _ in begun.bad()] == [5], "the bad row of what is lost belongs to nothing"


def test_collection_that_rejects_batches_stays_as_it_is(ingesting: Home) -> None:
    ingesting.declare_reader(on_read_only="reject")
    ingesting.send_rows(0, 2)
    ingesting.switch(Mode.READ_ONLY)
    failed = ingesting.ingest()
    assert (failed.exit_code, ingesting.branches()) == (ExitCode.FENCED, set())


def test_what_a_leader_published_in_other_pieces_is_no_trouble_for_the_next(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 3)
    newer = ingesting.of_generation(2)
    assert newer.ingest().outcome is Outcome.STAGED
    ingesting.send_rows(0, 2)
    assert ingesting.ingest(max_entries=2).inserted == 2
    newer.switch(Mode.READ_WRITE)
    assert newer.ingest().inserted == 3, "[0, 3) was in the way of [0, 2), and is read again"
    assert ingesting.ids() == list(range(5))
    assert ingesting.branches() == set()


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
@pytest.mark.parametrize("published", ["0:2", "0:4"])
def test_flush_passes_over_what_a_leader_published_in_other_pieces(ingesting: Home, published: str, bad: int) -> None:
    """Wherever the bad entry is. What the leader has not published, the next ingest reads again."""
    ingesting.declare_reader()
    for number in range(4):
        ingesting.send(0, BAD_LINE if number == bad else b'{"id":%d}' % number)
    ingesting.send_rows(1, 1)
    newer = ingesting.of_generation(2)
    assert newer.ingest().outcome is Outcome.STAGED
    while ingesting.ledgers().get("0") != published:
        assert ingesting.ingest(max_entries=1).outcome is Outcome.APPENDED
    newer.switch(Mode.READ_WRITE)
    report = flush_all(newer.shards, newer.deployment, [], clock=newer.clock)
    assert report.exit_code == ExitCode.OK
    again = report.collections["events"].details.get("to_ingest_again", [])
    assert [name.split(".")[-1] for name in again] == (["0 0:4"] if published == "0:2" else [])
    assert ingesting.branches() == set()
    newer.ingest()
    flush(newer)
    assert newer.ingest().outcome is Outcome.UNCHANGED
    assert sorted(newer.ids()) == sorted([0, *({0, 1, 2, 3} - {bad})])
    assert newer.bad() == [(0, bad, "row-unreadable", BAD_LINE)]
    assert (newer.ledgers(), newer.branches()) == ({"0": "0:4", "1": "0:1"}, set())


@pytest.mark.parametrize("point", ["flush.after-audit", "flush.after-merge", "flush.after-publish"])
def test_flush_that_dies_leaves_the_rest_to_the_next_ingest(ingesting: Home, point: str) -> None:
    ingesting.declare_reader()
    ingesting.send(0, b'{"id":0}', BAD_LINE)
    newer = ingesting.of_generation(2)
    newer.ingest()
    ingesting.ingest(max_entries=1)
    newer.switch(Mode.READ_WRITE)
    with pytest.raises(Crash), dying_at(point):
        flush(newer)
    flush(newer)
    assert newer.branches() == set()
    newer.ingest()
    assert (newer.ids(), newer.bad()) == ([0], [(0, 1, "row-unreadable", BAD_LINE)])
    assert newer.branches() == set()


def test_what_no_ingest_reads_again_stays_staged(ingesting: Home) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 2)
    newer = ingesting.of_generation(2)
    newer.ingest()
    ingesting.ingest(max_entries=1)
    newer.switch(Mode.READ_WRITE)
    columns = {"name": "events", "kind": "append-only", "schema": "id bigint, name string"}
    newer.registry.replace([Declaration.model_validate(columns)], seen=newer.registry.read())
    report = flush_all(newer.shards, newer.deployment, [], clock=newer.clock).collections["events"]
    assert (report.outcome, report.error and report.error.kind) == (Outcome.REFUSED, "RangeOverlap")
    assert newer.branches()


@pytest.mark.parametrize("ingests_first", [True, False])
def test_bad_rows_that_a_leader_published_are_not_published_again(ingesting: Home, *, ingests_first: bool) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 1)
    ingesting.send(0, BAD_LINE)
    newer = ingesting.of_generation(2)
    assert newer.ingest().outcome is Outcome.STAGED
    ingesting.send_rows(0, 1)
    assert ingesting.ingest().inserted == 2
    if ingests_first:
        assert newer.ingest().outcome is Outcome.UNCHANGED
    newer.switch(Mode.READ_WRITE)
    flush(newer)
    assert (ingesting.ids(), len(ingesting.bad()), ingesting.branches()) == ([0, 1], 1, set())


def test_rows_that_are_not_what_is_expected_stay_in_the_buffer(ingesting: Home) -> None:
    ingesting.declare_reader(expect={"not_null": ["name"]})
    ingesting.send(0, b'{"id":1}')
    refused = ingesting.ingest()
    assert (refused.outcome, refused.exit_code) == (Outcome.REFUSED, ExitCode.REFUSED)
    assert (ingesting.ids(), ingesting.branches(), ingesting.ledgers()) == ([], set(), {})


def test_a_run_that_is_overtaken_finds_its_ranges_done(ingesting: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.declare_reader()
    ingesting.send_rows(0, 2)
    look_at, overtaken = steps.look_at, False

    def look_and_be_overtaken(*arguments: Any) -> Any:
        nonlocal overtaken
        found = look_at(*arguments)
        if not overtaken:
            overtaken = True
            ingesting.send_rows(0, 3)
            assert ingesting.ingest().inserted == 5
        return found

    monkeypatch.setattr(steps, "look_at", look_and_be_overtaken)
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), ingesting.ledgers()) == (list(range(5)), {"0": "0:5"})
    assert ingesting.branches() == set()


@pytest.mark.parametrize("names", [("none",), ("plain",)])
def test_only_collections_that_read_a_buffer_are_ingested(ingesting: Home, names: tuple[str, ...]) -> None:
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.errors import UsageError

    registry = deployment_of(ingesting.settings).registry
    plain = Declaration.model_validate({"name": "plain", "kind": "append-only", "schema": "a int"})
    registry.replace([plain], seen=registry.read())
    assert ingesting.ingest_all().collections == {}
    with pytest.raises(UsageError):
        ingesting.ingest_all(*names)
