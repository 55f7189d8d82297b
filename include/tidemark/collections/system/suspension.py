"""Suspends ingestions and sinks whose run failed, and ends the suspension of those that ran; at the end of a run.

The catalog decides whether: never an object that somebody paused or dropped meanwhile. Until its time has come, the
ingests, or runs of sinks, leave a suspended object out (``collections/isolation.py``); then a run goes on from what is
stored, as every run does. Whatever else is done with the object goes on: a persist may make the room that it lacks.
What is reconciled, or appended by interval, is not suspended: the scheduler's retries try these again.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.isolation import FOLLOWING, only_logging
from tidemark.collections.mode import read_mode
from tidemark.errors import Dropped
from tidemark.exit_codes import ExitCode
from tidemark.report import SUSPENDED, CollectionReport, Outcome, Report

log = logging.getLogger(__name__)


def settle(deployment: Deployment, report: Report) -> Report:
    """Suspend what failed in a run, let what succeeded run on, and return the report, which says so.

    What cannot be stored is logged, and the next run tries the object again at once. A read-only deployment suspends
    nothing: it leaves the objects to the deployment that leads.
    """
    if report.operation not in FOLLOWING or not report.collections:
        return report
    settled = dict(report.collections)
    with only_logging(f"suspensions after the run {report.operation!r}"):
        if read_mode(deployment) is Mode.READ_ONLY:
            return report
        resting = deployment.objects.read()
        for name, result in report.collections.items():
            if result.error is not None:
                settled[name] = _suspend(deployment, name, result)
            elif name in resting and result.outcome is not Outcome.SKIPPED and result.object_id is not None:
                deployment.objects.recover(name, result.object_id)
    return replace(report, collections=settled)


def _suspend(deployment: Deployment, name: str, result: CollectionReport) -> CollectionReport:
    error = result.error
    if error is None or result.object_id is None:  # not an object of the catalog, as the run found it
        return result
    if error.exit_code in {ExitCode.FENCED, ExitCode.TRANSIENT}:  # another process goes on with it, or this one again
        return result
    if error.kind == Dropped.__name__:  # what is made anew under the name did not fail
        return result
    standing = deployment.objects.suspend(name, result.object_id, error)
    if standing is None:  # paused or dropped meanwhile
        return result
    log.warning("%s is %s", name, standing)
    return replace(result, details={**result.details, SUSPENDED: str(standing)})
