"""What comes next is shared out evenly, and all that processes hand to each other comes back from JSON as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.parts.rounds import travel
from tests.support.exploration import explore
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import LateRows
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest.batches import BatchesSeen, PlannedBatch, PlannedBatches
from tidemark.ingest.buffer_log import Bounds
from tidemark.ingest.partitions.arrivals import Arrival, Arrivals
from tidemark.ingest.partitions.closing import Look
from tidemark.ingest.parts import Minted, Part, Share, share_out
from tidemark.ingest.plan import PlannedRange
from tidemark.ingest.range_rows import Tally
from tidemark.write_buffer.keys import Spread
from tidemark.write_buffer.ranges import NumberRange

LOOK = Look(
    now_ms=7,
    present={0: Bounds(2, 9), 11: Bounds(0, 0)},
    begun={0: 2, 11: 0},
    batches=BatchesSeen(producer="t.batches.0a1b2c3d.0", watermark=4, obstacle="not for this login", lost=1),
)
BATCH = PlannedBatch(
    name=BatchName("p", Range(0, 4)), rows=4, places=(NumberRange(0, 2, 4), NumberRange(11, 0, 3)), has_quarantined=True
)


def minted(*sizes: int, batches: tuple[PlannedBatch, ...] = (), **more: Any) -> Minted:
    planned = tuple(PlannedRange(id_, 5, 5 + size, 5, 99) for id_, size in enumerate(sizes))
    fields = {"id": "m", "log": "t.0a1b2c3d", "schema_id": 3, "turn": 1, "look": LOOK, **more}
    return Minted(planned=planned, batches=PlannedBatches(batches=batches), **fields)


def shares(found: dict[int, Share]) -> dict[int, tuple[tuple[int, ...], bool]]:
    return {worker: (share.sequencers, share.has_batches) for worker, share in found.items()}


def test_the_largest_range_goes_to_whoever_has_the_fewest_entries() -> None:
    assert shares(share_out(minted(2, 9, 4, 5), [0, 1, 2], 1)) == {
        0: ((1,), False),
        1: ((3,), False),
        2: ((0, 2), False),
    }


def test_of_equals_the_smallest_number_is_first() -> None:
    assert shares(share_out(minted(4, 4, 4), [5, 3], 5)) == {3: ((0, 2), False), 5: ((1,), False)}
    assert share_out(minted(4, 4, 4), [5, 3], 5) == share_out(minted(4, 4, 4), [3, 5], 5)


def test_batches_are_the_holders_and_count() -> None:
    assert shares(share_out(minted(4, 2, batches=(BATCH,)), [0, 1], 1)) == {0: ((0, 1), False), 1: ((), True)}
    assert shares(share_out(minted(batches=(BATCH,)), [0], 1)) == {1: ((), True)}


def test_what_must_be_whole_is_the_holders() -> None:
    whole = minted(4, 1, batches=(BATCH,), is_whole=True)
    assert shares(share_out(whole, [0, 1, 2], 2)) == {2: ((0, 1), True)}


@given(sizes=st.lists(st.integers(0, 50), max_size=9), workers=st.sets(st.integers(0, 6), min_size=1))
@explore(50)
def test_every_range_has_one_worker_and_none_has_much_more_than_another(sizes: list[int], workers: set[int]) -> None:
    what = minted(*sizes)
    found = share_out(what, sorted(workers), min(workers))
    assert sorted(id_ for share in found.values() for id_ in share.sequencers) == list(range(len(sizes)))
    loads = [sum(part.end - part.first for part in what.ranges_of(found.get(each, Share()))) for each in workers]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_mint_comes_back_from_json() -> None:
    name = BatchName("t.batches.0a1b2c3d.0", Range(0, 4))
    batches = PlannedBatches(batches=(BATCH,), looked_at=(name,), refused=("p 2:6 overlaps [0, 4)",))
    full = Minted(
        id="m",
        log="t.0a1b2c3d",
        schema_id=3,
        turn=1,
        look=LOOK,
        planned=(PlannedRange(0, 2, 9, 3, 12, 1, has_quarantined=True),),
        batches=batches,
        is_whole=True,
        read_ms=8,
        passed_ms=-5,
        keys={"t": ("id",), "points": ()},
        other_attempts=("staged/1/ingest/a",),
        dropped=({"batch": "p 0:4", "kind": "DamagedBatch", "message": "ü"},),
    )
    assert travel(full) == full
    assert travel(minted(1)) == minted(1)


@pytest.mark.parametrize("has_error", [True, False])
def test_a_part_comes_back_from_json(has_error: bool) -> None:  # noqa: FBT001
    arrivals = Arrivals(partitions={"1970-01-01": Arrival(0, 3, 2, 5, 9)}, refused=1, first_refused="number 2")
    tally = Tally(sequencer_id=11, start=0, end=3, rows=2, bad_rows=1, spread=Spread(2, 1, "a row"), arrivals=arrivals)
    share = Share(sequencers=(11,), has_batches=True)
    part = Part(minted="m", share=share, branch="b", snapshot_id=2**62, rows=2, has_bad=True, tallies=(tally,))
    if has_error:
        late = LateRows("1 row is late", hint="let it be", sample=[{"id": 1, "at": 2.5, "raw": b"\x00"}])
        part = Part.failed(minted(1), share, late)
        assert part.error is not None
        assert (part.error.kind, part.error.exit_code, part.minted) == ("LateRows", ExitCode.REFUSED, "m")
        assert travel(travel(part)) == travel(part), "a sample is text by then"
        assert travel(part).error != part.error
    else:
        assert travel(part) == part
