"""The dataflow of a sink: the worker that holds the sink carries what came, again and again.

Two workers that take themselves for the holder do no harm: each run claims the target anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.collections.deployment import AppliedSink
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome
from tidemark.sinks.run import run_sink
from tidemark.storage.commands import RunSinkDataflow
from tidemark.storage.dataflows.dataflow import CONTENTS, REST_S, News, Surroundings
from tidemark.storage.dataflows.rounds import Rounds
from tidemark.storage.definitions import sink_of

FULL_LOOK_S: Final = 600.0  # after which a run asks the target, even if nothing has come


@dataclass(slots=True)
class SinkDataflow:
    """The part of one worker in a sink: all of the sink, or nothing."""

    around: Surroundings
    start: RunSinkDataflow
    started_at: int
    _applied: AppliedSink = field(init=False)
    _shards: Shards = field(init=False)
    _rounds: Rounds = field(init=False)
    _seen: tuple[object, float] | None = None  # the state of the collection at the last run, and when that was

    def __post_init__(self) -> None:
        self._applied = sink_of(self.start.id, self.start.description.definition)
        self._shards = self.around.shards.beside()
        self._rounds = Rounds(
            self.around,
            self.start.id,
            self.started_at,
            operation="sink",
            item=self._applied,
            shard=self._applied.collection,
            every_s=(self._applied.declaration.every_ms or 0) / 1000,
        )

    @property
    def news(self) -> News:
        return self._rounds.news

    def close(self) -> None:
        """Record the last runs; each has claimed the target, and let go of it."""
        self._rounds.close()

    def step(self) -> float:
        """Carry what came, if this worker holds the sink and a run is due."""
        if self._rounds.may_run and self._rounds.is_holder:
            return self._rounds.lead(self._carry)
        self._rounds.follow()
        return REST_S

    def _carry(self) -> CollectionReport:
        """Run the sink, unless its collection has not changed since the last run."""
        state, now_s = self._shards.open(self._applied.collection).load().state, time.monotonic()
        present = state.upper, state.changed
        if self._seen is not None and self._seen[0] == present and now_s - self._seen[1] < FULL_LOOK_S:
            return CollectionReport(outcome=Outcome.UNCHANGED, upper=self.news.upper, details={CONTENTS: state.upper})
        report = run_sink(
            self._shards,
            self._applied,
            deployment=self._rounds.deployment,
            clock=self.around.clock,
            start_spark=self.around.start_spark,
        )
        if report.outcome is Outcome.SKIPPED:
            return report
        self._seen = present, now_s
        return replace(report, details={**report.details, CONTENTS: state.upper})
