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
    _waiting: Report | None = None
    _recorded_s: float | None = None
    _last_error: str = ""  # of what was recorded

    def add(self, deployment: Deployment, whole: Report, *, clock: Clock) -> None:
        """Take the report of one round; record it with those before, if that is due."""
        report, before = whole.collections[self.name], self._waiting
        if report.outcome is Outcome.SKIPPED and report.error is None:
            return
        if before is not None:
            summed = _add(before.collections[self.name], report)
            whole = replace(whole, started_at=before.started_at, collections={self.name: summed})
        self._waiting = whole
        error = "" if report.error is None else report.error.kind
        is_due = self._recorded_s is None or time.monotonic() - self._recorded_s >= EVERY_S
        if is_due or error != self._last_error:
            self._last_error = error
            self.flush(deployment, clock=clock)

    def flush(self, deployment: Deployment, *, clock: Clock) -> None:
        """Record what waits."""
        if self._waiting is not None:
            record_run(deployment, self._waiting, clock=clock)
            self._waiting, self._recorded_s = None, time.monotonic()


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
