"""What one run says about an object: its new status, and its measures. Pure rules over the report of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidemark.collections.deployment import CatalogObject
from tidemark.collections.objects.standing import Standing
from tidemark.errors import Dropped
from tidemark.exit_codes import ExitCode
from tidemark.interval import time_text
from tidemark.report import CollectionReport, ErrorReport, Outcome

# The operations that carry rows into an object, or out of it: whether they succeed, is the status of the object. Others
# (compact, persist, maintain, …) can fail while rows come in, and succeed while none do: those are measured only.
CARRYING: Final = frozenset({"reconcile", "append", "ingest", "flush", "replay", "retry", "sink"})
SAYS_NOTHING: Final = frozenset(
    {ExitCode.USAGE, ExitCode.FENCED}
)  # about the object: another caller, or deployment, goes on


class Status(StrEnum):
    """How an object is; of objects that never ran nothing is stored."""

    STARTING = "starting"  # resumed: the next run says more
    RUNNING = "running"
    STALLED = "stalled"  # the last run failed; the next one tries again
    SUSPENDED = "suspended"  # runs leave the object out for a while
    PAUSED = "paused"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A status that an object may have from now on, with the reason; ``details`` are the hints and facts about it."""

    status: Status
    error: str | None = None
    hints: tuple[str, ...] = ()
    namespaced: dict[str, str] = field(default_factory=dict)

    @property
    def details(self) -> str | None:
        """JSON text as in the histories of Materialize; None if there is nothing to say.

        Source: reference, collections_catalog_storage §4.6.
        """
        hints = {"hints": sorted(self.hints)} if self.hints else {}
        namespaced = {"namespaced": self.namespaced} if self.namespaced else {}
        return json.dumps(hints | namespaced, sort_keys=True, ensure_ascii=False) if hints or namespaced else None


def status_after(operation: str, result: CollectionReport, standing: Standing | None = None) -> StatusChange | None:
    """Return the status of an object after a run; None: as before. ``standing`` is why it does not run from now on."""
    if standing is not None:
        return resting(standing, hint=result.error.hint if result.error else "")
    if operation not in CARRYING:
        return None
    if result.error is not None:
        says_nothing = result.error.exit_code in SAYS_NOTHING or _is_of_another(result)
        return None if says_nothing else stalled(operation, result.error)
    return None if result.outcome is Outcome.SKIPPED else StatusChange(status=Status.RUNNING)


def resting(standing: Standing, *, hint: str = "") -> StatusChange:
    """Return the status of an object that somebody paused, or that is suspended; ``hint`` says what to do."""
    namespaced = {"who": standing.who} if standing.who else {}
    if standing.retry_at_ms is not None:
        namespaced |= {"attempts": str(standing.attempts), "retry_at": time_text(standing.retry_at_ms)}
    return StatusChange(
        status=Status(standing.state.value),
        error=": ".join(part for part in (standing.error, standing.reason) if part) or None,
        hints=(hint,) if hint else (),
        namespaced=namespaced,
    )


def stalled(operation: str, error: ErrorReport) -> StatusChange:
    """Return the status of an object whose run failed, with the reason and what to do."""
    return StatusChange(
        status=Status.STALLED,
        error=f"{error.kind}: {error.message}",
        hints=(error.hint,) if error.hint else (),
        namespaced={"operation": operation, "exit_code": str(int(error.exit_code))},
    )


def statistics_of(operation: str, name: str, known: CatalogObject, result: CollectionReport) -> dict[str, Any] | None:
    """Return the measures of a run over one object, without time and deployment; None if the object was left out."""
    if _is_of_another(result) or (result.outcome is Outcome.SKIPPED and result.error is None):
        return None
    sequencers = result.details.get("sequencers", {})
    read_bytes = [measures["read_bytes"] for measures in sequencers.values() if "read_bytes" in measures]
    lags = {number: measures["lag_ms"] for number, measures in sequencers.items() if "lag_ms" in measures}
    return {
        "object": name,
        "object_id": known.id,
        "kind": known.kind.value,
        "operation": operation,
        "outcome": result.outcome.value,
        "error": result.error.kind if result.error else None,
        "rows": result.inserted + result.retracted,
        "bytes": result.details.get("bytes", sum(read_bytes) if read_bytes else None),
        "lag_ms": lag_of(result.details),
        "seconds": result.seconds,
        "sequencer_lags": json.dumps(lags, sort_keys=True) if lags else None,  # an object: ms by sequencer
    }


def lag_of(details: Mapping[str, Any]) -> int | None:
    """Return how long the oldest of what a run left waits, in ms, as the details of its report say; None: not known."""
    lags = [measures["lag_ms"] for measures in details.get("sequencers", {}).values() if "lag_ms" in measures]
    lag_ms: int | None = details.get("lag_ms", max(lags, default=None))
    return lag_ms


def _is_of_another(result: CollectionReport) -> bool:
    """Tell whether the run was of an object that was dropped meanwhile: what has the name now did nothing."""
    return result.error is not None and result.error.kind == Dropped.__name__
