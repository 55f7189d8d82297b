"""Transactions against a dict: in memory, and on a stash in SQLite, through the same rules."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.conftest import settings_in
from tests.support.catalog.items_of import collection_item, name, numbered
from tests.support.clock import SteppedClock
from tests.support.exploration import explore
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.kinds import COLLECTION, config_item
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.stash.stash import Stash
from tidemark.errors import KeyTaken, NotUnique

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMES, NUMBERS = st.sampled_from("abc"), st.integers(1, 3)
STEP = st.one_of(
    st.tuples(st.just("insert"), NAMES, NUMBERS),
    st.tuples(st.just("put"), NAMES, NUMBERS | st.none()),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("shift"), st.sets(NAMES), NUMBERS),
)


class Abandoned(Exception):
    pass


def do(transaction: Transaction, step: tuple[str, object, object]) -> None:
    what, which, number = step
    if what == "insert":
        transaction.insert(COLLECTION, name(which), numbered(number))
    elif what == "put":
        transaction.put(COLLECTION, name(which), None if number is None else numbered(number))
    elif what == "delete":
        transaction.delete(COLLECTION, lambda key, _: key.name == which)
    else:
        moved = lambda key, value: numbered((value.id + number) % 4) if key.name in which else None  # noqa: E731
        transaction.update(COLLECTION, moved)


def outcome(model: Mapping[str, int], step: tuple[str, object, object]) -> dict[str, int] | type[Exception]:
    """What a step makes of the model, or the error that refuses it."""
    what, which, number = step
    if what == "insert" and which in model:
        return KeyTaken
    if what in {"delete", "put"}:
        new = {key: each for key, each in model.items() if key != which} | ({which: number} if number else {})
    elif what == "insert":
        new = {**model, which: number}
    else:
        new = {key: (each + number) % 4 if key in which else each for key, each in model.items()}
    return new if len(set(new.values())) == len(new) else NotUnique


class TransactionMachine(RuleBasedStateMachine):
    """``transact`` is what a back end offers; here, a snapshot in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.contents, self.model = Contents(), dict[str, int]()

    def transact(self, change: Callable[[Transaction], None]) -> None:
        transaction = Transaction(self.contents, now_ms=0)
        change(transaction)
        self.contents.apply(transaction.pending())

    def stored(self) -> Contents:
        return self.contents

    @rule(steps=st.lists(STEP, max_size=6), abandon=st.booleans())
    def run(self, steps: list[tuple[str, object, object]], abandon: bool) -> None:  # noqa: FBT001 - drawn
        model = self.model

        def change(transaction: Transaction) -> None:
            nonlocal model
            model = self.model
            for step in steps:
                expected = outcome(model, step)
                if isinstance(expected, dict):
                    do(transaction, step)
                    model = expected
                else:
                    with pytest.raises(expected):
                        do(transaction, step)
                assert {key.name: value.id for key, value in transaction.items(COLLECTION)} == model
            before = {collection_item(*pair) for pair in self.model.items()}
            after = {collection_item(*pair) for pair in model.items()}
            assert set(transaction.pending()) == {(item, -1) for item in before - after} | {
                (item, 1) for item in after - before
            }
            if abandon:
                raise Abandoned

        try:
            self.transact(change)
        except Abandoned:
            return
        self.model = model

    @invariant()
    def contents_are_those_of_the_model(self) -> None:
        assert {item for item in self.stored() if item.kind == "collection"} == {
            collection_item(*pair) for pair in self.model.items()
        }


class StashMachine(TransactionMachine):
    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        folder = self.closing.enter_context(tempfile.TemporaryDirectory())
        self.stash, self.clock, self.epoch = Stash.of(settings_in(Path(folder))), SteppedClock(), 2
        self.handle = self.stash.open(OpenMode.WRITABLE, generation=1, clock=self.clock)

    def transact(self, change: Callable[[Transaction], None]) -> None:
        self.handle.transact(change)

    def stored(self) -> Contents:
        return self.handle.snapshot()

    @rule(back_ms=st.integers(-5, 5))
    def move_the_clock(self, back_ms: int) -> None:
        self.clock.step(back_ms)

    @rule()
    def open_again(self) -> None:
        self.handle.close()
        self.handle = self.stash.open(OpenMode.WRITABLE, generation=1, clock=self.clock)
        self.epoch += 1

    @rule(steps=st.lists(STEP, max_size=3))
    def try_out(self, steps: list[tuple[str, object, object]]) -> None:
        self.handle.close()  # ends consolidation too, so that a dump shows what the dry run does
        before = list(self.stash.dump())
        with self.stash.open(OpenMode.SAVEPOINT, generation=1, clock=self.clock) as savepoint:
            for step in steps:
                if isinstance(outcome({}, step), dict):
                    savepoint.transact(lambda transaction, step=step: transaction.set_config(str(step[0]), 1))
                    assert config_item(str(step[0]), 1) in set(savepoint.snapshot())
        assert list(self.stash.dump()) == before
        self.open_again()

    @invariant()
    def frontiers_and_epoch_move_as_they_should(self) -> None:
        assert self.handle.epoch == self.stash.head().epoch == self.epoch
        stored = self.handle.run(lambda collections: dict(collections.stored()), write=False)
        assert all(each.since == each.upper - 1 for each in stored.values())

    def teardown(self) -> None:
        self.handle.close()
        self.closing.close()


TestTransaction = TransactionMachine.TestCase
TestTransaction.settings = explore(60, steps=6)
TestStash = pytest.mark.slow(StashMachine.TestCase)
TestStash.settings = explore(10, steps=8)  # a commit takes a few ms
