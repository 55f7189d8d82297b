"""A replay makes the rows on `main` equal to the buffer again, whatever became of them, and changes nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at, declare, partitions_by, send
from tests.ingest.persist.test_persist import files_of, lose_state, old, persist, stored, young
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.leftovers import leftovers
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import CorruptState, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.ingest.persist import persist as persisting
from tidemark.ingest.quarantine import retry
from tidemark.ingest.replay import replay as replaying
from tidemark.ingest.replay.plan import Request
from tidemark.ingest.replay.replay import replay_all
from tidemark.interval import instant, time_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home
    from tidemark.report import CollectionReport

pytestmark = pytest.mark.slow  # stores that are really written, again and again

EAGER = CompactionPolicy(min_small_files=2)
H5, H6 = "2013-01-03T05", "2013-01-03T06"


def replay(home: Home, *partitions: str, from_: tuple[str, ...] = (), **more: Any) -> CollectionReport:
    skips_lost = more.pop("skips_lost", False)
    request = Request.parse(partitions, from_, skips_lost=skips_lost)
    chosen = [home.registry.get("events")]
    report = replay_all(home.shards, home.deployment, chosen, request, clock=home.clock, who="operator", **more)
    return report.collections["events"]


def replayed(home: Home, *partitions: str, **more: Any) -> CollectionReport:
    report = replay(home, *partitions, **more)
    assert report.error is None, report.error
    return report


def contents(home: Home) -> Counter[tuple[Any, ...]]:
    """All rows with their origins, without the starts of their batches, which a replay cuts anew."""
    return Counter((row["id"], row["at"], row["_producer"], row.get("_entry")) for row in home.rows())


def delete(home: Home, row_filter: str) -> None:
    """Delete rows as another engine does."""
    with pytest.warns(UserWarning, match="copy-on-write"):
        home.shards.iceberg.load_table(("collections", "events")).delete(row_filter)


def three_files(home: Home) -> Counter[tuple[Any, ...]]:
    """Persisted rows of 05:00, open ones of 05:00 and 06:00: numbers 0 to 5 of sequencer 0, 0 to 2 of sequencer 1."""
    at(home, 66)
    send(home, 0, 10, 20, 30)
    send(home, 1, 15)
    home.ingest()
    at(home, 72)
    assert persist(home).strategy == "persisted"
    send(home, 0, 62, 61, 25)
    home.ingest()
    send(home, 1, 63, 35)
    home.ingest()
    return contents(home)


def test_a_replay_of_what_is_whole_changes_nothing(hourly: Home) -> None:
    before = three_files(hourly)
    report = replayed(hourly)
    assert contents(hourly) == before
    assert (report.outcome, report.inserted, report.retracted) == ("corrected", 5, 5)
    assert report.details["sequencers"] == {
        "0": {"start": 3, "end": 6, "lost": 0, "entries": 3},
        "1": {"start": 1, "end": 3, "lost": 0, "entries": 2},
    }
    assert report.details["partitions"] == [
        {"partition": H5, "rows": 2, "replayed": 2},
        {"partition": H6, "rows": 3, "replayed": 3},
    ]
    assert hourly.ingest().outcome == "unchanged"
    persist(hourly, now=True)
    assert contents(hourly) == before
    assert all(each.is_persisted for each in stored(hourly))


def test_rows_that_another_engine_deleted_or_changed_come_back(hourly: Home) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (4, 6, 8)")
    assert sum(contents(hourly).values()) == 6
    assert (replayed(hourly).inserted, contents(hourly)) == (5, before)


def test_what_is_persisted_comes_back_only_from_a_number_on(hourly: Home) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (1, 3, 5)")
    replayed(hourly)
    assert before - contents(hourly) == Counter({row: 1 for row in before if row[0] in {1, 3}})
    replayed(hourly, from_=("0:1",))
    assert before - contents(hourly) == Counter({row: 1 for row in before if row[0] == 3})
    assert replayed(hourly, from_=("0:0", "1:0")).inserted == len(before)
    assert contents(hourly) == before
    assert sorted(minute for each in stored(hourly) if each.is_persisted for minute in each.minutes) == [10, 15, 20, 30]
    persist(hourly, now=True)
    assert contents(hourly) == before


def test_only_the_partitions_that_are_asked_for_come_back(hourly: Home) -> None:
    before = three_files(hourly)
    delete(hourly, "id >= 4")
    replayed(hourly, H6)
    assert sorted(row[0] for row in before - contents(hourly)) == [6, 8]
    replayed(hourly, H5)
    assert contents(hourly) == before


def test_of_a_partly_persisted_partition_number_and_time_say_what_is_needed(hourly: Home) -> None:
    declare(hourly, persist_rows=2, persist_when_cold=False)
    at(hourly, 10)
    send(hourly, 0, 3, 8)
    hourly.ingest()
    at(hourly, 14)
    send(hourly, 0, 5, 12)
    hourly.ingest()
    at(hourly, 15)
    persist(hourly)
    assert stored(hourly) == [old(3, 5, 8), young(12)]
    before = contents(hourly)
    delete(hourly, "id in (2, 3)")
    report = replayed(hourly)
    assert report.details["sequencers"]["0"]["start"] == 2
    assert sorted(row[0] for row in before - contents(hourly)) == [2], "05:05 is persisted, 05:12 is not"
    replayed(hourly, from_=("0:2",))
    assert contents(hourly) == before


def test_a_lost_file_is_taken_away_if_all_its_rows_come_back(hourly: Home) -> None:
    before = three_files(hourly)
    lost = next(file for file in files_of(hourly) if file.record_count == 3)
    Path(lost.file_path.removeprefix("file://")).unlink()
    report = replay(hourly, H5)
    assert report.error is not None
    assert (report.error.kind, report.exit_code) == ("DamageNotCovered", ExitCode.NOT_POSSIBLE)
    assert "may hold rows that this replay does not bring back" in report.error.message
    with pytest.raises(CorruptState) as caught:
        read_arrow(hourly.shards.open("events"))
    assert "`tidemark buffer replay events`" in caught.value.hint
    assert list(replayed(hourly).details["damaged_files"].values()) == ["is gone"]
    assert contents(hourly) == before


def test_a_lost_persisted_file_comes_back_from_a_number_on(hourly: Home) -> None:
    before = three_files(hourly)
    lost = next(file for file in files_of(hourly) if file.record_count == 4)
    Path(lost.file_path.removeprefix("file://")).unlink()
    report = replay(hourly, from_=("0:0",))
    assert report.error is not None
    assert report.error.kind == "DamageNotCovered"
    replayed(hourly, from_=("0:0", "1:0"))
    assert contents(hourly) == before


def test_a_plan_is_shown_and_nothing_is_changed(hourly: Home) -> None:
    before = three_files(hourly)
    hourly.buffer.logs[0].expire(4)
    upper = hourly.upper("events")
    hourly.switch(Mode.READ_ONLY)
    report = replay(hourly, is_dry=True)
    assert report.error is None
    assert (report.strategy, report.outcome, report.details["lost"]) == ("planned", "unchanged", 1)
    assert report.details["sequencers"] == {
        "0": {"start": 4, "end": 6, "lost": 1},
        "1": {"start": 1, "end": 3, "lost": 0},
    }
    assert report.details["partitions"] == [{"partition": H5, "rows": 2}, {"partition": H6, "rows": 2}]
    assert (contents(hourly), hourly.upper("events")) == (before, upper)
    refused = replay(hourly)
    assert (refused.error and refused.error.kind, refused.exit_code) == ("ReadOnly", ExitCode.FENCED)


def test_lost_entries_are_66_with_their_count_and_skipping_them_is_recorded(hourly: Home) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (4, 5)")
    hourly.buffer.logs[0].expire(5)
    hourly.buffer.logs[1].expire(2)
    report = replay(hourly)
    assert report.error is not None
    assert (report.error.kind, report.exit_code) == ("NoLongerExists", ExitCode.INPUT_MISSING)
    assert "up to 2 entries are lost, and 1 of other sequencers" in report.error.message
    assert "--skip-lost" in report.error.hint
    assert audited(hourly) == []
    skipped = replayed(hourly, skips_lost=True)
    assert (skipped.details["lost"], skipped.inserted) == (3, 2)
    assert sorted(row[0] for row in before - contents(hourly)) == [4, 5], "whose entries are gone"
    assert audited(hourly) == [("operator", {"0": 2, "1": 1})]


def audited(home: Home) -> list[tuple[str, dict[str, int]]]:
    with home.catalog.join() as handle:
        events = handle.transact(lambda transaction: transaction.items(AUDIT_EVENT))
        found = [event for _, event in events if event.operation == "skip-lost"]
    return [(event.who, event.details["lost"]) for event in found]


def test_what_lies_beyond_the_watermark_is_an_error_and_no_hang(hourly: Home) -> None:
    three_files(hourly)
    entries = sorted(path for path in (hourly.buffer_folder / "0").iterdir() if path.is_file())
    for path in entries[-2:]:
        path.unlink()
    report = replay(hourly)
    assert (report.error and report.error.kind, report.exit_code) == ("AfterWatermark", ExitCode.NOT_POSSIBLE)


@pytest.mark.parametrize(
    ("from_", "message"), [(("5:0",), "nothing was ingested from sequencer 5"), (("0:6",), "none from 6 on")]
)
def test_starts_that_are_no_numbers_of_the_collection_are_refused(
    hourly: Home, from_: tuple[str, ...], message: str
) -> None:
    three_files(hourly)
    report = replay(hourly, from_=from_)
    assert report.error is not None
    assert (message in report.error.message, report.exit_code) == (True, ExitCode.USAGE)


@pytest.mark.parametrize("text", ["0", "0:", ":1", "a:1", "0:-1"])
def test_a_start_is_a_number_of_a_sequencer(text: str) -> None:
    with pytest.raises(UsageError, match="is no start"):
        Request.parse([], [text])
    with pytest.raises(UsageError, match="sequencer 0 stands twice"):
        Request.parse([], ["0:1", "0:2"])
    with pytest.raises(UsageError, match="names no partition"):
        Request.parse(["now"], [])


def test_partitions_of_another_unit_are_refused(hourly: Home) -> None:
    report = replay(hourly, "2013-01-03")
    assert (report.error and report.error.message) == "'events' is cut by hour, and '2013-01-03' is no hour"


@pytest.mark.parametrize("late", ["quarantine", "append"])
def test_late_and_bad_rows_stay_where_they_are(hourly: Home, late: str) -> None:
    declare(hourly, late=late)
    at(hourly, 66)
    send(hourly, 0, 10, 66)
    send(hourly, 1, 65)
    hourly.ingest()
    at(hourly, 72)
    hourly.ingest()
    hourly.send(0, b'{"id": 90, "at": "2013-01-03T05:20:00"}\n{"id": 91}\n{"id": 92, "at": "2013-01-03T06:11:00"}')
    hourly.send(0, b"{")
    hourly.ingest()
    before, bad = contents(hourly), hourly.bad()
    assert len(bad) == (3 if late == "quarantine" else 2)
    declare(hourly, late="append")
    delete(hourly, "id = 92")
    report = replayed(hourly)
    assert (contents(hourly), hourly.bad()) == (before, bad)
    assert report.details["quarantined"] == len(bad)


def test_rows_that_were_retried_come_once(ingesting: Home) -> None:
    at(ingesting, 1)
    columns = {"schema": "id bigint, at timestamp", "event_time": "at", "source": {"table": "t"}}
    ingesting.declare_reader(**columns)
    declaration = ingesting.registry.get("events")
    ingesting.send(0, b'{"id": 1, "at": "2013-01-03T05:00:00", "_table": "t"}\n{"id": 2, "at": "2013-01-03T05:00:00"}')
    ingesting.ingest()
    done = retry(ingesting.shards, ingesting.deployment, declaration, clock=ingesting.clock, table="t")
    assert done.inserted == 1
    before = contents(ingesting)
    report = replayed(ingesting)
    assert (report.inserted, report.details["retried_entries"]) == (1, {"0": [0]})
    assert contents(ingesting) == before
    assert ingesting.ids() == [1, 2]


def test_retried_rows_of_numbers_that_are_not_planned_are_not_told(hourly: Home) -> None:
    declare(hourly, late="quarantine")
    at(hourly, 66)
    send(hourly, 0, 10, 66)
    send(hourly, 1, 65)
    hourly.ingest()
    at(hourly, 72)
    hourly.ingest()
    send(hourly, 0, 20)
    hourly.ingest()
    done = retry(hourly.shards, hourly.deployment, hourly.registry.get("events"), clock=hourly.clock)
    assert done.inserted == 1
    persist(hourly, now=True)
    send(hourly, 0, 71)
    hourly.ingest()
    before = contents(hourly)
    report = replayed(hourly)
    assert not {"kept_entries", "kept_rows", "retried_entries"} & report.details.keys()
    report = replayed(hourly, from_=("0:0",))
    assert report.details["retried_entries"] == {"0": [2]}
    assert "kept_entries" not in report.details
    assert contents(hourly) == before


def test_a_replay_that_replaces_no_row_changes_nothing(hourly: Home) -> None:
    three_files(hourly)
    persist(hourly, now=True)
    before, upper = contents(hourly), hourly.upper("events")
    report = replayed(hourly, "2013-01-03T09", from_=("0:0",))
    assert (report.outcome, report.strategy) == ("unchanged", "unchanged")
    assert report.details["sequencers"]["0"]["entries"] == 6
    assert (contents(hourly), hourly.upper("events")) == (before, upper)


@pytest.mark.parametrize("point", [*replaying.FAIL_POINTS, *publisher.FAIL_POINTS])
def test_a_replay_that_dies_leaves_the_contents_as_before_or_as_after(hourly: Home, point: str) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (4, 6, 8)")
    hourly.buffer.logs[1].expire(2)
    damaged = contents(hourly)
    with pytest.raises(Crash), dying_at(point):
        replay(hourly, skips_lost=True)
    assert contents(hourly) in (damaged, before)
    replayed(hourly, skips_lost=True)
    assert contents(hourly) == before
    assert hourly.branches() == set()


def test_of_an_entry_with_bad_rows_that_the_quarantine_lacks_the_rows_stay(hourly: Home) -> None:
    """As if a newer decoder refused what an older one took."""
    hourly.send(0, b'{"id": 90, "at": "2013-01-03T04:20:00"}\n{"id": 91}')
    hourly.send(0, b'{"id": 92, "at": "2013-01-03T04:20:00"}')
    hourly.ingest()
    before = contents(hourly)
    with pytest.warns(UserWarning, match="copy-on-write"):
        hourly.shards.iceberg.load_table(("collections", "events_quarantine")).delete("offset = 0")
    delete(hourly, "id = 92")
    report = replayed(hourly)
    assert (report.details["kept_rows"], report.details["kept_entries"]) == (1, {"0": [0]})
    assert contents(hourly) == before


def in_between(monkeypatch: pytest.MonkeyPatch, step: str, do: Callable[[], object]) -> None:
    """Do something before a step of the next replay, once."""
    real = getattr(replaying, step)

    def first(*arguments: Any) -> Any:
        monkeypatch.undo()
        do()
        return real(*arguments)

    monkeypatch.setattr(replaying, step, first)


@pytest.mark.parametrize("step", ["_replay_once", "_read", "_publish"])
@pytest.mark.parametrize("other", ["replay", "persist", "persist --now", "compaction", "ingest", "delete", "switch"])
def test_what_happens_meanwhile_neither_loses_nor_doubles_rows(
    hourly: Home, monkeypatch: pytest.MonkeyPatch, step: str, other: str
) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (4, 6, 8)")

    def ingest() -> None:
        send(hourly, 0, 40)
        hourly.ingest()

    def switch() -> None:
        hourly.switch(Mode.READ_ONLY)
        hourly.switch(Mode.READ_WRITE)

    at(hourly, 80)
    others = {
        "replay": lambda: replayed(hourly),
        "persist": lambda: persist(hourly),
        "persist --now": lambda: persist(hourly, now=True),
        "compaction": lambda: compact(Writer.join(hourly.shard(), 1), policy=EAGER),
        "ingest": ingest,
        "delete": lambda: delete(hourly, "id = 7"),
        "switch": switch,
    }
    in_between(monkeypatch, step, others[other])
    replayed(hourly)
    after = contents(hourly)
    if other == "ingest":
        assert after - before == Counter({row: 1 for row in after if row[0] == 9})
    assert before - after == Counter()
    persist(hourly, now=True)
    assert contents(hourly) == after
    assert set(after.values()) == {1}


@pytest.mark.parametrize("step", ["_replay_once", "_read", "_publish"])
def test_rows_that_a_flush_brings_meanwhile_stay(hourly: Home, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    send(hourly, 0, 1)
    hourly.ingest()
    send(hourly, 0, 2)
    hourly.switch(Mode.READ_ONLY)
    hourly.ingest()
    hourly.switch(Mode.READ_WRITE)
    send(hourly, 0, 3)
    hourly.ingest()
    assert hourly.ids() == [0, 2]
    in_between(monkeypatch, step, lambda: flush_all(hourly.shards, hourly.deployment, [], clock=hourly.clock))
    replayed(hourly)
    assert hourly.ids() == [0, 1, 2]


def test_rows_whose_entries_vanished_from_the_middle_of_the_log_stay(hourly: Home) -> None:
    before = three_files(hourly)
    delete(hourly, "id = 6")
    entries = sorted(path for path in (hourly.buffer_folder / "0").iterdir() if path.is_file())
    entries[4].unlink()
    assert (replayed(hourly).details["kept_rows"], contents(hourly)) == (1, before)


@pytest.mark.parametrize("step", ["_write", "_finish"])
def test_a_persist_under_way_is_given_up(hourly: Home, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    before = three_files(hourly)
    delete(hourly, "id in (4, 6, 8)")
    real = getattr(persisting, step)

    def replay_first(run: Any) -> None:
        monkeypatch.undo()
        replayed(hourly)
        real(run)

    monkeypatch.setattr(persisting, step, replay_first)
    at(hourly, 120)
    assert persist(hourly).strategy == "discarded"
    assert contents(hourly) == before
    assert persist(hourly).strategy == "persisted"
    assert contents(hourly) == before
    assert all(each.is_persisted for each in stored(hourly))


@pytest.mark.parametrize("dies", [False, True])
def test_a_write_between_the_steps_of_a_persist_is_replayed(hourly: Home, *, dies: bool) -> None:
    """Hazard 1 of the reference, §8: P takes a row, and then Q one, while a persist of P is under way."""
    send(hourly, 0, 10)
    hourly.ingest()
    at(hourly, 6)

    def write() -> None:
        send(hourly, 0, 11, 61)
        hourly.ingest()
        if dies:
            raise Crash

    with interrupted_at("persist.after-begin", write) as failures:
        if dies:
            with pytest.raises(Crash):
                persist(hourly)
        else:
            assert persist(hourly).strategy == "persisted"
    assert not failures
    before = contents(hourly)
    assert {row[0] for row in before} == {0, 1, 2}
    delete(hourly, "id >= 0" if dies else "id >= 1")
    assert replayed(hourly).details["sequencers"]["0"]["start"] == (0 if dies else 1)
    assert contents(hourly) == before
    at(hourly, 120)
    persist(hourly)
    assert contents(hourly) == before
    assert all(each.is_persisted for each in stored(hourly))


def without_an_hour(home: Home) -> Counter[tuple[Any, ...]]:
    """Two open hours in a file each, and the first of them deleted: a replay and a persist touch no file in common."""
    send(home, 0, 10, 20)
    home.ingest()
    at(home, 66)
    send(home, 1, 61, 62)
    home.ingest()
    before = contents(home)
    delete(home, "id <= 1")
    at(home, 120)
    return before


@pytest.mark.parametrize("step", ["_write", "_finish"])
def test_what_comes_back_while_other_files_are_persisted_is_persisted_by_the_next_pass(
    hourly: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = without_an_hour(hourly)
    real = getattr(persisting, step)

    def replay_first(run: Any) -> None:
        monkeypatch.undo()
        replayed(hourly, H5)
        real(run)

    monkeypatch.setattr(persisting, step, replay_first)
    assert persist(hourly).strategy == "discarded"
    assert persist(hourly).strategy == "persisted"
    assert (stored(hourly), contents(hourly)) == ([old(10, 20, 61, 62)], before)


@pytest.mark.parametrize("step", ["_read", "_publish"])
def test_what_was_persisted_without_the_rows_gets_them_as_persisted_ones(
    hourly: Home, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = without_an_hour(hourly)
    in_between(monkeypatch, step, lambda: persist(hourly))
    replayed(hourly, H5)
    assert (stored(hourly), contents(hourly)) == ([old(10, 20), old(61, 62)], before)


def test_a_replay_leaves_no_file_behind(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    three_files(hourly)
    before = leftovers(hourly.settings, hourly.shard())
    in_between(monkeypatch, "_publish", lambda: compact(Writer.join(hourly.shard(), 1), policy=EAGER))
    replayed(hourly)
    assert leftovers(hourly.settings, hourly.shard()) == before


def test_a_state_that_was_lost_means_that_nothing_is_persisted(hourly: Home) -> None:
    before = three_files(hourly)
    lose_state(hourly)
    delete(hourly, "id in (1, 4)")
    assert replayed(hourly).inserted == len(before)
    assert contents(hourly) == before
    hourly.ingest()
    assert {name: each.rows for name, each in partitions_by(hourly).state.partitions.items()} == {H5: 6, H6: 3}


def test_a_lost_file_comes_back_also_if_the_state_was_lost(hourly: Home) -> None:
    before = three_files(hourly)
    lose_state(hourly)
    Path(files_of(hourly)[0].file_path.removeprefix("file://")).unlink()
    assert replayed(hourly).inserted == len(before)
    assert contents(hourly) == before


def test_staged_numbers_do_not_come_before_their_flush(hourly: Home) -> None:
    send(hourly, 0, 1, 2)
    hourly.switch(Mode.READ_ONLY)
    hourly.ingest()
    hourly.switch(Mode.READ_WRITE)
    send(hourly, 0, 3)
    hourly.ingest()
    assert hourly.ids() == [2]
    replayed(hourly)
    assert hourly.ids() == [2]
    flush_all(hourly.shards, hourly.deployment, [], clock=hourly.clock)
    assert hourly.ids() == [0, 1, 2]
    replayed(hourly, from_=("0:0",))
    assert hourly.ids() == [0, 1, 2]


def test_rows_of_others_stay_as_they_are(hourly: Home) -> None:
    before = three_files(hourly)
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    schema = arrow_schema(table)
    own = next(row["_producer"] for row in hourly.rows() if row["_producer"].endswith(".0"))
    time = instant(FIVE + 5 * MINUTE_MS).replace(tzinfo=None)
    foreign = [
        {"id": 70, "at": time, "_producer": "weather", "_batch": 4},
        {"id": 71, "at": time, "_producer": own[:-10] + "00000000.0", "_batch": 4, "_entry": 4},
        {"id": 72, "at": time, "_producer": own + ".retried", "_batch": 4, "_entry": 4},
        {"id": 73, "at": None, "_producer": own, "_batch": 4, "_entry": 4},
    ]
    table.append(pa.Table.from_pylist(foreign, schema=schema))
    with_foreign = contents(hourly)
    replayed(hourly, from_=("0:0", "1:0"))
    assert contents(hourly) == with_foreign
    assert sum(with_foreign.values()) == sum(before.values()) + 4


def test_rows_without_numbers_are_refused_where_they_may_be_meant(hourly: Home) -> None:
    three_files(hourly)
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    schema = arrow_schema(table)
    own = next(row["_producer"] for row in hourly.rows() if row["_producer"].endswith(".0"))
    time = instant(FIVE + 5 * MINUTE_MS).replace(tzinfo=None)
    table.append(pa.Table.from_pylist([{"id": 70, "at": time, "_producer": own, "_batch": 4}], schema=schema))
    before = contents(hourly)
    report = replay(hourly)
    assert report.error is not None
    assert (report.error.kind, report.exit_code) == ("EntriesUnknown", ExitCode.NOT_POSSIBLE)
    assert "1 of 2013-01-03T05" in report.error.message
    assert "`tidemark buffer persist events --now`" in report.error.hint
    replayed(hourly, H6)
    assert contents(hourly) == before
    persist(hourly, now=True)
    replayed(hourly)
    assert contents(hourly) == before


def all_contents(home: Home) -> Counter[tuple[Any, ...]]:
    """All accepted rows, also those that wait until they are persisted."""
    rows = read_arrow(home.shard(), with_time=True, with_open=True).to_pylist()
    return Counter((row["id"], row["at"], row["_producer"], row["_entry"]) for row in rows)


@pytest.mark.parametrize("now", ["when-persisted", "at-once"])
def test_rows_that_wait_until_they_are_persisted_come_once(hourly: Home, now: str) -> None:
    declare(hourly, visible="when-persisted")
    before = three_files(hourly)
    assert sum(before.values()) == 4
    waiting = all_contents(hourly)
    assert sum(waiting.values()) == 9
    declare(hourly, visible=now)
    assert replayed(hourly).inserted == 5
    assert (all_contents(hourly), contents(hourly)) == (waiting, before if now == "when-persisted" else waiting)
    delete(hourly, "id in (1, 4)")
    assert replayed(hourly, from_=("0:0", "1:0")).inserted == 9
    assert (all_contents(hourly), contents(hourly)) == (waiting, before if now == "when-persisted" else waiting)
    persist(hourly, now=True)
    assert (contents(hourly), all(each.is_persisted for each in stored(hourly))) == (waiting, True)


def test_what_is_persisted_while_waiting_rows_are_replayed_comes_once(
    hourly: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(hourly, visible="when-persisted")
    three_files(hourly)
    waiting = all_contents(hourly)
    for step in ("_replay_once", "_read", "_publish"):
        send(hourly, 0, 70)
        hourly.ingest()
        waiting = all_contents(hourly)
        in_between(monkeypatch, step, lambda: persist(hourly, now=True))
        replayed(hourly)
        assert all_contents(hourly) == waiting
    persist(hourly, now=True)
    assert contents(hourly) == waiting


@pytest.mark.parametrize("merge", ["rows", "fields"])
def test_duplicates_that_come_back_are_merged_by_the_next_pass(ingesting: Home, merge: str) -> None:
    at(ingesting, 10)
    ingesting.declare_reader(
        schema="id bigint, at timestamp, name string, v double",
        event_time="at",
        partition="hour",
        key=["id"],
        lifecycle={**RULES, "merge": merge},
    )
    for row in ({"id": 1, "name": "old"}, {"id": 2, "name": "x"}, {"id": 1, "v": 1}, {"id": 2, "name": "y"}):
        ingesting.send(0, json.dumps({"at": time_text(FIVE + MINUTE_MS), **row}).encode())
        ingesting.ingest()
    at(ingesting, 70)
    ingesting.ingest()
    persist(ingesting)
    before = Counter((row["id"], row["name"], row["v"], row["_entry"]) for row in ingesting.rows())
    assert before == Counter([(1, "old" if merge == "fields" else None, 1.0, 2), (2, "y", None, 3)])
    counted = partitions_by(ingesting).state.partitions[H5]
    if merge == "fields":
        report = replay(ingesting, from_=("0:1",))
        assert report.error is not None
        assert (report.exit_code, report.error.hint) == (
            ExitCode.USAGE,
            "begin with the first numbers of all sequencers: --from 0:0",
        )
    delete(ingesting, "id = 1")
    replayed(ingesting, from_=("0:0",))
    assert len(ingesting.rows()) == 4, "open again, duplicates included"
    found = partitions_by(ingesting).state.partitions[H5]
    assert (found.rows, found.late_rows, found.is_closed) == (counted.rows, counted.late_rows, counted.is_closed)
    at(ingesting, 140)
    assert "closed" not in ingesting.ingest().details
    assert persist(ingesting).details["duplicates"] == 2
    assert Counter((row["id"], row["name"], row["v"], row["_entry"]) for row in ingesting.rows()) == before
    assert all(each.is_persisted for each in stored(ingesting))
    delete(ingesting, "id = 2")
    replayed(ingesting)
    assert len(ingesting.rows()) == 1, "persisted, all of it"


def test_values_under_former_names_of_columns_come_back(ingesting: Home) -> None:
    at(ingesting, 1)
    ingesting.declare_reader(schema="id bigint, at timestamp, a string", event_time="at", partition="hour")
    ingesting.send(0, json.dumps({"id": 1, "at": time_text(FIVE), "a": "kept"}).encode())
    ingesting.ingest()
    with ingesting.shards.iceberg.load_table(("collections", "events")).update_schema() as schema:
        schema.rename_column("a", "c")
    before = ingesting.rows()
    assert before[0]["c"] == "kept"
    assert replayed(ingesting).inserted == 1
    assert ingesting.rows() == before


def test_rows_of_a_table_that_was_declared_before_stay(ingesting: Home) -> None:
    at(ingesting, 1)
    for number, table in enumerate(("one", "other")):
        ingesting.declare_reader(
            schema="id bigint, at timestamp", event_time="at", partition="hour", source={"table": table}
        )
        ingesting.send(0, json.dumps({"_table": table, "id": number, "at": time_text(FIVE)}).encode())
        ingesting.ingest()
    assert replayed(ingesting).details["kept_rows"] == 1
    assert ingesting.ids() == [0, 1]


def test_rows_that_were_retried_come_once_also_without_the_quarantine(ingesting: Home) -> None:
    at(ingesting, 1)
    ingesting.declare_reader(schema="id bigint, at timestamp, a int", event_time="at", partition="hour")
    rows = ({"id": 1, "at": time_text(FIVE), "a": 3_000_000_000}, {"id": 2, "at": time_text(FIVE), "a": 1})
    ingesting.send(0, *(json.dumps(row).encode() for row in rows))
    ingesting.ingest()
    with ingesting.shards.iceberg.load_table(("collections", "events")).update_schema() as schema:
        schema.update_column("a", LongType())
    retry(ingesting.shards, ingesting.deployment, ingesting.registry.get("events"), clock=ingesting.clock)
    assert ingesting.ids() == [1, 2]
    with pytest.warns(UserWarning, match="copy-on-write"):
        ingesting.shards.iceberg.load_table(("collections", "events_quarantine")).delete("offset >= 0")
    for from_, kept in (((), None), (("0:0",), {"0": [0]})):
        assert replayed(ingesting, from_=from_).details.get("kept_entries") == kept
        assert ingesting.ids() == [1, 2]
