"""The rounds of one object on the worker that holds it: isolated, under a lease, recorded, and again after a pause.

A round that fails for a reason that passes by itself, as an outage, is tried again within seconds. Another failure
suspends the object, as it does after a scheduled run; the controller then drops the dataflow until its time has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import Named, run_one_by_one, skipped
from tidemark.collections.system.suspension import settle
from tidemark.exit_codes import PASSING, ExitCode
from tidemark.frontier import parse_frontier
from tidemark.report import CollectionReport
from tidemark.retry import back_off_s
from tidemark.storage.dataflows.dataflow import REST_S, News, Surroundings
from tidemark.storage.dataflows.recording import Recording
from tidemark.storage.definitions import number_of
from tidemark.storage.sharing import choose_holder, place_of

LONGEST_PAUSE_S: Final = 30.0
_PASSES: Final = PASSING | {ExitCode.FENCED}  # a fence of this generation: the next round follows


@dataclass(slots=True)
class Rounds:
    """The rounds of one start of a dataflow on one worker."""

    around: Surroundings
    id: str
    started_at: int
    operation: str
    item: Named
    shard: str  # whose files are read
    every_s: float
    news: News = field(default_factory=News)
    deployment: Deployment = field(init=False)
    _recording: Recording = field(init=False)
    _due_s: float = 0.0
    _failures: int = 0  # in a row

    def __post_init__(self) -> None:
        self.deployment = self.around.connect()
        self._recording = Recording(self.operation, self.item.name)

    @property
    def members(self) -> tuple[int, ...]:
        """The live workers that run this start of the dataflow."""
        return self.around.seen.members(self.id, self.started_at)

    @property
    def may_run(self) -> bool:
        """Whether anybody may run a round now: the deployment leads, and this worker's own word is on the board."""
        return self.around.may_write and self.around.index in self.members

    @property
    def is_holder(self) -> bool:
        """Whether this worker leads the rounds."""
        members = self.members
        return bool(members) and choose_holder(self.id, members) == self.around.index

    def follow(self) -> None:
        """Take over how far the holder says that the object has come: nothing of this worker's is missing below."""
        seen = self.around.seen
        if members := seen.members(self.id, self.started_at):
            holder = seen.board[place_of(choose_holder(self.id, members))]
            upper = parse_frontier(str(holder.value["dataflows"][self.id]["upper"]))
            self.news = replace(self.news, upper=max(self.news.upper, upper))

    def reconnect(self) -> None:
        """Follow the present leader of the catalog: another one has fenced what followed the one before, for good."""
        self.deployment = self.around.connect()

    def close(self) -> None:
        """Record what is not recorded yet."""
        with self.around.rounds:
            self._recording.flush(self.deployment, clock=self.around.clock)

    def lead(self, work: Callable[[], CollectionReport]) -> float:
        """Run a round with ``work`` if one is due; return in how many seconds to come again."""
        began_s = time.monotonic()
        if began_s < self._due_s:
            return min(self._due_s - began_s, REST_S)
        with self.around.rounds:
            if not (self.may_run and self.is_holder):  # any more
                return 0.0
            report = self._run(work)
        behind_ms = max(0, int(1000 * (time.monotonic() - began_s - self.every_s)))
        self.news = self.news.after(report, now_ms=self.around.clock.now_ms(), behind_ms=behind_ms)
        self._failures = 0 if report.error is None else self._failures + 1
        self._due_s = began_s + self._pause_s(report)
        return 0.0

    def _pause_s(self, report: CollectionReport) -> float:
        """Return how long after the begin of a round the next one begins: at once while more waits than one takes."""
        if report.error is not None:
            return back_off_s(self._failures, longest_s=LONGEST_PAUSE_S)
        return 0.0 if report.details.get("waiting") else self.every_s

    def _run(self, work: Callable[[], CollectionReport]) -> CollectionReport:
        clock = self.around.clock
        whole, _ = run_one_by_one(
            self.operation,
            [self.item],
            lambda _item: work(),
            deployment=self.deployment,
            clock=clock,
            started_at=clock.now_ms(),
            shard_of=lambda _item: self.shard,
        )
        report = whole.collections[self.item.name]
        if report.object_id not in {None, number_of(self.id)}:  # the controller drops this dataflow in a moment
            return skipped(f"{self.item.name!r} was made anew")
        error = report.error
        if error is not None:
            self.reconnect()
        if error is None or error.exit_code not in _PASSES:
            whole = settle(self.deployment, whole)
        self._recording.add(self.deployment, whole, clock=clock)
        return whole.collections[self.item.name]
