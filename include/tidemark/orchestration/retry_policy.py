"""Decides how an Airflow task ends after an error or after a Spark application (design §11.2).

If one collection fails, the task that did the work succeeds with the report, and the light mapped task of that
collection fails, so that the grid shows which one. The task that did the work fails only if the whole run failed, or if
trying again may help, and loses nothing: asset events come from the report of the last try. A later try of an append, a
flush or a reconcile tells what an earlier one published (``TOLD_ANEW``). One of an ingest, a persist, a maintenance or
sinks finds nothing new where the earlier one did its work, so such a task is tried again only if no collection was
done; else the run goes on, and the next scheduled run tries the collection that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowFailException

from tidemark import errors
from tidemark.errors import FencedByEpoch, NotLed, StaleState, TidemarkError, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.report import SUSPENDED, Outcome
from tidemark.write_buffer import errors as buffer_errors

TRY_AGAIN = (Unreachable, NotLed, StaleState, FencedByEpoch)  # the most specific first
# Operations of which a later try tells what an earlier one published: ranges that are there, or frontiers.
TOLD_ANEW: Final = frozenset({"append", "flush", "reconcile"})
FENCED_DELAY = timedelta(seconds=5)
NOT_LED_DELAY = timedelta(minutes=1)  # what a migration of a small catalog takes from its fence to its end
RETRIES: Final[dict[str, Any]] = {
    "retries": 5,  # which at one minute each outlast the migration of a large catalog, with a JVM's start
    "retry_delay": timedelta(seconds=15),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}  # for default_args
# For tasks that only show the result of another task: their own failures are final, but their worker may be lost.
LIGHT_RETRIES, LIGHT_RETRY_DELAY = 2, timedelta(seconds=5)


class ApplicationLost(StaleState):
    """The application ended without a report: killed, out of memory, or never started."""


# Consulted in the worker with the real exception; AirflowFailException never comes here, it is final.
RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception="tidemark.errors.FencedByEpoch",
            action=RetryAction.RETRY,
            retry_delay=FENCED_DELAY,
            reason="a newer attempt took over: start over and join its epoch",
        ),
        RetryRule(
            exception="tidemark.errors.NotLed",
            action=RetryAction.RETRY,
            retry_delay=NOT_LED_DELAY,
            reason="the catalog is being migrated, rolled back or opened: join it when that is done",
        ),
        RetryRule(
            exception=["tidemark.errors.Unreachable", "tidemark.errors.StaleState"],
            action=RetryAction.RETRY,  # with the task's own backoff
            reason="transient",
        ),
        RetryRule(
            exception="tidemark.errors.TidemarkError", action=RetryAction.FAIL, reason="trying again cannot help"
        ),
    ]
)


def as_task_failure(error: TidemarkError, *final: type[TidemarkError]) -> Exception:
    """Return ``error`` if trying again may help, else (or if it is ``final``) a failure that ends the task at once."""
    if isinstance(error, TRY_AGAIN) and not isinstance(error, final):
        return error
    hint = f" ({error.hint})" if error.hint else ""
    return AirflowFailException(f"{error.kind}, exit code {int(error.exit_code)}: {error}{hint}")


@contextmanager
def ending_task(*final: type[TidemarkError]) -> Iterator[None]:
    """Raise what ``as_task_failure`` makes of a TidemarkError in the block: the end of the task, or another try."""
    try:
        yield
    except TidemarkError as error:
        raise as_task_failure(error, *final) from error


def application_failure(
    code: int,
    report: Mapping[str, Any] | None,
    *,
    may_retry: bool,
    others_wait: bool = False,
    fences_on_retry: bool = False,
) -> Exception | None:
    """Return the exception with which the task must end; None if the task succeeds with its report.

    The task succeeds if nothing failed, or if only single collections failed and trying again will not help, comes by
    itself, or would lose what others achieved: see above. A suspended collection is left out until a later run, and one
    at its hard limit waits for another DAG, so that a run goes on without them.

    ``code`` and ``report`` (design §11.3) are the application's. ``may_retry``: whether the task has tries left.
    ``others_wait``: whether a later task of the run works on other collections, which would wait for the next try.
    ``fences_on_retry``: the next try fences a surviving application; only the message uses this.
    """
    if report is None:
        return _without_report(code, fences_on_retry=fences_on_retry)
    if report["error"]:
        return _reported_failure(report["error"])
    if not may_retry or _goes_on(report, others_wait=others_wait):
        return None
    for name, collection in report["collections"].items():
        if collection["error"] and SUSPENDED not in collection.get("details", {}):
            failure = _reported_failure(collection["error"], where=name)
            if isinstance(failure, TRY_AGAIN):
                return failure
    return None


def _goes_on(report: Mapping[str, Any], *, others_wait: bool) -> bool:
    """Tell whether another try would lose what this one did, or keep other collections waiting."""
    if report["operation"] in TOLD_ANEW:
        return False
    results = report["collections"].values()
    return others_wait or any(not each["error"] and each["outcome"] != Outcome.SKIPPED for each in results)


def _without_report(code: int, *, fences_on_retry: bool) -> Exception:
    """Return the failure of an application that ended without a report."""
    if code == ExitCode.OK:
        return AirflowFailException("the application succeeded without a report: is it one of spark_apps/?")
    if code == ExitCode.USAGE:
        return AirflowFailException("the application did not accept its arguments (exit code 64): see the log above")
    if code == ExitCode.BUG:
        return AirflowFailException(
            "the application failed unexpectedly (exit code 70): its traceback is in the log above"
        )
    and_then = "; a new try raises the token first" if fences_on_retry else ""
    return ApplicationLost(
        f"the application ended with exit code {code} and left no report",
        hint=f"it was killed, ran out of memory, or its JVM did not start{and_then}",
    )


def _reported_failure(error: Mapping[str, Any], where: str = "") -> Exception:
    """Return the task failure for an error of a report; ``where`` names the collection that failed."""
    error_type = getattr(errors, error["kind"], None) or getattr(buffer_errors, error["kind"], TidemarkError)
    message = f"{where + ': ' if where else ''}{error['kind']}: {error['message']}"
    hint = error.get("hint", "")
    for family in TRY_AGAIN:  # a family can be built from one sentence, unlike some of its members
        if isinstance(error_type, type) and issubclass(error_type, family):
            return family(message, hint=hint)
    return AirflowFailException(f"{message}{f' ({hint})' if hint else ''}")
