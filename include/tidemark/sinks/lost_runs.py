"""Says of runs that ended without a word that they failed: killed ones can neither suspend their sink nor record that.

A run holds a lease for its sink. The next run that finds a lease whose process is gone suspends the sink as that run
would have done, and goes on at once: so one kill costs no time, and from the second one in a row on the sink rests for
longer and longer. A run that succeeds ends the suspension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemark.clock import Clock
from tidemark.collections.deployment import AppliedSink, Deployment, Mode
from tidemark.collections.holds import moment_text
from tidemark.collections.isolation import find_resting, only_logging
from tidemark.collections.mode import read_mode
from tidemark.collections.system.recorder import record_standings
from tidemark.errors import RunLost
from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.leases.watching import end_lapsed
from tidemark.report import ErrorReport
from tidemark.sinks.turns import find_lost_runs

FAIL_POINTS = ("lost-runs.suspended",)


def note_lost_runs(deployment: Deployment, sinks: Sequence[AppliedSink], *, clock: Clock) -> Deployment:
    """Suspend the sinks with a run that was lost, and return the deployment that tries them once more now.

    Sinks at rest are left out, and their leases stay: their next run notes them. What cannot be stored is logged.
    """
    noted: list[str] = []
    with only_logging("runs of sinks that ended without a word"):
        lost = {each.name: found for each in sinks if (found := find_lost_runs(deployment.settings, each))}
        if not lost or read_mode(deployment) is Mode.READ_ONLY:
            return deployment
        resting = find_resting(deployment, clock, suspended=True)
        for applied in sinks:
            if applied.name in lost and applied.name not in resting:
                noted.append(applied.name)
                _note(deployment, applied, lost[applied.name])
        record_standings(deployment, noted, clock=clock)
    return replace(deployment, asked_for=deployment.asked_for.union(noted))


def _note(deployment: Deployment, applied: AppliedSink, leases: Sequence[Lease]) -> None:
    last = leases[-1]
    error = RunLost(
        f"the run that began {moment_text(last.began_ms)} in {last.writer} ended without a word: it was killed, or "
        "lost its machine"
    )
    deployment.objects.suspend(applied.name, applied.id, ErrorReport.of(error))
    fail_point("lost-runs.suspended")  # the next run finds the lease again, and counts it twice
    end_lapsed(deployment.settings, leases)
