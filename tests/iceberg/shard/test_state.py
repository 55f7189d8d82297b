from __future__ import annotations

import pytest

from tidemark.errors import CorruptState
from tidemark.frontier import EMPTY
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import CommitKind, Hold, ShardKind, ShardState
from tidemark.iceberg.shard.token import Token


def state(**changes: object) -> ShardState:
    values = {
        "layout": ShardKind.DIFFERENTIAL,
        "kind": CommitKind.CORRECT,
        "lower": 5,
        "upper": 9,
        "since": 2,
        "token": Token(1, 3),
        "writer": "host:1",
        "commit_id": "c",
        "schema_id": 0,
        "digest": "coarse",
        "ledgers": {"p": Ledger((Range(0, 4),))},
        "holds": {"r": Hold(3, 100)},
    }
    return ShardState(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [state(), state(upper=EMPTY, since=EMPTY, lower=9)])
def test_properties_read_back_as_they_were_written(written: ShardState) -> None:
    assert ShardState.parse(written.properties(), shard="s") == written


@pytest.mark.parametrize("changes", [{"since": 10}, {"lower": 10}, {"since": EMPTY}])
def test_frontiers_that_contradict_each_other_cannot_exist(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptState):
        state(**changes)


@pytest.mark.parametrize("broken", ["tidemark.upper", "tidemark.epoch", "tidemark.layout"])
def test_damaged_properties_name_the_shard(broken: str) -> None:
    with pytest.raises(CorruptState, match="planes"):
        ShardState.parse({**state().properties(), broken: "x"}, shard="planes")


def test_expired_hold_no_longer_counts() -> None:
    held = state(holds={"late": Hold(4, 100), "early": Hold(3, 50)})
    assert [held.smallest_hold(now) for now in (49, 50, 99, 100)] == [3, 4, 4, None]


def test_tokens_are_ordered_by_generation_then_epoch() -> None:
    assert Token(1, 9) < Token(2, 1) < Token(2, 2)
    assert Token(1, 9).raised(2) == Token(2, 10)
    assert Token(1, 9).raised(1) == Token(1, 10)
