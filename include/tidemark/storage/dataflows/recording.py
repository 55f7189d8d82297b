"""Records what many small rounds did to an object: once a minute, and at once when it fails or runs again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.system.recorder import record_run
from tidemark.report import CollectionReport, Outcome, Report

EVERY_S: Final = 60.0


@dataclass(slots=True)
class Recording:
    """The rounds of one object since they were recorded, as one run."""

    operation: str
    name: str
    _sum: CollectionReport | None = None
    _started_ms: int = 0
    _recorded_s: float | None = None
    _last_error: str = ""  # of what was recorded

    def add(self, deployment: Deployment, whole: Report, *, clock: Clock) -> None:
        """Take the report of one round; record it with those before, if that is due."""
        report = whole.collections[self.name]
        if report.outcome is Outcome.SKIPPED and report.error is None:
            return
        if self._sum is None:
            self._started_ms = whole.started_at
        self._sum = report if self._sum is None else _add(self._sum, report)
        error, now_s = "" if report.error is None else report.error.kind, time.monotonic()
        is_due = self._recorded_s is None or now_s - self._recorded_s >= EVERY_S
        if not is_due and error == self._last_error:
            return
        summed = replace(whole, started_at=self._started_ms, collections={self.name: self._sum})
        record_run(deployment, summed, clock=clock)
        self._sum, self._recorded_s, self._last_error = None, now_s, error


def _add(before: CollectionReport, after: CollectionReport) -> CollectionReport:
    """Return the report of two runs, one after the other: measures are added, levels are those of the later one."""
    has_done = {Outcome.APPENDED, Outcome.CARRIED}
    outcome = before.outcome if after.outcome is Outcome.UNCHANGED and before.outcome in has_done else after.outcome
    return replace(
        after,
        outcome=outcome,
        lower=before.lower,
        inserted=before.inserted + after.inserted,
        retracted=before.retracted + after.retracted,
        batches=before.batches + after.batches,
        seconds=before.seconds + after.seconds,
    )
