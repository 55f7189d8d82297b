"""Many collections are worked on at once, each after those that it reads."""

from __future__ import annotations

from threading import Barrier, Event
from typing import TYPE_CHECKING

import pytest

from tests.support.declared import csv_declaration
from tidemark.collections.reconcile.choosing.input_order import run_inputs_first

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.collections.declarations.collection import Declaration


def declare(**inputs: list[str]) -> dict[str, Declaration]:
    return {
        name: csv_declaration(name, source={"inputs": {each: {"collection": each} for each in read}, "sql": "SELECT 1"})
        if read
        else csv_declaration(name)
        for name, read in inputs.items()
    }


def test_each_gets_the_results_of_those_that_it_reads() -> None:
    def run(declaration: Declaration, inputs: Mapping[str, str]) -> str:
        return f"{declaration.name}({', '.join(inputs[name] for name in sorted(inputs))})"

    declarations = declare(c=["a", "b"], b=["a", "elsewhere"], a=[])
    assert run_inputs_first(declarations, run, threads=2) == {"a": "a()", "b": "b(a())", "c": "c(a(), b(a()))"}
    assert run_inputs_first({}, run, threads=2) == {}


def test_as_many_as_there_are_threads_run_at_once() -> None:
    meeting = Barrier(3)
    done = run_inputs_first(
        declare(**{name: [] for name in "abcdef"}), lambda *_: meeting.wait(timeout=60) >= 0, threads=3
    )
    assert all(done.values())


def test_after_an_error_nothing_begins() -> None:
    ran: list[str] = []

    def run(declaration: Declaration, _inputs: Mapping[str, None]) -> None:
        ran.append(declaration.name)
        if declaration.name == "a":
            raise KeyboardInterrupt
        Event().wait(timeout=0.5)  # may have begun before the error is seen

    with pytest.raises(KeyboardInterrupt):
        run_inputs_first(declare(**{name: [] for name in "abcdef"}), run, threads=1)
    assert len(ran) <= 2
