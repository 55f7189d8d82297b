"""Appends into a buffer, ingests, switches, flushes and crashes in any order, against two sets of numbers.

Whatever happens, whoever ingests gets the rows of the batches that the log has, each once, and nobody else any.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.dying import Crash, dying_at
from tests.support.exploration import explore
from tests.support.homes import Home
from tidemark.collections.append import append as append_module
from tidemark.collections.append import forward as forward_module
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.staged import flush as flush_module
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import RangeOverlap
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging import files as file_staging
from tidemark.ingest import stage as stage_module
from tidemark.ingest.parts import steps
from tidemark.report import Outcome
from tidemark.settings import Settings
from tidemark.write_buffer.batches import batch_log as batches_module
from tidemark.write_buffer.batches import checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = (
    append_module, batches_module, file_staging, flush_module, forward_module, steps, stage_module
)  # fmt: skip
POINTS = st.sampled_from([None, *(point for module in MODULES for point in module.FAIL_POINTS)])
WRITERS, READERS = ("gate", "own"), {"own": ("own",), "events": ("gate", "own")}  # and whose rows they get


class ForwardMachine(RuleBasedStateMachine):
    """``gate`` writes, ``own`` writes and reads its own rows, ``events`` reads all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(checkpoints, "INTERVAL", 2)  # so that a few appends make some
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-forward-"))
        self.home = Home(Settings.load({"TIDEMARK_HOME": str(self.folder)}), self.folder, now_ms=1_000_000)
        assert self.home.buffer.logs
        self.home.declare_writer("gate")
        self.home.declare_writer("own", source={"buffer": self.home.buffer_folder.as_uri(), "table": "own"})
        self.home.declare_reader("events")
        self.mode = Mode.READ_WRITE
        self.logged: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.staged: defaultdict[tuple[str, str], set[Range]] = defaultdict(set)

    @initialize()
    def somebody_leads(self) -> None:
        self.home.switch(self.mode)

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)

    def surviving(self, operation: Callable[[], object], point: str | None) -> object:
        try:
            with dying_at(point):
                return operation()
        except Crash:
            return operation()

    @rule(
        name=st.sampled_from(WRITERS), producer=st.sampled_from("pq"), start=st.integers(0, 8), count=st.integers(1, 4),
        point=POINTS,
    )  # fmt: skip
    def append(self, name: str, producer: str, start: int, count: int, point: str | None) -> None:
        wanted = Range(start, start + count)
        rows = pa.table({"id": pa.array(range(*wanted), pa.int64()), "name": [f"{name}.{producer}"] * count})
        batch, home = BatchName(producer, wanted), self.home

        def operation() -> object:
            return append_rows(home.shard(name), batch, rows, deployment=home.deployment, clock=home.clock).outcome

        expected = self.answer(name, producer, wanted)
        if expected is RangeOverlap:
            with pytest.raises(RangeOverlap):
                self.surviving(operation, point)
            return
        outcome = self.surviving(operation, point)
        assert outcome is expected or (expected is Outcome.FORWARDED and outcome is Outcome.SKIPPED)
        if expected is Outcome.FORWARDED:
            self.logged[name, producer] |= set(range(*wanted))
            self.staged[name, producer].discard(wanted)
        elif not any(each.start <= wanted.start and wanted.end <= each.end for each in self.staged[name, producer]):
            self.staged[name, producer] |= {wanted} if self.is_free(name, producer, wanted) else set()

    def is_free(self, name: str, producer: str, wanted: Range) -> bool:
        waiting = {number for each in self.staged[name, producer] for number in range(*each)}
        return not waiting & set(range(*wanted))

    def answer(self, name: str, producer: str, wanted: Range) -> Outcome | type[RangeOverlap]:
        numbers, logged = set(range(*wanted)), self.logged[name, producer]
        if numbers <= logged:
            return Outcome.FORWARDED
        if numbers & logged:
            return RangeOverlap
        waiting = {number for each in self.staged[name, producer] for number in range(*each)}
        if self.mode is Mode.READ_WRITE and wanted in self.staged[name, producer]:
            return Outcome.FORWARDED
        if numbers <= waiting:
            return Outcome.STAGED
        if numbers & waiting:
            return RangeOverlap
        return Outcome.FORWARDED if self.mode is Mode.READ_WRITE else Outcome.STAGED

    @rule(name=st.sampled_from(sorted(READERS)), point=POINTS)
    def ingest(self, name: str, point: str | None) -> None:
        self.surviving(lambda: self.home.ingest_all(name), point)

    @rule(wanted=st.sampled_from(Mode))
    def switch(self, wanted: Mode) -> None:
        self.home.switch(wanted)
        self.mode = wanted

    @rule(point=POINTS)
    def flush(self, point: str | None) -> None:
        if self.mode is Mode.READ_ONLY:
            return
        home = self.home

        def operation() -> object:
            report = flush_all(home.shards, home.deployment, [], clock=home.clock)
            assert not [each.error for each in report.collections.values() if each.error]
            return report

        self.surviving(operation, point)
        for place, ranges in self.staged.items():
            self.logged[place] |= {number for each in ranges for number in range(*each)}
            ranges.clear()

    def settle(self) -> None:
        """In the end, all that was accepted is where it belongs."""
        self.switch(Mode.READ_WRITE)
        self.flush(None)
        for report in self.home.ingest_all().collections.values():
            assert report.error is None
        for name in READERS:
            assert Counter(self.home.tuples(name)) == self.rows_for(name)
        assert self.home.branches() == set()

    def rows_for(self, reader: str) -> Counter[tuple[int, str]]:
        return Counter(
            (number, f"{name}.{producer}")
            for (name, producer), numbers in self.logged.items()
            for number in numbers
            if name in READERS[reader]
        )

    @invariant()
    def readers_see_only_what_was_logged_each_row_once(self) -> None:
        for name in READERS:
            assert Counter(self.home.tuples(name)) <= self.rows_for(name)
        assert self.home.ids("gate") == []


TestForward = pytest.mark.slow(ForwardMachine.TestCase)
TestForward.settings = explore(20, steps=12)
