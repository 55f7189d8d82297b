from __future__ import annotations

import pytest

from tidemark.errors import CorruptState, Sealed
from tidemark.frontier import EMPTY
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import NEVER, CommitKind, Hold, ShardKind, ShardState
from tidemark.iceberg.shard.token import Token


def state(**changes: object) -> ShardState:
    values = {
        "layout": ShardKind.DIFFERENTIAL,
        "kind": CommitKind.CORRECT,
        "lower": 5,
        "upper": 9,
        "since": 2,
        "changed": 7,
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


def test_contents_that_another_version_may_have_changed_count_as_changed() -> None:
    written = state().properties()
    assert state().still_shows(7)
    assert not any(state().still_shows(upper) for upper in (6, 10))
    without = {key: text for key, text in written.items() if key != "tidemark.changed"}
    for properties in (without, {**written, "tidemark.commit-id": "of a version that leaves the entry as it was"}):
        assert ShardState.parse(properties, shard="s").changed == 9


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


def test_a_durable_hold_is_stored_as_a_number_and_never_ends() -> None:
    held = state(holds={"sink": Hold(3, NEVER), "leased": Hold(4, 10**15)})
    assert held.properties()["tidemark.hold.sink"] == "3:9223372036854775807", "older programs read a number"
    parsed = ShardState.parse(held.properties(), shard="s").holds
    assert {reader: hold.is_durable for reader, hold in parsed.items()} == {"sink": True, "leased": False}
    assert held.smallest_hold(10**17) == 3


def test_tokens_are_ordered_by_generation_then_epoch() -> None:
    assert Token(1, 9) < Token(2, 1) < Token(2, 2)
    assert Token(1, 9).raised(2) == Token(2, 10)
    assert Token(1, 9).raised(1) == Token(1, 10)


@pytest.mark.parametrize(("now_ms", "upper"), [(3, 10), (9, 10), (20, 21)])
def test_next_upper_lies_beyond_the_present_one_and_the_clock(now_ms: int, upper: int) -> None:
    assert (state().open_upper("it"), state().next_upper(now_ms)) == (9, upper)


def test_sealed_shard_has_no_upper_to_write_at() -> None:
    sealed = state(upper=EMPTY, since=EMPTY, lower=9)
    with pytest.raises(Sealed, match="collection 'planes' is sealed") as caught:
        sealed.open_upper("collection 'planes'", hint="give up")
    assert caught.value.hint == "give up"
    with pytest.raises(Sealed):
        sealed.next_upper(5)
