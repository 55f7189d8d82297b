"""`chunks: memory`: processes hold what they read until a persist is due; whatever is lost with one is read again."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.ingest.event_rows import FIVE, RULES, at, send
from tests.ingest.parts.rounds import minted_by, travel, workers
from tests.ingest.persist.test_persist import persist
from tests.support.homes import Home
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Add
from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import InputsGone, LateRows, RangeOverlap
from tidemark.ingest.parts import (
    Held,
    Minted,
    RowMemory,
    Share,
    append,
    cut_to_held,
    find_due,
    mint,
    share_in_turn,
    write_part,
)
from tidemark.ingest.publish import name_attempt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.ingest.parts import Ingesting
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

BAD_LINE = b'{"id":"x"}'
MEMORY: dict[str, Any] = {
    **RULES, "visible": "when-persisted", "chunks": "memory", "persist_age": "20m", "persist_when_cold": False,
}  # fmt: skip


@pytest.fixture
def wide(home: Settings, tmp_path: Path) -> Home:
    """Three sequencers, at 05:00."""
    opened = Home(home, tmp_path, sequencers=3, now_ms=FIVE)
    assert opened.buffer.logs
    return opened


@dataclass
class Holding:
    """Processes that hold the rows of one collection."""

    home: Home
    runs: list[Ingesting]
    memories: list[RowMemory]
    most_entries: int = 1_000

    def lose(self, worker: int) -> None:
        self.memories[worker] = RowMemory("events")

    def hold(self, *, but: int = -1) -> tuple[Minted, dict[int, Held]]:
        """Let all of them read on, but one that is lost."""
        minted = minted_by(self.runs[0])
        shares = share_in_turn(minted, range(len(self.runs)))
        return minted, {worker: self._hold(worker, minted, share) for worker, share in shares.items() if worker != but}

    def _hold(self, worker: int, minted: Minted, share: Share) -> Held:
        held = self.memories[worker].hold(self.runs[worker], minted, share, most_entries=self.most_entries)
        return Held.from_json(json.loads(json.dumps(held.to_json())))

    def take_round(self, *, but: int = -1) -> str:
        """Take a round as the worker that leads it, and persist if it is due; return why."""
        if not isinstance(mint(self.runs[0]), Minted):
            return ""
        minted, held = self.hold(but=but)
        cut = travel(cut_to_held(minted, held.values()))
        if reason := find_due(self.runs[0], cut, [*held.values()]):
            ids = {each.sequencer_id for each in cut.planned}
            shares = {worker: Share(sequencers=tuple(sorted(ids & each.ends.keys()))) for worker, each in held.items()}
            parts = [self.write(worker, cut, share) for worker, share in shares.items() if share.sequencers]
            append(self.runs[0], cut, parts)
            persist(self.home)
        return reason

    def write(self, worker: int, minted: Minted, share: Share) -> Any:
        run, rows = self.runs[worker], self.memories[worker].take(minted, share)
        assert rows is not None, "the rows are not read again"
        return travel(write_part(run, minted, share, branch=name_attempt(run.target), held=rows))


@contextmanager
def holding(home: Home, count: int = 2, **lifecycle: Any) -> Iterator[Holding]:
    declaration = home.declare_reader(
        schema="id bigint, at timestamp", event_time="at", partition="hour", lifecycle={**MEMORY, **lifecycle},
        source={"every": "5s"},
    )  # fmt: skip
    with workers(home, declaration, count) as runs:
        yield Holding(home, runs, [RowMemory("events") for _ in runs])


def commits(home: Home) -> int:
    return len(home.shard().load().table.snapshots())


def test_nothing_is_written_before_a_persist_is_due_and_then_all_is_visible(wide: Home) -> None:
    with holding(wide) as held:
        assert held.take_round() == "", "the first round joins the collection"
        before = commits(wide)
        for minute in range(19):
            at(wide, minute)
            send(wide, minute % 3, minute)
            assert held.take_round() == ""
        assert commits(wide) == before
        assert (wide.ids(), wide.ledgers()) == ([], {})
        at(wide, 20)
        assert "20m" in held.take_round()
        assert wide.ids() == [*range(wide.sent)][: len(wide.ids())]
        assert len(wide.ids()) >= 14, "all that arrived five minutes ago, or before"
        assert held.take_round() == ""
        at(wide, 45)
        persist(wide)
    assert wide.ids() == list(range(wide.sent))
    assert wide.branches() == set()


def test_whoever_reads_again_persists_at_the_same_time(wide: Home) -> None:
    with holding(wide) as held:
        send(wide, 0, 0)
        send(wide, 1, 0)
        for minute in range(1, 20):
            at(wide, minute)
            held.lose(minute % 2)
            assert held.take_round() == ""
        held.lose(0)
        at(wide, 20)
        assert held.take_round()
    assert wide.ids() == [0, 1]


def test_a_backlog_is_as_old_as_its_entries(wide: Home) -> None:
    for minute in range(40):
        at(wide, minute)
        send(wide, 0, minute)
    with holding(wide) as held:
        assert held.take_round()
    assert len(wide.ids()) >= 30, "what is younger than late rows may be waits for them"
    assert len(wide.ids()) < 40


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"persist_rows": 4}, "4 persistable rows"),
        ({"persist_when_cold": True}, "cold"),
        ({"soft_limit": 6}, "`soft_limit` 6"),
    ],
)
def test_the_rules_of_the_lifecycle_decide(wide: Home, rules: dict[str, Any], reason: str) -> None:
    with holding(wide, **rules) as held:
        send(wide, 0, 1, 2)
        send(wide, 1, 1, 2)
        assert held.take_round() == ""
        if "soft_limit" in rules:
            send(wide, 2, 1, 2)
        else:
            at(wide, 6)
        assert reason in held.take_round()
    assert wide.ids() == list(range(wide.sent))


def test_a_full_memory_is_written(wide: Home) -> None:
    with holding(wide) as held:
        held.memories[1].limit.of_one = 40
        send(wide, 0, *range(3))
        assert held.take_round() == ""
        send(wide, 1, *range(5))
        assert "as much as it may" in held.take_round()
        assert [str(ledger) for ledger in wide.ledgers().values()] != []
    wide.ingest()
    persist(wide, now=True)
    assert wide.ids() == list(range(8))


def test_large_entries_are_read_few_at_once(wide: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.ingest.parts.memory._PORTION_BYTES", 200)
    with holding(wide, count=1) as held:
        held.memories[0].limit.of_one = 500
        send(wide, 0, *[0] * 100)
        (told,) = held.hold()[1].values()
        assert told.is_full
        assert 500 <= told.size_bytes <= 700, "one portion more at most"
        held.take_round()
        assert {*wide.ledgers().values()} == {f"0:{told.rows}"}
    wide.ingest()
    persist(wide, now=True)
    assert wide.ids() == list(range(100))


def test_all_collections_of_a_process_share_its_memory(wide: Home) -> None:
    with holding(wide, count=1) as held:
        limit = held.memories[0].limit
        limit.in_all, limit.held[0] = 500, 600
        send(wide, 0, *range(3))
        (told,) = held.hold()[1].values()
        assert (told.is_full, told.rows) == (True, 3)
        assert "as much as it may" in held.take_round()
        assert limit.held == {0: 600}, "what is written is let go"


def test_whoever_reads_what_was_held_leaves_the_rows_as_old_as_they_are(wide: Home) -> None:
    for minute in range(19):
        at(wide, minute)
        send(wide, minute % 3, minute)
    with holding(wide) as held:
        assert held.take_round() == ""
        wide.ingest()  # as a round does to which an appended batch came
    at(wide, 20)
    persist(wide)
    assert len(wide.ids()) >= 14


def test_the_clocks_of_producers_may_go_back_and_forth(wide: Home) -> None:
    with holding(wide, count=1) as held:
        for minute in range(16):
            at(wide, minute if minute % 2 else -30 + minute)
            send(wide, 0, minute)
            at(wide, minute)
            (told,) = held.hold()[1].values()
        assert len(told.tallies) <= 9
        at(wide, 36)
        assert held.take_round()
    assert wide.ids() == list(range(16))


def test_rows_in_memory_count_as_large_as_they_become_in_files(wide: Home) -> None:
    with holding(wide, count=1, soft_limit="20KiB") as held:
        for sequencer_id in range(3):
            send(wide, sequencer_id, *[0] * 400)
        reasons = []
        for _ in range(24):
            send(wide, 0, *[0] * 100)
            reasons.append(held.take_round())
        assert 1 <= sum(bool(reason) for reason in reasons) <= 5


def test_rows_that_no_more_follow_count_for_the_soft_limit_too(wide: Home) -> None:
    with holding(wide, count=1, soft_limit=4) as held:
        assert held.take_round() == ""
        send(wide, 0, 0, 0, 0)
        assert held.take_round() == ""
        send(wide, 0, 0, 0)
        at(wide, 19)
        assert "`soft_limit` 4" in held.take_round()
        assert wide.ids() == list(range(5))


def test_entries_are_read_once_and_in_portions(wide: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(wide, count=1) as held:
        held.most_entries = 4
        send(wide, 0, *range(6))
        send(wide, 1, *range(3))
        ends = [sum(next(iter(held.hold()[1].values())).ends.values()) for _ in range(4)]
        assert ends == [4, 8, 9, 9]
        monkeypatch.setattr("tidemark.ingest.range_rows.read_batches", lambda *_: pytest.fail("read again"))
        held.hold()


def test_bad_rows_wait_no_longer_than_good_ones(wide: Home) -> None:
    with holding(wide) as held:
        wide.send(0, BAD_LINE)
        assert held.take_round() == ""
        at(wide, 20)
        assert held.take_round()
    assert [reason for _, _, reason, _ in wide.bad()]
    assert [*wide.ledgers().values()] == ["0:1"]


def test_a_lost_worker_leaves_its_part_to_the_next_round(wide: Home) -> None:
    with holding(wide) as held:
        send(wide, 0, 0)
        send(wide, 1, 0)
        held.take_round()
        at(wide, 20)
        assert held.take_round(but=1)
        assert len(wide.ids()) == 1
        held.lose(1)
        assert held.take_round()
    assert wide.ids() == [0, 1]


def test_other_columns_and_other_closed_partitions_are_another_basis(wide: Home) -> None:
    with holding(wide, late="quarantine") as held:
        send(wide, 0, 0, 1)
        held.take_round()
        alter_columns(wide.shard(), [Add("events", parse_columns("more string")[0])])
        minted, told = held.hold()
        rows = held.memories[0].take(minted, Share(sequencers=(0,)))
        assert told[0].rows == 2
        assert rows is not None
        assert "more" in rows.good.column_names
        at(wide, 20)
        assert held.take_round()
    assert wide.ids() == [0, 1]


def test_a_mint_that_another_run_was_faster_than_is_void(wide: Home) -> None:
    with holding(wide) as held:
        send(wide, 0, 0)
        minted, told = held.hold()
        wide.ingest()
        cut = cut_to_held(minted, told.values())
        part = held.write(0, cut, Share(sequencers=(0,)))
        with pytest.raises((InputsGone, RangeOverlap)):
            append(held.runs[0], cut, [part])
        send(wide, 0, 1)
        at(wide, 30)
        held.take_round()
    persist(wide, now=True)
    assert wide.ids() == [0, 1]


def test_late_rows_that_are_refused_are_told_while_they_are_held(wide: Home) -> None:
    with holding(wide, late="refuse", persist_when_cold=True) as held:
        for sequencer_id in range(3):
            send(wide, sequencer_id, 0)
        held.take_round()
        at(wide, 200)
        held.take_round()
        wide.ingest()
        send(wide, 0, 1)
        with pytest.raises(LateRows):
            held.hold()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_row_comes_once(wide: Home, seed: int) -> None:
    dice, minute = random.Random(seed), 0  # noqa: S311 -- no secret
    with holding(wide, persist_when_cold=True, persist_rows=15) as held:
        for _ in range(25):
            match dice.randrange(6):
                case 0 | 1:
                    send(wide, dice.randrange(3), *(minute for _ in range(dice.randrange(1, 4))))
                case 2:
                    minute += dice.randrange(8)
                    at(wide, minute)
                case 3:
                    held.lose(dice.randrange(2))
                case 4 if dice.random() < 0.3:
                    wide.ingest()
                case _:
                    try:
                        held.take_round(but=dice.randrange(8))
                    except InputsGone:
                        continue
        at(wide, minute + 30)
        for _ in range(3):
            held.take_round()
    persist(wide, now=True)
    assert wide.ids() == list(range(wide.sent))
    assert wide.branches() == set()
