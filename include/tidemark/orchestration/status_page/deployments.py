"""The deployments of an installation, and whether this one may be promoted."""

from __future__ import annotations

from typing import Any

from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.collections.system.findings import list_standing_by, read_findings
from tidemark.deployment.readiness import Look, find_leading_state
from tidemark.orchestration.status_page.observed import Observer


def show_deployments(observer: Observer, *, now_ms: int) -> dict[str, Any]:
    """Return who leads, how far this deployment is, and of each object why it is not caught up yet.

    While the catalog is opened or moved, or cannot be read, ``obstacle`` says so, and ``state`` is None if only the
    catalog could tell it.
    """
    seen, stored, own = observer.look(), look_at_mode(observer.catalog.ends), observer.settings.generation
    contents = seen.contents
    shown: dict[str, Any] = {
        "generation": own,
        "leader": stored.generation,
        "leader_mode": stored.mode.value,
        "since_ms": stored.since_ms or None,
        "who": stored.who,
        "why": stored.why,
        "deployments": [
            {"generation": key.generation, **value.model_dump(mode="json", exclude={"version"})}
            for key, value in contents.deployments
        ],
        "standing_by": [
            {"generation": generation, "last_run_ms": last_run_ms}
            for generation, last_run_ms in list_standing_by(observer.settings, leader=stored.generation).items()
        ],
        "obstacle": contents.obstacle.to_json() if contents.obstacle else None,
        "ready": False,
        "objects": [],
    }
    if stored.generation >= own:  # it leads, or is about to, or did so once: no object is judged
        return shown | {"state": find_leading_state(observer.settings, stored).value}
    if contents.obstacle is not None:
        return shown | {"state": None}
    look = Look(
        generation=own,
        stored=stored,
        applied=contents.applied,
        objects=contents.objects,
        states=seen.states,
        findings=read_findings(observer.settings),
        standings=contents.standings,
    )
    found = look.judge(now_ms=now_ms)
    told = found.to_json()
    return shown | {"state": told["state"], "ready": found.is_ready, "objects": told["objects"]}
