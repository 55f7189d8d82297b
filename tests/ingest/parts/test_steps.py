"""Several processes share an ingest: what they leave is what one leaves, whichever parts are lost, late or doubled."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, RULES, at, send
from tests.ingest.parts.rounds import minted_by, take_round, travel, workers, write, write_all
from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Add
from tidemark.collections.deployment import Mode
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import InputsGone, RangeOverlap
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.ingest.parts import Part, Share, append, mint, share_out, write_part
from tidemark.ingest.publish import PENDING, name_attempt
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, Outcome
from tidemark.write_buffer.file.log import FileLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.collections.declarations.collection import Declaration
    from tidemark.ingest.parts import Ingesting
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

BAD_LINE = b'{"id":"x"}'
EVENTS: dict[str, Any] = {
    "schema": "id bigint, at timestamp", "event_time": "at", "partition": "hour", "lifecycle": RULES,
}  # fmt: skip


@pytest.fixture
def wide(home: Settings, tmp_path: Path) -> Home:
    """Five sequencers, at 05:00."""
    opened = Home(home, tmp_path, sequencers=5, now_ms=FIVE)
    assert opened.buffer.logs
    return opened


@contextmanager
def sharing(home: Home, count: int = 2, **declared: Any) -> Iterator[list[Ingesting]]:
    with workers(home, home.declare_reader(**declared), count) as runs:
        yield runs


def pending_lines(home: Home) -> list[str]:
    return home.shard().load().table.properties.get(PENDING, "").splitlines()


def fill(home: Home, *, minute: int = 1) -> None:
    """Write rows of different counts, and a bad one, into each sequencer."""
    for sequencer_id in home.buffer.logs:
        send(home, sequencer_id, *range(minute, minute + 1 + sequencer_id))
        home.send(sequencer_id, BAD_LINE)


def state_of(home: Home, name: str) -> Any:
    """Return all that an ingest leaves."""
    found = home.shard(name).load()
    rows = sorted(
        (row["id"], str(row["at"]), row["_producer"], row["_batch"], row["_entry"]) for row in home.rows(name)
    )
    lifecycle = json.loads(found.table.properties["tidemark.lifecycle"])
    ledgers = {producer: str(ledger) for producer, ledger in sorted(found.state.ledgers.items())}
    return rows, ledgers, home.bad(name), lifecycle


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_several_leave_is_what_one_leaves(wide: Home, count: int) -> None:
    wide.declare_writer("gate", schema="id bigint, at timestamp")
    wide.declare_reader("one", **EVENTS)
    with sharing(wide, count, **EVENTS) as runs:
        for minute in (1, 40, 70):
            at(wide, minute)
            fill(wide, minute=minute)
            append_some(wide, minute)
            told, one = take_round(runs), wide.ingest("one")
            assert told.details.keys() == one.details.keys()
            assert {**told.details, "quarantine": None} == {**one.details, "quarantine": None}
            assert (told.inserted, told.batches, told.rows_source) == (one.inserted, one.batches, one.rows_source)
            assert state_of(wide, "events") == state_of(wide, "one")
        at(wide, 140)
        assert take_round(runs).details["closed"] == wide.ingest("one").details["closed"]
        assert state_of(wide, "events") == state_of(wide, "one")
        assert take_round(runs).outcome is Outcome.UNCHANGED
    assert wide.branches() == set()


def append_some(home: Home, minute: int) -> None:
    times = pa.array([(FIVE + minute * 60_000) * 1000], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": pa.array([1000 + minute], pa.int64()), "at": times})
    name = BatchName("p", Range(minute, minute + 1))
    append_rows(home.shard("gate"), name, rows, deployment=home.deployment, clock=home.clock)


def test_what_a_lost_worker_had_comes_in_the_next_round_and_nothing_closes_before(hourly: Home) -> None:
    at(hourly, 66)
    with workers(hourly, hourly.registry.get("events"), 2) as runs:
        send(hourly, 0, 1, 59, 66)
        send(hourly, 1, 2, 66)
        told = take_round(runs, but={1})
        assert (told.inserted, told.details["left_out"], told.error) == (3, [1], None)
        assert "closed" not in told.details
        at(hourly, 100)
        send(hourly, 0, 99)
        told = take_round(runs, but={0})
        assert (told.inserted, told.details["left_out"], "closed" in told.details) == (1, [1], False)
        told = take_round(runs)
        assert told.inserted == 2
        assert [each["partition"] for each in told.details["closed"]] == ["2013-01-03T05"]
        assert "late_rows" not in told.details
    assert (hourly.ids(), hourly.ledgers()) == (list(range(6)), {"0": "0:4", "1": "0:2"})


def test_nothing_closes_while_the_batches_of_a_lost_holder_wait(wide: Home) -> None:
    wide.declare_writer("gate", schema="id bigint, at timestamp")
    with sharing(wide, **EVENTS) as runs:
        at(wide, 2)
        append_some(wide, 1)
        at(wide, 70)
        for sequencer_id in wide.buffer.logs:
            send(wide, sequencer_id, 70)
        told = take_round(runs, but={0})
        assert told.inserted == len(told.details["ranges"]) > 0
        assert "closed" not in told.details
        at(wide, 140)
        assert "closed" not in take_round(runs, but={0}).details
        told = take_round(runs)
        assert 1001 in wide.ids()
        assert [each["partition"] for each in told.details["closed"]] == ["2013-01-03T05"]
    assert wide.ids() == [*range(5), 1001]


def test_a_part_that_comes_too_late_is_dropped_and_its_rows_come_once(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 2)
        minted = minted_by(runs[0])
        shares = share_out(minted, [0, 1], 0)
        assert append(runs[0], minted, [write(runs[0], minted, shares[0])]).inserted == 3
        late = write(runs[1], minted, shares[1])
        assert ingesting.branches() == {late.branch}
        assert take_round(runs).inserted == 2
        assert ingesting.branches() == set()
        with pytest.raises(InputsGone, match="no part of what was planned"):
            append(runs[0], minted, [late])
    assert (ingesting.ids(), ingesting.ledgers()) == (list(range(5)), {"0": "0:3", "1": "0:2"})


def test_a_part_that_is_gone_damaged_doubled_or_of_another_mint_is_not_delivered(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 2)
        ingesting.send(1, BAD_LINE)
        minted = minted_by(runs[0])
        first, second = write_all(runs, minted)
        again = write(runs[0], minted, second.share)
        told = append(runs[0], minted, [first, second, again])
        assert (told.inserted, told.details["quarantined"]) == (5, 1)
        assert ingesting.branches() == set()
        ingesting.send_rows(0, 1)
        ingesting.send(1, BAD_LINE)
        minted = minted_by(runs[0])
        with pytest.raises(InputsGone):
            append(runs[0], minted, [first, second])
        parts = write_all(runs, minted)
        (bad,) = [part for part in parts if part.has_bad]
        drop_staged(ingesting.shard("events_quarantine"), [bad.branch])
        assert append(runs[0], minted, parts).details["left_out"] == [1]
        assert take_round(runs).details["quarantined"] == 1
        assert ingesting.branches() == set()
    assert (ingesting.ids(), len(ingesting.bad())) == (list(range(6)), 2)


def test_a_part_of_another_mint_is_not_taken_for_one_of_this(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 2)
        before = minted_by(runs[0])
        stale = write(runs[1], before, share_out(before, [0, 1], 0)[1])
        ingesting.send_rows(1, 4)
        minted = minted_by(runs[0])
        own = write(runs[0], minted, Share(sequencers=(0,)))
        assert append(runs[0], minted, [own, stale]).details["left_out"] == [1]
        assert ingesting.branches() == set()
        assert take_round(runs).inserted == 6
    assert (ingesting.ids(), ingesting.ledgers()) == (list(range(9)), {"0": "0:3", "1": "0:6"})


def test_columns_that_change_after_the_mint_have_it_minted_again(ingesting: Home) -> None:
    (column,) = parse_columns("more string")
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 2)
        minted = minted_by(runs[0])
        shares = share_out(minted, [0, 1], 0)
        part = write(runs[0], minted, shares[0])
        alter_columns(ingesting.shard(), [Add("events", column)])
        failed = write(runs[1], minted, shares[1])
        assert failed.error is not None
        assert (failed.error.kind, failed.error.exit_code) == ("InputsGone", ExitCode.TRANSIENT)
        with pytest.raises(InputsGone, match="columns"):
            append(runs[0], minted, [part, failed])
        assert ingesting.branches() == set()
        assert take_round(runs).inserted == 5
    assert ingesting.ids() == list(range(5))


def test_a_switch_to_read_only_lets_nothing_through(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        minted = minted_by(runs[0])
        parts = write_all(runs, minted)
        ingesting.switch(Mode.READ_ONLY)
        with pytest.raises(InputsGone, match="read-only"):
            append(runs[0], minted, parts)
        report = mint(runs[0])
        assert isinstance(report, CollectionReport)
        assert report.outcome is Outcome.SKIPPED
        assert "read-only" in report.details[SKIPPED_BECAUSE]
        assert (ingesting.ids(), ingesting.branches()) == ([], set()), "nothing is staged here"
        ingesting.send_rows(1, 1)
        assert ingesting.ingest().outcome is Outcome.STAGED
        ingesting.switch(Mode.READ_WRITE)
        ingesting.send_rows(0, 1)
        assert take_round(runs).inserted == 1
    assert ingesting.ledgers() == {"0": "3:4"}, "what is staged waits for a flush"


def test_of_two_who_append_one_wins(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send(1, BAD_LINE)
        minted = minted_by(runs[0])
        parts = write_all(runs, minted)
        append(runs[0], minted, parts)
        with pytest.raises(InputsGone):
            append(runs[1], minted, parts)
        ingesting.send_rows(0, 2)
        ingesting.send(1, BAD_LINE)
        first, second = minted_by(runs[0]), minted_by(runs[1])
        by_second = write_all(runs, second)
        append(runs[0], first, write_all(runs, first))
        with pytest.raises(RangeOverlap):
            append(runs[1], second, by_second)
        assert ingesting.branches() == set()
        assert take_round(runs).outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), len(ingesting.bad())) == (list(range(5)), 2)


@pytest.mark.parametrize("finisher", ["round", "ingest"])
@pytest.mark.parametrize("point", ["ingest.after-publish", "publish.before-commit:2", "publish.after-commit:2"])
def test_the_bad_rows_of_all_parts_follow_their_rows(ingesting: Home, point: str, finisher: str) -> None:
    with sharing(ingesting) as runs:
        ingesting.send(0, BAD_LINE)
        take_round(runs)
        ingesting.send_rows(0, 2)
        for sequencer_id in (0, 1):
            ingesting.send(sequencer_id, BAD_LINE)
        minted = minted_by(runs[0])
        parts = write_all(runs, minted)
        with dying_at(point), pytest.raises(Crash):
            append(runs[0], minted, parts)
        assert sorted(line.split(" ")[0] for line in pending_lines(ingesting)) == sorted(p.branch for p in parts)
        assert ingesting.ids() == [0, 1]
        with pytest.raises(InputsGone):  # another holder gives up, and drops what it knows
            append(runs[1], minted, parts)
        if finisher == "round":
            assert take_round(runs[1:]).outcome is Outcome.UNCHANGED
        else:
            assert ingesting.ingest().outcome is Outcome.UNCHANGED
        assert len(ingesting.bad()) == 3
        assert ingesting.branches() == set()
        ledgers = {key: value for key, value in ingesting.ledgers("events_quarantine").items() if key in {"0", "1"}}
        assert ledgers == {"0": "0:4", "1": "0:1"}


def test_an_error_of_one_part_is_told_and_the_others_come(hourly: Home) -> None:
    declaration = hourly.declare_reader(**{**EVENTS, "lifecycle": {**RULES, "late": "refuse"}})
    with workers(hourly, declaration, 2) as runs:
        at(hourly, 70)
        for sequencer_id in (0, 1):
            send(hourly, sequencer_id, 1, 70)
        assert [each["partition"] for each in take_round(runs).details["closed"]] == ["2013-01-03T05"]
        send(hourly, 0, 2)
        send(hourly, 1, 71)
        told = take_round(runs)
        assert told.error is not None
        assert (told.outcome, told.inserted, told.error.kind) == (Outcome.APPENDED, 1, "LateRows")
        assert (told.details["left_out"], told.exit_code) == ([0], ExitCode.REFUSED)
        alone = take_round(runs)
        assert alone.error is not None
        assert (alone.outcome, alone.inserted, alone.error.kind) == (Outcome.FAILED, 0, "LateRows")
    assert (hourly.ledgers(), hourly.branches()) == ({"0": "0:2", "1": "0:3"}, set())


def test_a_log_that_is_made_anew_is_seen_by_who_mints_and_who_writes(ingesting: Home) -> None:
    with sharing(ingesting, source={"on_recreated": "earliest"}) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 3)
        assert take_round(runs).inserted == 6
        ingesting.send_rows(0, 1)
        ingesting.send_rows(1, 1)
        old = minted_by(runs[0])
        shares = share_out(old, [0, 1], 0)
        part = write(runs[0], old, shares[0])
        ingesting.make_buffer_anew()
        ingesting.send_rows(0, 4)
        ingesting.send_rows(1, 4)
        failed = write(runs[1], old, shares[1])
        assert failed.error is not None
        assert failed.error.kind == "InputsGone"
        assert append(runs[0], old, [part, failed]).inserted == 1, "of the log as it was"
        assert take_round(runs).inserted == 8
    assert ingesting.ids() == [*range(7), *range(8, 16)]


def test_a_sequencer_that_is_added_is_seen_by_readers_that_are_open(hourly: Home) -> None:
    """A partition must not close before its rows have come: it would call them late."""
    at(hourly, 66)
    with workers(hourly, hourly.registry.get("events"), 2) as runs:
        for sequencer_id in (0, 1):
            send(hourly, sequencer_id, 1)
        assert take_round(runs).inserted == 2
        add_sequencer(hourly)
        for sequencer_id in (0, 1, 2):
            send(hourly, sequencer_id, 2, 66)
        told = take_round(runs)
        assert (told.inserted, "late_rows" in told.details) == (6, False)
        assert hourly.ledgers().keys() == {"0", "1", "2"}


def add_sequencer(home: Home) -> None:
    about = home.buffer_folder / "buffer.json"
    fields = json.loads(about.read_text())
    number = fields["sequencers"]
    fields["sequencers"] = number + 1
    FileLog(home.buffer_folder / str(number)).create()
    about.write_text(json.dumps(fields))
    del home.buffer


def test_a_round_is_cheap_when_nobody_asks_for_measures(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        told = take_round(runs, measures=False)
        assert (told.inserted, "sequencers" in told.details) == (3, False)
        ingesting.send_rows(0, 1)
        assert "sequencers" in take_round(runs).details


def test_the_hard_limit_pauses_a_mint(hourly: Home) -> None:
    rules = {**RULES, "hard_limit": 2, "soft_limit": 1}
    with workers(hourly, hourly.declare_reader(**{**EVENTS, "lifecycle": rules}), 1) as runs:
        send(hourly, 0, 1, 2, 3)
        take_round(runs)
        send(hourly, 0, 4)
        for measures in (True, False):
            report = mint(runs[0], measures=measures)
            assert isinstance(report, CollectionReport)
            assert report.error is not None
            assert (report.error.kind, "sequencers" in report.details) == ("HardLimit", measures)


def test_a_limit_is_that_of_a_mint(ingesting: Home) -> None:
    declaration = ingesting.declare_reader()
    ingesting.send_rows(0, 9)
    ingesting.send_rows(1, 3)
    with workers(ingesting, declaration, 2, max_entries=4) as runs:
        told = take_round(runs)
        assert (told.inserted, ingesting.ledgers()) == (4, {"0": "0:3", "1": "0:1"})
        while take_round(runs).outcome is Outcome.APPENDED:
            pass
    assert ingesting.ids() == list(range(12))


def test_a_branch_of_another_attempt_is_written_anew(ingesting: Home) -> None:
    with sharing(ingesting) as runs:
        ingesting.send_rows(0, 3)
        ingesting.send_rows(1, 2)
        minted = minted_by(runs[0])
        branch = name_attempt(runs[0].target)
        write_part(runs[0], minted, Share(sequencers=(0,)), branch=branch)
        part: Part = travel(write_part(runs[1], minted, Share(sequencers=(1,)), branch=branch))
        assert append(runs[0], minted, [part]).inserted == 2
    assert ingesting.ledgers() == {"1": "0:2"}


def declared_merging(home: Home) -> Declaration:
    rules = {**RULES, "merge": "fields"}
    return home.declare_reader(**{**EVENTS, "lifecycle": rules, "key": ["id"]})


def test_batches_among_rows_that_merge_come_whole(wide: Home) -> None:
    wide.declare_writer("gate", schema="id bigint, at timestamp")
    with workers(wide, declared_merging(wide), 2, max_entries=1) as runs:
        append_some(wide, 1)
        fill(wide)
        minted = minted_by(runs[0])
        assert minted.is_whole
        assert share_out(minted, [0, 1], 1) == {1: Share(sequencers=(0, 1, 2, 3, 4), has_batches=True)}
        assert take_round(runs).batches == 6
        fill(wide)
        assert not minted_by(runs[0]).is_whole
