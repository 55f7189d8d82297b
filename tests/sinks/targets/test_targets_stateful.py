"""Changes, rival runs, deaths, evolving columns and foreign maintenance in any order: the target is a dictionary.

The model keeps rows by key, and their values by column id; whether a commit at which the run died has landed, only the
target is asked.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sinks.targets.driving import Driven, columns
from tests.sinks.targets.test_files import grow_older
from tests.support.dying import Crash, dying_at
from tests.support.exploration import explore
from tests.support.homes import ODD_NAMES, make_odd_home, remove_odd_home
from tidemark.errors import FencedByEpoch
from tidemark.iceberg.shard.catalog import open_catalog
from tidemark.sinks.progress import SinkColumn
from tidemark.sinks.targets.files import partitions
from tidemark.sinks.targets.files import target as files
from tidemark.sinks.targets.files.folder import GRACE_S
from tidemark.sinks.targets.iceberg import target as iceberg

KEYS, VALUES = st.integers(0, 7), st.sampled_from(["a", "b/c", "", None])
CHANGES = st.lists(st.tuples(KEYS, VALUES, st.booleans()), max_size=5, unique_by=lambda change: change[0])
POINTS = st.sampled_from([None, None, *files.FAIL_POINTS, *iceberg.FAIL_POINTS])
PLACES = ["files", "partitioned", "table"]
Row = dict[int, Any]


class TargetMachine(RuleBasedStateMachine):
    @initialize(odd=st.sampled_from(ODD_NAMES), place=st.sampled_from(PLACES))
    def begin(self, odd: str, place: str) -> None:
        self.closing = ExitStack()
        settings = make_odd_home(odd)
        self.closing.callback(remove_odd_home, settings)
        self.closing.enter_context(patch.object(partitions, "BUCKET_ROWS", 2))  # so that few rows fill many buckets
        to = {
            "files": {"path": str(settings.home / "out")},
            "partitioned": {"path": str(settings.home / "out"), "partition": ["name"]},
            "table": {"catalog": "tidemark", "table": "analytics.copies"},
        }
        self.driven = Driven(settings, to[place])
        self.columns = columns(id_1="bigint", name_2="string")
        self.known: dict[int, str] = {1: "id", 2: "name"}
        self.ids = count(3)
        self.model: dict[int, Row] = {}
        self.run = self.driven.run()
        self.run.load([], self.columns)

    def teardown(self) -> None:
        self.closing.close()

    @rule(changes=CHANGES, point=POINTS)
    def write(self, changes: list[tuple[int, str | None, bool]], point: str | None) -> None:
        self.carry(self.run, changes, point)

    @rule(changes=CHANGES)
    def be_overtaken(self, changes: list[tuple[int, str | None, bool]]) -> None:
        older, self.run = self.run, self.driven.run()
        with pytest.raises(FencedByEpoch):
            older.mirror([], cols=self.columns)
        self.carry(self.run, changes, None)

    @rule()
    def start_over(self) -> None:
        self.run = self.driven.run()

    @rule(name=st.sampled_from(["x", "y"]))
    def add_or_drop_a_column(self, name: str) -> None:
        present = next((column for column in self.columns if column.name == name), None)
        if present is not None:
            self.columns = tuple(column for column in self.columns if column != present)
        elif name not in self.known.values():
            self.columns = (*self.columns, SinkColumn(next(self.ids), name, self.columns[1].type))

    @rule()
    def swap_the_names_of_columns(self) -> None:
        by_name = {column.name: column for column in self.columns}
        if {"x", "y"} <= by_name.keys():
            x, y = by_name["x"], by_name["y"]
            self.columns = (*self.columns[:2], x._replace(name="y"), y._replace(name="x"))

    @precondition(lambda self: "path" in self.driven.to)
    @rule(hours=st.sampled_from([0.5, 2]))
    def wait(self, hours: float) -> None:
        grow_older(Path(self.driven.to["path"]), hours * GRACE_S)

    @precondition(lambda self: "table" in self.driven.to)
    @rule()
    def let_another_engine_maintain(self) -> None:
        catalog = open_catalog(self.driven.settings)
        table = catalog.load_table(("analytics", "copies"))
        if (rows := table.scan().to_arrow()).num_rows:
            table.overwrite(rows)
        last = catalog.load_table(("analytics", "copies"))
        ids = [snapshot.snapshot_id for snapshot in last.snapshots()]
        current = last.current_snapshot().snapshot_id  # type: ignore[union-attr]
        last.maintenance.expire_snapshots().by_ids([each for each in ids if each != current]).commit()

    @invariant()
    def readers_see_the_model(self) -> None:
        if hasattr(self, "run"):
            wanted = [{name: row.get(id_) for id_, name in self.known.items()} for row in self.model.values()]
            assert sorted((sorted(row.items()) for row in self.run.rows()), key=repr) == sorted(
                (sorted(row.items()) for row in wanted), key=repr
            )

    def carry(self, run: Driven, changes: list[tuple[int, str | None, bool]], point: str | None) -> None:
        names = [column.name for column in self.columns]
        upserts = [dict.fromkeys(names, text) | {"id": key} for key, text, is_delete in changes if not is_delete]
        deletes = [
            dict.fromkeys(names) | {"id": key} for key, _, is_delete in changes if is_delete and key in self.model
        ]
        before = run.progress.time
        try:
            with dying_at(point):
                run.mirror(upserts, deletes, self.columns)
        except Crash:
            self.run = self.driven.run()
            if self.driven.target_time() == before:
                return
        for row in deletes:
            del self.model[row["id"]]
        ids = {column.name: column.id for column in self.columns}
        self.model |= {row["id"]: {ids[name]: value for name, value in row.items()} for row in upserts}
        self.known |= {column.id: column.name for column in self.columns}


TestTargets = pytest.mark.slow(TargetMachine.TestCase)
TestTargets.settings = explore(40, steps=14)
