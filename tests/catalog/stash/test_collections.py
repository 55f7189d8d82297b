"""What the collections of a stash allow and refuse, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.stash.collections import AppendBatch, Entry, StashCollections
from tidemark.errors import CorruptState, InvalidFrontier, NotYetAvailable, UpperMismatch
from tidemark.exit_codes import ExitCode
from tidemark.frontier import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.catalog.stash_places import StashPlace
    from tidemark.catalog.stash.handle import StashHandle

A, B = Entry("a", "1", 1), Entry("b", "2", 1)


@pytest.fixture
def stash(place: StashPlace) -> Iterator[StashHandle]:
    """An open stash with the collections ``one`` and ``two``."""
    with place.open() as handle:
        handle.run(lambda collections: [collections.create(name) for name in ("one", "two")])
        yield handle


def frontiers(stash: StashHandle, name: str = "one") -> tuple[object, object]:
    stored = stash.run(lambda collections: collections.stored()[name])
    return stored.since, stored.upper


def append(*batches: AppendBatch) -> Callable[[StashCollections], None]:
    return lambda collections: collections.append(batches)


def test_a_collection_is_made_once(stash: StashHandle) -> None:
    first = stash.run(lambda collections: collections.create("one"))
    assert (first.since, first.upper) == (0, 0)
    assert stash.run(lambda collections: collections.stored())["one"] == first


def test_what_was_appended_is_read_at_the_last_time(place: StashPlace, stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 5, [A, B], lower=0)))
    assert frontiers(stash) == (5, 6)
    stash.run(append(AppendBatch.at("one", 9, [Entry("a", "1", -1), Entry("a", "3", 1)], lower=6)))
    assert stash.run(lambda collections: collections.peek_one("one")) == {"a": "3", "b": "2"}
    assert stash.run(lambda collections: collections.peek_one("one", "a")) == {"a": "3"}
    assert stash.run(lambda collections: collections.peek_one("one", "c")) == {}
    assert place.updates("one") == [(Entry("a", "3", 1), 9), (Entry("b", "2", 1), 9)]


def test_repeated_empty_batches_move_upper_and_since_together(stash: StashHandle) -> None:
    for time in range(4):
        stash.run(append(AppendBatch.at("one", time, lower=time)))
        assert frontiers(stash) == (time, time + 1)
    assert stash.run(lambda collections: collections.peek_one("one")) == {}


@pytest.mark.parametrize("bad_first", [True, False])
def test_one_bad_upper_among_several_collections_commits_nothing(place: StashPlace, *, bad_first: bool) -> None:
    with place.open() as stash:
        stash.run(lambda collections: [collections.create(name) for name in ("one", "two")])
        good, bad = AppendBatch.at("one", 3, [A], lower=0), AppendBatch.at("two", 3, [B], lower=2)
        batches = [bad, good] if bad_first else [good, bad]
        with pytest.raises(UpperMismatch) as refused:
            stash.run(append(*batches))
        assert (refused.value.expected, refused.value.actual) == (2, 0)
        assert [frontiers(stash, name) for name in ("one", "two")] == [(0, 0), (0, 0)]
    assert place.sql("SELECT * FROM data d JOIN collections c USING (collection_id) WHERE name IN ('one', 'two')") == []


def test_a_refused_append_leaves_nothing_even_if_the_caller_goes_on(stash: StashHandle) -> None:
    def carry_on(collections: StashCollections) -> None:
        good, bad = AppendBatch.at("one", 3, [A, Entry("a", "0", -1)], lower=0), AppendBatch.at("two", 3, lower=2)
        with pytest.raises(UpperMismatch):
            collections.append([good, bad])
        assert collections.unconsolidated() == {}
        collections.append([AppendBatch.at("one", 4, [B], lower=0)])

    stash.run(carry_on)
    assert stash.run(lambda collections: collections.peek_one("one")) == {"b": "2"}
    assert (frontiers(stash), frontiers(stash, "two")) == ((4, 5), (0, 0))


def test_batches_of_one_collection_follow_each_other(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 0, [A], lower=0), AppendBatch.at("one", 1, [B], lower=1)))
    assert stash.run(lambda collections: collections.peek_one("one")) == {"a": "1", "b": "2"}


def seal_back(collections: StashCollections) -> None:
    collections.seal("one", 4)


def compact_back(collections: StashCollections) -> None:
    collections.compact("one", 3)


def compact_beyond(collections: StashCollections) -> None:
    collections.compact("one", 7)


def compact_everything(collections: StashCollections) -> None:
    collections.compact("one", EMPTY)


def update_too_late(collections: StashCollections) -> None:
    collections.update("one", 5, [A])


def entries_beyond_the_upper(collections: StashCollections) -> None:
    collections.append([AppendBatch(collection="one", lower=6, upper=7, time=7, since=6, entries=[A])])


def unknown_collection(collections: StashCollections) -> None:
    collections.seal("three", 9)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (seal_back, "seal of 'one' to 4: its upper is 6 already"),
        (compact_back, "compaction of 'one' to 3: its since is 5 already"),
        (compact_beyond, "beyond its upper 6"),
        (compact_everything, "beyond its upper 6"),
        (update_too_late, "at time 5 comes too late: its upper is 6"),
        (entries_beyond_the_upper, "not below the new upper 7"),
        (unknown_collection, "no collection 'three'"),
    ],
)
def test_what_the_frontiers_do_not_allow_is_refused(
    stash: StashHandle, operation: Callable[[StashCollections], None], message: str
) -> None:
    stash.run(append(AppendBatch.at("one", 5, [A], lower=0)))
    with pytest.raises(InvalidFrontier, match=message) as refused:
        stash.run(operation)
    assert refused.value.exit_code is ExitCode.NOT_POSSIBLE
    assert frontiers(stash) == (5, 6)
    assert stash.run(lambda collections: collections.peek_one("one")) == {"a": "1"}


def test_the_same_frontier_again_is_no_error(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 5, [A], lower=0)))
    stash.run(lambda collections: (collections.seal("one", 6), collections.compact("one", 5)))
    assert frontiers(stash) == (5, 6)


def test_a_sealed_collection_is_read_and_never_written_again(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 5, [A], lower=0)))
    stash.run(lambda collections: collections.seal("one", EMPTY))
    assert frontiers(stash) == (5, EMPTY)
    assert stash.run(lambda collections: collections.peek_one("one")) == {"a": "1"}
    with pytest.raises(InvalidFrontier, match="its upper is empty"):
        stash.run(lambda collections: collections.update("one", 10**15, [B]))
    with pytest.raises(UpperMismatch):
        stash.run(append(AppendBatch.at("one", 6, lower=6)))


def test_an_empty_since_cannot_be_read_at_all(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 5, [A], lower=0)))
    stash.run(lambda collections: (collections.seal("one", EMPTY), collections.compact("one", EMPTY)))
    with pytest.raises(InvalidFrontier, match="its since is empty"):
        stash.run(lambda collections: collections.peek_one("one"))


def test_what_was_never_sealed_has_no_readable_time(place: StashPlace, stash: StashHandle) -> None:
    stash.run(lambda collections: collections.update("one", 3, [A]))
    with pytest.raises(NotYetAvailable, match="since 0, upper 0"):
        stash.run(lambda collections: collections.peek_one("one"))
    assert place.updates("one") == [(A, 3)]
    stash.run(lambda collections: collections.seal("one", 3))
    assert stash.run(lambda collections: collections.peek_one("one")) == {}, "its time is not below the upper"
    stash.run(lambda collections: collections.seal("one", 4))
    assert stash.run(lambda collections: collections.peek_one("one")) == {"a": "1"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([A, A], "unexpected multiplicity 2"),
        ([Entry("a", "1", -1)], "unexpected multiplicity -1"),
        ([A, Entry("a", "2", 1)], "duplicate keys"),
    ],
)
def test_a_map_has_one_value_under_each_key(stash: StashHandle, entries: list[Entry], message: str) -> None:
    stash.run(append(AppendBatch.at("one", 0, entries, lower=0)))
    with pytest.raises(CorruptState, match=message):
        stash.run(lambda collections: collections.peek_one("one"))


def test_peek_shows_multiplicities(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 0, [A, A, B, Entry("b", "2", -1)], lower=0)))
    assert stash.run(lambda collections: list(collections.peek("one"))) == [Entry("a", "1", 2)]


def test_two_reads_may_go_on_side_by_side(stash: StashHandle) -> None:
    stash.run(append(AppendBatch.at("one", 0, [A, B], lower=0), AppendBatch.at("two", 0, [B, A], lower=0)))

    def read(collections: StashCollections) -> list[tuple[Entry, Entry]]:
        return list(zip(collections.peek("one"), collections.peek("two"), strict=True))

    pairs = stash.run(read, write=False)
    assert {first for first, _ in pairs} == {second for _, second in pairs} == {A, B}


def test_many_and_large_entries_go_in_at_once(stash: StashHandle) -> None:
    """More than 65535 arguments of one statement, and values of several MiB."""
    entries = [Entry(f"{number:06}", "x", 1) for number in range(20_000)]
    entries += [Entry(f"large {number}", "y" * 3_000_000, 1) for number in range(3)]
    stash.run(append(AppendBatch.at("one", 0, entries, lower=0)))
    found = stash.run(lambda collections: collections.peek_one("one"))
    assert (len(found), found["019999"], len(found["large 2"])) == (20_003, "x", 3_000_000)
