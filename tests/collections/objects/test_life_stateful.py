"""Collections are applied, appended to, paused, renamed, dropped and made anew in any order, by processes that may die.

Against a dict: each collection has the rows that were acknowledged to it since it was made, whatever it is called and
wherever the truth of the catalog is; so has each dropped one, until maintenance removes it.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.collections.objects.test_drop import append, ids_in
from tests.conftest import settings_in
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.exploration import explore
from tests.support.homes import MIGRATE, ROLLBACK, Home
from tidemark.collections.apply import execute
from tidemark.collections.maintenance import dropped_tables
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.objects import drop as drop_steps
from tidemark.collections.objects import rename
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.errors import Dropped, Paused, UnknownCollection, UsageError
from tidemark.iceberg.maintenance import removal
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shards import DROPPED

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b", "c"])
LATER_MS = 10**15


class ObjectMachine(RuleBasedStateMachine):
    """``live`` has the rows by name, ``gone`` those of dropped tables, ``without_table`` is renamed half-way."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="tidemark-life-")
        self.place = Home(settings_in(Path(self.folder.name)))
        self.live: dict[str, set[int]] = {}
        self.gone: dict[str, set[int]] = {}
        self.half_made: dict[str, set[int]] = {}  # by an apply that died before it registered them
        self.paused: set[str] = set()
        self.without_table: set[str] = set()
        self.next_id = self.next_drop = 0
        self.place.open(ROLLBACK)

    def teardown(self) -> None:
        self.settle()
        assert self.place.shards.names() == sorted({**self.live, **self.half_made})
        assert self.place.shards.names(DROPPED) == sorted(self.gone)
        self.agrees()
        self.folder.cleanup()

    def settle(self) -> None:
        """Complete, as an apply does, what processes left that died."""
        drop_steps.finish_drops(self.place.shards, self.place.deployment, clock=self.place.clock)
        rename.finish_renames(self.place.shards, self.place.deployment)
        self.without_table.clear()

    def declare(self, name: str, more: str = "", point: str = "") -> None:
        text = f'version: 1\ncollections:\n  {name}: {{kind: append-only, schema: "id bigint, name string"{more}}}\n'
        with dying_at(point):
            self.place.declare(text)
        self.without_table.clear()

    def drop_now(self, name: str, point: str = "") -> None:
        with dying_at(point):
            plans = plan_drop(self.place.shards, self.place.deployment, [name], clock=self.place.clock)
            drop(self.place.shards, self.place.deployment, plans, clock=self.place.clock)

    def note_drop(self, name: str) -> None:
        self.next_drop += 1
        self.gone[f"{name}_{self.next_drop}"] = self.live.pop(name)
        self.paused.discard(name)

    @rule(name=NAMES, point=st.sampled_from(["", *execute.FAIL_POINTS]))
    def apply(self, name: str, point: str) -> None:
        try:
            self.declare(name, point=point)
        except Crash:
            if point != "apply.registered":
                if point != "apply.planned" and name not in self.live:
                    self.half_made.setdefault(name, set())
                return
        self.live.setdefault(name, self.half_made.pop(name, set()))

    @rule(name=NAMES)
    def append(self, name: str) -> None:
        number = self.next_id
        self.next_id += 1
        try:
            append(Home(self.place.settings), number, number + 1, name=name)
        except Paused:
            assert name in self.paused
        except (UnknownCollection, Dropped):
            assert name not in self.live.keys() | self.half_made or name in self.without_table
        else:
            assert name not in self.paused
            rows = self.live if name in self.live else self.half_made  # a table that nobody declared takes all rows
            rows[name].add(number)

    @rule(name=NAMES, again=st.booleans(), point=st.sampled_from(["publish.before-commit", "publish.after-commit"]))
    def append_during_a_drop(self, name: str, point: str, *, again: bool) -> None:
        if name not in self.live or name in self.paused | self.without_table:
            return
        number = self.next_id
        self.next_id += 1

        def drop_meanwhile() -> None:
            self.drop_now(name)
            if again:
                self.declare(name)

        acknowledged = False
        with interrupted_at(point, drop_meanwhile), suppress(Dropped):
            append(Home(self.place.settings), number, number + 1, name=name)
            acknowledged = True
        self.note_drop(name)
        dropped = f"{name}_{self.next_drop}"
        if acknowledged or number in ids_in(self.place, dropped):  # it may have landed before the drop
            self.gone[dropped].add(number)
        if again:
            self.live[name] = set()

    @rule(name=NAMES, pauses=st.booleans())
    def pause_or_resume(self, name: str, *, pauses: bool) -> None:
        objects = self.place.deployment.objects
        change = objects.pause if pauses else objects.resume
        try:
            change([name])
        except UsageError:
            assert name not in self.live
            return
        assert name in self.live
        (self.paused.add if pauses else self.paused.discard)(name)

    @rule(name=NAMES, point=st.sampled_from(["", *drop_steps.FAIL_POINTS]))
    def drop(self, name: str, point: str) -> None:
        try:
            self.drop_now(name, point)
        except UsageError:
            assert name not in self.live
            return
        except Crash:
            pass
        if name in self.live:
            self.note_drop(name)
        self.without_table.clear()

    @rule(
        old=NAMES,
        new=NAMES,
        point=st.sampled_from(["", "apply.before-register", "apply.registered", *rename.FAIL_POINTS]),
    )
    def rename(self, old: str, new: str, point: str) -> None:
        if old not in self.live or new in self.live.keys() | self.half_made:
            return
        self.settle()
        try:
            self.declare(new, f", renamed_from: {old}", point)
        except Crash:
            if point == "apply.before-register":
                return
            if point != "rename.renamed":
                self.without_table.add(new)
        self.live[new] = self.live.pop(old)
        if old in self.paused:
            self.paused ^= {old, new}

    @rule(direction=st.sampled_from([MIGRATE, ROLLBACK]))
    def move_the_catalog(self, direction: object) -> None:
        self.place.open(direction)  # type: ignore[arg-type]

    @rule(point=st.sampled_from(["", "", *removal.FAIL_POINTS, *dropped_tables.FAIL_POINTS]))
    def remove(self, point: str) -> None:
        for name in self.live.keys() - self.without_table:
            remove_orphans(self.place.shard(name), older_than_ms=LATER_MS)
        try:
            with dying_at(point):
                report = remove_dropped(self.place.shards, self.place.deployment, clock=self.place.clock, grace_ms=0)
        except Crash:
            report = remove_dropped(self.place.shards, self.place.deployment, clock=self.place.clock, grace_ms=0)
        assert report.outcome == "ok", report.to_json()
        self.gone.clear()

    @invariant()
    def agrees(self) -> None:
        assert set(self.place.registry.read().declarations) == set(self.live)
        assert set(self.place.deployment.objects.read()) == self.paused
        for name in self.live.keys() - self.without_table:
            assert set(self.place.ids(name)) == self.live[name], name
        for name in self.place.shards.names(DROPPED):
            assert set(ids_in(self.place, name)) == self.gone[name], name


TestObjects = ObjectMachine.TestCase
TestObjects.settings = explore(10, steps=15)
