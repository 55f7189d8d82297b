"""The table of the reference, 3.4, by its names; and the rules that are Tidemark's own: cold, limits, reasons.

Left out is ``test_backoff``: a pass decides once, and has no loop that would wait. The next pass is the next run of the
DAG ``buffer_lifecycle``, whose schedule and retries are in ``tests/dags/test_persist.py``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.lifecycle.ranges import span
from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.lifecycle.chunks import Action, Chunk, Operation, Stage
from tidemark.lifecycle.policy import Control, Decision, PartitionChunks, Snapshot, decide, find_next_due, why_freeze
from tidemark.lifecycle.windows import Window, Windows

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE_MS = 1_357_214_400_000
BUSY = frozenset({"compact-running", "persist-running"})
COMPACTING = Operation(id="compact-running", action=Action.COMPACT, started_ms=BASE_MS)
PERSISTING = Operation(id="persist-running", action=Action.PERSIST, started_ms=BASE_MS)
Brief = tuple[str, list[int]]


def at(seconds: float) -> int:
    return BASE_MS + round(seconds * 1_000)


def rules(**changed: Any) -> LifecycleRules:
    """Return rules of seconds, without those for cold partitions."""
    given = {"late_arrive_window": "10s", "persist_age": "20s", "persist_when_cold": False, "persist": False}
    return LifecycleRules.model_validate({**given, **changed})


def chunk(id_: int, last_write: int, kind: str = "open", *, rows: int = 10, first: int = 0, **more: Any) -> Chunk:
    """Return a chunk as the reference names it: open, closed (small files), RUB (merged), OS, RUB+OS (cached)."""
    stage = {"open": Stage.OPEN, "closed": Stage.FROZEN, "RUB": Stage.FROZEN}.get(kind, Stage.PERSISTED)
    return Chunk(
        id=id_,
        stage=stage,
        rows=rows,
        start_ms=at(first),
        last_write_ms=at(last_write),
        is_compacted=kind == "RUB",
        is_cached=kind == "RUB+OS",
        **more,
    )


def waiting(rows: int, *, opened: float, until: float = 20, last: float | None = None) -> Windows:
    """Return a window that is old enough, if late rows are, with ``rows`` up to the second ``until``."""
    last_ms = at(opened if last is None else last)
    window = Window(
        opened_ms=at(opened), last_ms=last_ms, rows=rows, start_ms=at(0), end_ms=at(until), numbers={0: span(0, 9)}
    )
    return Windows(closed=(window,), seen={0: 10}, last_ms=last_ms)


class Database:
    """A collection in which compactions take no time, so that the next pass sees what they left."""

    def __init__(
        self,
        rules: LifecycleRules,
        *partitions: Sequence[Chunk],
        windows: dict[int, Windows] | None = None,
        slots: int | None = None,
    ) -> None:
        self.rules, self.slots = rules, slots
        self.partitions = {
            f"{number:02}": PartitionChunks(windows=(windows or {}).get(number, Windows()), chunks=list(chunks))
            for number, chunks in enumerate(partitions)
        }
        self.running = BUSY
        self.is_replaying = False

    def look(self, seconds: float) -> list[Decision]:
        snapshot = Snapshot(
            collection="rain", partitions=self.partitions, running=self.running, is_replaying=self.is_replaying
        )
        return decide(snapshot, self.rules, now_ms=at(seconds), slots=self.slots)

    def check(self, seconds: float) -> list[Brief]:
        decisions = self.look(seconds)
        for decision in decisions:
            if decision.action is Action.COMPACT:
                self.merge(decision, seconds)
        return [(decision.action.value, list(decision.chunks)) for decision in decisions]

    def merge(self, decision: Decision, seconds: float) -> None:
        before = self.partitions[decision.partition]
        inputs = [each for each in before.chunks if each.id in decision.chunks]
        left = [each for each in before.chunks if each.id not in decision.chunks]
        next_id = 1 + max(each.id for partition in self.partitions.values() for each in partition.chunks)
        merged = chunk(next_id, round(seconds), "RUB", rows=sum(each.rows for each in inputs))
        self.partitions[decision.partition] = replace(before, chunks=[*left, merged])


def test_elapsed_seconds() -> None:
    freezing = [why_freeze(chunk(0, last), rules(late_arrive_window="5s"), now_ms=at(10)) for last in (5, 10, 15)]
    assert freezing == ["no row for 5 s >= 5 s", None, None], "a clock that goes back counts as no time"


@pytest.mark.parametrize(
    ("now", "rows", "can_move"), [(9, 10, False), (11, 10, True), (11, 73, True), (0, 74, True), (0, 73, False)]
)
def test_can_move(*, now: int, rows: int, can_move: bool) -> None:
    assert (why_freeze(chunk(0, 0, rows=rows), rules(open_rows=74), now_ms=at(now)) is not None) == can_move


def test_sort_free_candidates() -> None:
    database = Database(
        rules(soft_limit=1),
        [
            *(chunk(id_, 0, "RUB+OS", last_read_ms=at(read)) for id_, read in ((1, 40), (3, 20), (4, 10))),
            chunk(5, 0, "RUB", rows=2_000_000, last_read_ms=at(10)),
            chunk(6, 0, "RUB", rows=2_000_000, last_read_ms=at(5)),
        ],
    )
    assert database.check(50) == [
        ("unload", [4]), ("unload", [3]), ("unload", [1]), ("drop", [6]), ("drop", [5])
    ]  # fmt: skip


def test_default_rules() -> None:
    assert not Database(LifecycleRules(), [chunk(0, 1), chunk(1, 1), chunk(2, 1)]).check(40)


def test_late_arrival() -> None:
    database = Database(rules(), [chunk(0, 8), chunk(1, 5), chunk(2, 0)])
    assert not database.check(9)
    assert database.check(11) == [("compact", [2])]
    assert not database.check(12)
    assert database.check(20) == [("compact", [0, 1, 3])]
    assert [(each.id, each.rows) for each in database.partitions["00"].chunks] == [(4, 30)]


SOFT = [
    chunk(0, 0),
    chunk(1, 0),
    chunk(2, 0, "RUB"),
    chunk(3, 0, "RUB", operation=PERSISTING),
    chunk(4, 0, "RUB+OS", last_read_ms=at(9)),
    chunk(5, 0, "RUB+OS", last_read_ms=at(2)),
]


def test_buffer_size_soft_drop_non_persisted() -> None:
    assert Database(rules(soft_limit=5), SOFT).check(9) == [("unload", [5]), ("unload", [4]), ("drop", [2])]
    assert not Database(rules(soft_limit=5), SOFT[:1]).check(9), "an open chunk is never dropped"


def test_buffer_size_soft_dont_drop_non_persisted() -> None:
    chunks = [*SOFT[:4], SOFT[4]]
    assert Database(rules(soft_limit=5, persist=True), chunks).check(9) == [("unload", [4])]


def test_buffer_size_soft_no_op() -> None:
    assert not Database(rules(soft_limit=40), SOFT[:1]).check(9)


@pytest.mark.parametrize(("limit", "freed"), [(60, [5]), (50, [5, 4]), (61, [])])
def test_the_size_is_checked_again_before_each_step(limit: int, freed: list[int]) -> None:
    assert [id_ for _, [id_] in Database(rules(soft_limit=limit), SOFT).check(9)] == freed


def test_compact() -> None:
    in_order = {19: (5, None), 20: (4, COMPACTING), 21: (3, None), 22: (2, None), 23: (1, COMPACTING)}
    database = Database(
        rules(persist_rows=1_000),
        [chunk(0, 20)],
        [chunk(1, 20), chunk(2, 20, "closed")],
        [chunk(3, 5), chunk(4, 20, "closed"), chunk(5, 20, "RUB"), chunk(6, 20, "RUB+OS"), chunk(7, 20, "OS")],
        [chunk(8, 20, "RUB"), chunk(9, 20, "RUB"), chunk(10, 20, "RUB+OS"), chunk(11, 20, "OS")],
        [chunk(12, 5)],
        [chunk(13, 5, "RUB")],
        [chunk(id_, 20, "RUB", rows=1_000 if id_ == 15 else 400) for id_ in (14, 15, 16, 17, 18)],
        [chunk(id_, 20, "RUB", rows=400, order=place, operation=busy) for id_, (place, busy) in in_order.items()],
    )
    first = [[2], [3, 4, 5], [8, 9], [12], [14, 16], [22, 21]]
    assert database.check(20) == [("compact", ids) for ids in first]
    assert database.check(20) == [("compact", [17, 18])]


def test_compaction_limiter() -> None:
    database = Database(
        rules(),
        [chunk(0, 20, "closed"), chunk(10, 30, "closed"), chunk(12, 40, "closed")],
        [chunk(1, 20, "closed")],
        [chunk(200, 10, "closed")],
        slots=2,
    )
    assert database.check(50) == [("compact", [0, 10, 12]), ("compact", [1])]
    assert database.check(50) == [("compact", [200])]


def test_a_running_compaction_holds_its_slot() -> None:
    database = Database(rules(), [chunk(0, 20, "closed", operation=COMPACTING)], [chunk(1, 20, "closed")], slots=1)
    assert not database.check(20)


PERSIST = rules(persist=True, persist_rows=1_000)
MANY = waiting(1_000, opened=15)
CASES: dict[str, tuple[list[Chunk], Windows, list[Brief]]] = {
    "a: few rows, and young": (
        [chunk(0, 25, "closed", first=10), chunk(1, 25, "RUB", first=5)], waiting(10, opened=15), [("compact", [0, 1])]
    ),
    "b: enough rows": (
        [chunk(2, 25, "closed", first=10), chunk(3, 25, "RUB", first=5)], MANY, [("persist", [2, 3])]
    ),
    "c: old enough; an open chunk is split too": (
        [chunk(4, 25, first=10), chunk(5, 25, "RUB", first=5), chunk(6, 25, "OS", first=5)],
        waiting(10, opened=5),
        [("persist", [4, 5])],
    ),
    "d: a merge is in the way, and no other one begins": (
        [
            chunk(7, 25, "closed", first=10, operation=COMPACTING),
            chunk(8, 25, "closed", first=10),
            chunk(9, 25, "RUB", first=5),
        ],
        MANY,
        [],
    ),
    "e: a merge of later rows is not": (
        [
            chunk(10, 25, "closed", first=21, operation=COMPACTING),
            chunk(11, 25, "closed", first=10),
            chunk(12, 25, "RUB", first=5),
        ],
        MANY,
        [("persist", [11, 12])],
    ),
    "f: what is left is merged in the next pass": (
        [
            chunk(13, 25, "closed", first=21, operation=COMPACTING),
            chunk(14, 25, "closed", first=21, order=10),
            chunk(15, 25, "closed", first=10),
            chunk(16, 25, "RUB", first=5),
        ],
        MANY,
        [("persist", [15, 16])],
    ),
    "g: all up to the last one, in the order of chunks": (
        [chunk(id_, 25, "RUB", first=first, order=order)
         for id_, first, order in ((24, 25, 5), (25, 5, 4), (26, 25, 3), (27, 5, 2), (28, 25, 1))],
        MANY,
        [("persist", [28, 27, 26, 25])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_persist(case: str) -> None:
    chunks, windows, expected = CASES[case]
    assert Database(PERSIST, chunks, windows={0: windows}).check(25) == expected


def test_what_a_persist_leaves_is_merged() -> None:
    left = [chunk(14, 25, "closed", first=21, order=10), chunk(17, 25, "RUB", first=20)]
    assert Database(PERSIST, left, windows={0: waiting(10, opened=20)}).check(25) == [("compact", [17, 14])]


def test_persist_empty() -> None:
    database = Database(rules(persist=True), [], windows={0: waiting(10, opened=0)})
    assert database.check(20) == [("persist", [])], "the windows are flushed all the same"


def test_suppress_persistence() -> None:
    chunks = [chunk(2, 25, "closed", first=10), chunk(3, 25, "RUB", first=5)]
    database = Database(PERSIST, chunks, windows={0: MANY})
    database.is_replaying = True
    assert database.check(25) == [("compact", [2, 3])]
    assert not database.check(25)
    database.is_replaying = False
    assert database.check(25) == [("persist", [4])]


@pytest.mark.parametrize("kind", ["open", "closed"])
def test_moves(kind: str) -> None:
    assert Database(rules(), [chunk(0, 40, kind)]).check(80) == [("compact", [0])]


def test_recovers_lifecycle_action() -> None:
    database = Database(rules(), [chunk(0, 0, "RUB", operation=COMPACTING), chunk(1, 0, "RUB", operation=COMPACTING)])
    assert not database.check(0)
    assert not database.check(10), "it runs"
    database.running = frozenset()
    assert not database.check(9), "it ended, with an error or with a commit that is not in the snapshot yet"
    assert database.check(10) == [("clear", [0, 1])]


def test_recovers_a_persist_that_had_no_chunk() -> None:
    database = Database(rules(persist=True), [], windows={0: waiting(10, opened=0)})
    [decision] = database.look(20)
    under_way = waiting(10, opened=0).start_flush(at(20), late_ms=10_000)
    database.partitions["00"] = PartitionChunks(windows=under_way)
    database.running = frozenset({decision.operation_id})
    assert not database.check(30), "the operation has the id that the flush gives it"
    database.running = frozenset()
    assert [(each.action, each.operation_id) for each in database.look(30)] == [(Control.CLEAR, decision.operation_id)]


def test_persist_soft_limit() -> None:
    """The reference takes the partition with the most rows; Tidemark those that wait longest, until there is room."""
    windows = {0: waiting(10, opened=18), 1: waiting(5, opened=16), 2: waiting(900, opened=17)}
    partitions = [[chunk(0, 18)], [chunk(1, 16, rows=5)], [chunk(2, 17, rows=900)]]
    limited = rules(persist=True, soft_limit=900)
    decision, other = Database(limited, *partitions, windows=windows).look(19)
    assert (decision.action, decision.chunks, decision.everything) == (Action.PERSIST, (1,), True)
    assert (other.action, other.chunks, other.everything) == (Action.PERSIST, (2,), True), "910 are still too many"
    assert decision.reason == (
        "915 open rows >= `soft_limit` 900; of all partitions, its rows wait for the longest time"
    )
    windows[2] = windows[2].start_flush(at(19), late_ms=1)
    database = Database(limited, *partitions, windows=windows)
    assert not database.check(19), "one persist makes room already"


def test_the_soft_limit_lets_a_merge_end_first() -> None:
    windows = {0: waiting(10, opened=5), 1: waiting(10, opened=15)}
    partitions = [[chunk(0, 18, "closed", operation=COMPACTING)], [chunk(1, 18)]]
    assert Database(rules(persist=True, soft_limit=1), *partitions, windows=windows).check(19) == [("persist", [1])]


def test_the_soft_limit_takes_nothing_that_the_same_pass_merges() -> None:
    windows = {0: waiting(10, opened=5), 1: waiting(10, opened=15)}
    partitions = [[chunk(0, 18, "closed")], [chunk(1, 18)]]
    assert Database(rules(persist=True, soft_limit=1), *partitions, windows=windows).check(19) == [
        ("compact", [0]), ("persist", [1])
    ]  # fmt: skip
    assert Database(rules(soft_limit=1), *partitions).check(19) == [("compact", [0])], "nor is it dropped"


def test_a_merge_never_jumps_over_a_chunk() -> None:
    busy = chunk(1, 20, "closed", order=1, operation=COMPACTING)
    chunks = [chunk(0, 20, "closed"), busy, chunk(2, 20, "closed", order=2)]
    assert Database(rules(), chunks).check(20) == [("compact", [0])]


@pytest.mark.parametrize(("limit", "pauses"), [("20", True), ("21", False), ("3KiB", True), ("4KiB", False)])
def test_the_hard_limit_pauses(*, limit: str, pauses: bool) -> None:
    chunks = [chunk(0, 8, size_bytes=2_000), chunk(1, 8, size_bytes=1_500), chunk(2, 8, "OS", size_bytes=9_000)]
    hard = int(limit) if limit.isdigit() else limit
    found = Database(rules(hard_limit=hard), chunks).look(9)
    assert [decision.action for decision in found] == [Control.PAUSE] * pauses
    if limit == "20":
        assert found[0].reason == "20 open rows >= `hard_limit` 20"


def test_a_cold_partition_is_compacted() -> None:
    assert Database(rules(persist=True), [chunk(0, 9)], windows={0: waiting(10, opened=9)}).check(19) == [
        ("compact", [0])
    ]


def test_a_cold_partition_is_persisted_where_the_rule_says_so() -> None:
    cold = rules(persist=True, persist_when_cold=True)
    [decision] = Database(cold, [chunk(0, 9)], windows={0: waiting(10, opened=9)}).look(19)
    assert (decision.action, decision.reason) == (Action.PERSIST, "cold: no row for 10 s >= 10 s")
    assert not Database(cold, [chunk(0, 15)], windows={0: waiting(10, opened=9, last=15)}).look(19), "it is warm"


def test_a_decision_says_why() -> None:
    old = LifecycleRules(persist_when_cold=False)
    [decision] = Database(old, [chunk(0, 1_800)], windows={0: waiting(10, opened=0, last=1_800)}).look(1_860)
    assert decision.reason == "oldest open row 31 min >= 30 min"
    assert decision.until_ms == at(20)
    [many] = Database(rules(persist=True, persist_rows=1_000), [], windows={0: waiting(1_200, opened=0)}).look(10)
    assert many.reason == "1,200 persistable rows >= 1,000"


def test_the_same_snapshot_gives_the_same_decisions() -> None:
    database = Database(
        rules(persist=True, persist_rows=1_000, soft_limit=1, hard_limit=1),
        *(chunks for chunks, _, _ in CASES.values()),
        windows={number: windows for number, (_, windows, _) in enumerate(CASES.values())},
    )
    decisions = database.look(25)
    assert decisions == database.look(25)
    ids = [decision.operation_id for decision in decisions]
    assert len(set(ids)) == len(ids)
    touched = [(decision.partition, id_) for decision in decisions for id_ in decision.chunks]
    assert len(set(touched)) == len(touched), "at most one action for each chunk"


def test_a_pass_over_many_partitions_takes_less_than_a_second() -> None:
    kinds = ["open", "closed", "RUB", "OS"]
    partitions = {
        f"{number:05}": PartitionChunks(
            windows=waiting(number, opened=-number % 100),
            chunks=[chunk(each, 0, kind) for each, kind in enumerate(kinds)],
        )
        for number in range(10_000)
    }
    snapshot = Snapshot(collection="rain", partitions=partitions)
    busy = rules(persist=True, persist_rows=5_000, soft_limit=1_000, hard_limit=2_000)
    before = time.process_time()
    decisions = decide(snapshot, busy, now_ms=at(5))
    assert time.process_time() - before < 1
    assert len(decisions) >= 10_000


def test_the_next_partition_that_is_due_is_known() -> None:
    partitions = {"a": waiting(1, opened=5, last=12), "b": waiting(1, opened=4, last=14), "c": Windows()}
    snapshot = Snapshot(collection="it", partitions={n: PartitionChunks(windows=w) for n, w in partitions.items()})
    assert find_next_due(snapshot, rules(persist=True)) == (at(24), "b"), "its oldest row is 20 s old then"
    assert find_next_due(snapshot, rules(persist=True, persist_when_cold=True)) == (at(22), "a"), "quiet for 10 s then"
    assert find_next_due(snapshot, rules(persist=False)) is None
    assert not decide(snapshot, rules(persist=True), now_ms=at(24) - 1)
    assert [each.partition for each in decide(snapshot, rules(persist=True), now_ms=at(24))] == ["b"]
