from __future__ import annotations

import pytest

from tests.support.storage import ingestion, sink
from tidemark.errors import IncompatibleChange
from tidemark.frontier import EMPTY
from tidemark.storage.commands import AllowCompaction, AllowWrites, RunIngestion, RunSink, Sink, UpdateConfiguration
from tidemark.storage.reconciliation import reconcile

A = RunIngestion("a", ingestion(1, "a", "b"))
ALTERED = RunIngestion("a", ingestion(2, "a", "b"))
S = RunSink("s", sink(), 0)


def test_what_runs_as_it_is_wanted_is_left_alone() -> None:
    plan = reconcile([A, S, AllowCompaction("a", 5)], {"a": A.description, "s": S.description})
    assert (plan.unchanged, plan.commands, plan.stale) == ((A, S), (AllowCompaction("a", 5),), ())
    assert plan.expected == {"a", "b", "s"}


def test_of_several_definitions_the_last_one_counts_once() -> None:
    assert reconcile([A, ALTERED], {"a": A.description}).commands == (ALTERED,)
    assert reconcile([ALTERED, A], {"a": A.description}).unchanged == (A,)


def test_what_is_dropped_later_is_left_out_and_what_runs_of_it_is_stale() -> None:
    settings = UpdateConfiguration({"x": "1"})
    plan = reconcile([A, S, settings, AllowCompaction("b", EMPTY), AllowCompaction("a", EMPTY)], {"a": A.description})
    assert (plan.commands, plan.stale, plan.expected, plan.unmatched) == ((S, settings), ("a",), {"s"}, ())


def test_a_collection_that_is_dropped_leaves_the_description_of_its_ingestion() -> None:
    rest = RunIngestion("a", ingestion(1, "a"))
    commands = [A, AllowCompaction("b", EMPTY), AllowWrites()]
    assert reconcile(commands, {"a": rest.description}).unchanged == (rest,)
    assert reconcile(commands, {"a": A.description}).commands == (rest, AllowWrites())
    assert reconcile(commands, {}).expected == {"a"}


def test_what_runs_and_nobody_mentions_is_stale() -> None:
    assert reconcile([S], {"a": A.description, "s": S.description}).stale == ("a",)


def test_drops_of_what_nobody_knows_are_named() -> None:
    assert reconcile([AllowCompaction("x", EMPTY), S], {}).unmatched == ("x",)


def test_what_is_dropped_and_wanted_again_runs() -> None:
    assert reconcile([A, AllowCompaction("a", EMPTY), A], {}).commands == (A,)


@pytest.mark.parametrize("wanted", [RunSink("a", sink(), 0), RunSink("s", Sink("v1", "other"), 0)])
def test_another_kind_of_object_under_the_same_id_is_refused(wanted: RunSink) -> None:
    with pytest.raises(IncompatibleChange, match=r"cannot become a sink of"):
        reconcile([wanted], {"a": A.description, "s": S.description})
