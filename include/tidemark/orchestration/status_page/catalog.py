"""The system's own catalog: which back end is the truth, who leads, who is at work, and who changed what."""

from __future__ import annotations

from typing import Any

from tidemark.catalog.items.kinds import AuditEventValue
from tidemark.catalog.opening.truth import TruthHead
from tidemark.errors import CorruptState, Unreachable
from tidemark.iceberg.leases.table import read_leases
from tidemark.orchestration.status_page.observed import Observer
from tidemark.report import ErrorReport


def show_catalog(observer: Observer) -> dict[str, Any]:
    """Return the heads of both back ends, the leases, and the last events of the audit, the newest first."""
    ends, problems = observer.catalog.ends, []
    stash = ends.stash.head()
    persist = None
    try:
        persist = ends.persist.head()
    except (Unreachable, CorruptState) as error:
        problems.append(ErrorReport.of(error).to_json())
    truth = None if persist is None and stash.tombstone else observer.catalog.truth()
    leases, now_ms = read_leases(observer.settings)
    contents = observer.look().contents
    if contents.obstacle is not None:
        problems.append(contents.obstacle.to_json())
    return {
        "truth": "persist" if stash.tombstone else "stash",
        "tombstone": stash.tombstone,
        "stash_epoch": stash.epoch,
        "persist_epoch": persist.epoch if persist else None,
        "leader": _leader_of(truth),
        "problems": problems,
        "leases": [lease.to_json(now_ms=now_ms) for lease in leases],
        "audit": [{"id": key.id, **_event_of(event)} for key, event in contents.audit],
    }


def _leader_of(truth: TruthHead | None) -> dict[str, int | None] | None:
    if truth is None or not truth.is_led:
        return None
    return {"generation": truth.deployment_generation, "epoch": truth.epoch}


def _event_of(event: AuditEventValue) -> dict[str, Any]:
    return {
        "at_ms": event.occurred_at_ms,
        "who": event.who,
        "did": event.operation,
        "kind": event.subject_kind,
        "what": event.subject,
        "why": event.details.get("why", ""),
        "mode": event.details.get("mode"),
    }
