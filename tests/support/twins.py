"""Two collections of one source: ``copy`` follows its changes, and must be what its ``twin``, that compares all, is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.pinned_snapshot import Pinned, pin_snapshot
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.reconcile.strategy import Method
from tidemark.errors import GuardRefused
from tidemark.iceberg.commit.writer import Writer
from tidemark.report import FALLBACK, FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.report import CollectionReport

GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}


class Twins:
    """The collections; a subclass has the source, and sets ``home`` and ``spark`` before it declares them."""

    home: Home
    spark: SparkSession

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

    def live_through(
        self, data: st.DataObject, happenings: Sequence[Callable[[Any, st.DataObject], None]], *, rounds: int
    ) -> None:
        """Let one or two of the ``happenings`` come about in each round, and compare the collections then."""
        for _ in range(rounds):
            happened = data.draw(st.lists(st.sampled_from(happenings), min_size=1, max_size=2), label="happened")
            for happening in happened:
                happening(self, data)
            self.compare([each.__name__ for each in happened])

    def compare(self, context: object) -> None:
        """Run both, and look at what they did and left; both may have refused duplicate keys."""
        reports = [report for which in self.names if (report := self._try(which)) is not None]
        self.check(context)
        if not reports:
            return
        copy, twin = reports
        found = [(each.inserted, each.retracted, each.rows_source) for each in reports]
        assert found[0] == found[1], context
        assert self.stored() == self.wanted(), context
        assert copy.strategy == Method.LOAD or {FALLBACK, FILES} & copy.details.keys(), context
        assert twin.strategy != Method.CHANGED_FILES

    def _try(self, which: str) -> CollectionReport | None:
        try:
            return self.run(which)
        except GuardRefused:
            return None
