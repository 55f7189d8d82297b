"""Two collections of one source: ``copy`` follows its changes, and must be what its ``twin``, that compares all, is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.support.dying import surviving
from tests.support.exploration import stretch
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile import reconciliation
from tidemark.collections.reconcile.pinned_snapshot import Pinned, pin_snapshot
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.reconcile.strategy import Method
from tidemark.errors import GuardRefused, SchemaMismatch
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.report import FALLBACK, FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.report import CollectionReport

GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}
FAIL_POINTS = (*reconciliation.FAIL_POINTS, *publisher.FAIL_POINTS)


class Twins:
    """The collections; a subclass has the source, and sets ``home`` and ``spark`` before it declares them."""

    home: Home
    spark: SparkSession
    dies_at: str | None = None  # the point of the next run of each where it dies, and is run again

    def declare(self, name: str, source: dict[str, Any], declared: dict[str, Any]) -> None:
        self.source, self.names = source, {which: f"{which}_{name}" for which in ("copy", "twin")}
        self.declared: dict[str, Any] = {"key": ["k"], "guards": GUARDS, **declared}
        self.home.apply(*(self.declaration(which) for which in self.names))

    def declaration(self, which: str, **more: Any) -> Declaration:
        declared = {**self.declared, **more}
        source = {**self.source, **declared.pop("source", {})}
        return self.home.declaration(self.names[which], source=source, **declared)

    def wanted(self) -> Counter[Any]:
        """Return the rows of the source."""
        raise NotImplementedError

    def reconciliation(self, which: str = "copy", **declared: Any) -> Reconciliation:
        self.home.clock.step(10)
        return Reconciliation(
            spark=self.spark,
            settings=self.home.settings,
            shards=self.home.shards,
            shard=self.home.shard(self.names[which]),
            declaration=self.declaration(which, **declared),
            data_interval=None,
            overrides=Overrides(),
            clock=self.home.clock,
            is_full=which == "twin",
        )

    def run(self, which: str = "copy", **declared: Any) -> CollectionReport:
        return self.reconciliation(which, **declared).run(Writer.join(self.home.shard(self.names[which]), 1))

    def stored(self, which: str = "copy") -> Counter[Any]:
        return Counter((row["k"], row["v"]) for row in self.home.rows(self.names[which]))

    def log(self, which: str) -> Counter[Any]:
        """Return the change log without its times, which those of another collection do not equal."""
        head = self.home.shard(self.names[which]).load()
        assert head.updates is not None
        found = head.table.scan(snapshot_id=head.updates.snapshot_id).to_arrow().to_pylist()
        return Counter((row["k"], row["v"], row["_diff"]) for row in found)

    def pinned(self, which: str = "copy") -> Pinned:
        shard = self.home.shard(self.names[which])
        return pin_snapshot(self.spark, shard, shard.load(), self.declaration(which).key)

    def check(self, context: object) -> None:
        """Assert that contents, change log and digest of both collections are the same."""
        assert self.stored("copy") == self.stored("twin"), context
        assert self.log("copy") == self.log("twin"), context
        digests = [self.pinned(which).digest for which in self.names]
        assert digests[0] is not None, context
        assert digests[1] is not None, context
        assert len(digests[0].differing(digests[1])) == 0, context
        assert digests[0].row_count == digests[1].row_count, context

    # -- what others do to the collections ----------------------------------------------------------------------------

    def compact_collections(self) -> None:
        """Rewrite the files of both, as maintenance does."""
        for name in self.names.values():
            compact(Writer.join(self.home.shard(name), 1), policy=CompactionPolicy(min_small_files=2))

    def append_elsewhere(self, *rows: tuple[int | None, str]) -> None:
        """Add rows to both with another engine."""
        for name in self.names.values():
            table = self.home.shard(name).load().table
            listed = [{"k": key, "v": value, "_time": 0, "_diff": 1} for key, value in rows]
            table.append(pa.Table.from_pylist(listed, schema=arrow_schema(table)))

    # -- what they become --------------------------------------------------------------------------------------------

    def live_through(
        self, data: st.DataObject, happenings: Sequence[Callable[[Any, st.DataObject], None]], *, rounds: int
    ) -> Counter[str]:
        """Let some of the ``happenings`` come about in each round, and compare the collections then.

        Each happening comes about once before any does again. Returns the strategies of ``copy``, and how often it had
        them.
        """
        strategies, left = Counter[str](), list[Any]()
        for _ in range(stretch(rounds)):
            left = left or list(data.draw(st.permutations(happenings), label="order"))
            number = data.draw(st.sampled_from([2, 1, 3]), label="number")
            happened, left = left[:number], left[number:]
            for happening in happened:
                happening(self, data)
            strategies[self.compare([each.__name__ for each in happened])] += 1
        return strategies

    def compare(self, context: object) -> str:
        """Run both, look at what they did and left, and return the strategy of ``copy``; both may have refused to run.

        They refuse duplicate keys, and columns that are not those of the collection.
        """
        copy, twin = map(self._try, self.names)
        self.dies_at = None
        self.check(context)
        if isinstance(copy, Exception) or isinstance(twin, Exception):
            assert type(copy) is type(twin), context
            return type(copy).__name__
        found = [(each.inserted, each.retracted, each.rows_source) for each in (copy, twin)]
        assert found[0] == found[1], context
        assert self.stored() == self.wanted(), context
        assert copy.strategy == Method.LOAD or {FALLBACK, FILES} & copy.details.keys(), context
        assert twin.strategy != Method.CHANGED_FILES
        return copy.strategy

    def _try(self, which: str) -> CollectionReport | Exception:
        try:
            return surviving(lambda: self.run(which), self.dies_at)[0]
        except (GuardRefused, SchemaMismatch) as refusal:
            return refusal


# -- what happens, whatever the source ---------------------------------------------------------------------------------


def write_elsewhere(twins: Twins, data: st.DataObject) -> None:
    twins.append_elsewhere((data.draw(st.integers(0, 19)), "foreign"))


def compact_collections(twins: Twins, data: st.DataObject) -> None:
    twins.compact_collections()


def die(twins: Twins, data: st.DataObject) -> None:
    twins.dies_at = data.draw(st.sampled_from(FAIL_POINTS), label="point")
