"""Whether a deployment that stands by could do the leader's work now: rules over each object, and one state of all.

An object is judged by what the deployment's own runs found (``collections/system/findings.py``) and by the leader's
state. What is paused or suspended, and a sink that the leader itself leaves far behind, holds nobody up.

Source: reference, collections_catalog_storage §9.3 and §9.4. Different here: the state is derived and not stored, since
a deployment that stands by must not change the catalog that the leader owns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tidemark.catalog.items.kinds import DeploymentState
from tidemark.collections.deployment import StatusKind, StoredMode
from tidemark.collections.system.findings import Finding
from tidemark.frontier import Empty, Frontier, parse_frontier
from tidemark.interval import DAY_MS, duration_text

RUN_IT: Final = {
    StatusKind.COLLECTION: "let this deployment's `reconcile_collections` run, or `tidemark reconcile {name}`",
    StatusKind.INGESTION: "let this deployment's `ingest_write_buffer` run, or `tidemark buffer ingest {name}`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How far behind the leader an object may be, and for how long its runs must have gone well; in ms."""

    allowed_lag_ms: int = 5 * 60_000
    stable_ms: int = 60_000
    hopeless_ms: int = DAY_MS  # what is further behind under the leader itself holds nobody up
    outdated_ms: int = 2 * DAY_MS  # what was found before says nothing any more
    ahead_ms: int = 60_000  # what was found later than that after now has the time of a wrong clock


class Progress(StrEnum):
    """How far an object is."""

    CAUGHT_UP = "caught up"
    CATCHING_UP = "catching up"
    LEFT_OUT = "left out"  # holds no promotion up: the leader does not run it either


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One object, as the leader leaves it and as this deployment's last run found it."""

    name: str
    kind: StatusKind
    object_id: int
    definition: str = ""
    needs_no_run: str = ""  # why a deployment that stands by has nothing to try out with it
    damage: str = ""  # why this program cannot read or alter the table
    resting: str = ""  # since when and why no run takes it
    changed: Frontier = 0  # the upper that the last change of the contents left
    is_loaded: bool = False  # of a sink: whether its target has anything
    uncarried: int | None = None  # of a sink: when the first change came that its target lacks; None: it lacks none
    finding: Finding | None = None
    staged: int = 0  # batches and corrections of this deployment
    stale: int = 0  # corrections of these whose contents have changed since


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How far one object is, how late it would be, and why it is not caught up, or not looked at."""

    name: str
    kind: StatusKind
    progress: Progress
    lag_ms: int | None = None
    why: str = ""
    hint: str = ""
    staged: int = 0
    stale: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "state": self.progress.value,
            "lag_ms": self.lag_ms,
            "staged": self.staged,
            "stale": self.stale,
            "why": self.why,
            "hint": self.hint,
        }


def judge(watched: Watched, rules: Rules, *, now_ms: int) -> Judgement:
    """Return how far one object is."""
    judgement = Judgement(
        name=watched.name, kind=watched.kind, progress=Progress.CAUGHT_UP, staged=watched.staged, stale=watched.stale
    )
    if watched.damage:
        return replace(judgement, progress=Progress.CATCHING_UP, why=watched.damage)
    if watched.resting:
        return replace(judgement, progress=Progress.LEFT_OUT, why=watched.resting)
    if watched.kind is StatusKind.SINK:
        return _judge_sink(judgement, watched, rules, now_ms=now_ms)
    if watched.needs_no_run:
        return replace(judgement, why=watched.needs_no_run)
    return _judge_finding(judgement, watched, rules, now_ms=now_ms)


def _judge_sink(judgement: Judgement, watched: Watched, rules: Rules, *, now_ms: int) -> Judgement:
    """A sink goes on from where its target is; the leader alone carries until then."""
    if not watched.is_loaded:
        return replace(judgement, why="nothing was carried yet: the first run after the promotion loads the contents")
    lag_ms = 0 if watched.uncarried is None else max(0, now_ms - watched.uncarried)
    if lag_ms > rules.hopeless_ms:
        why = f"its target is {duration_text(lag_ms)} behind under the leader: a promotion makes that no worse"
        return replace(judgement, progress=Progress.LEFT_OUT, lag_ms=lag_ms, why=why)
    if lag_ms > rules.allowed_lag_ms:
        why = f"its target is {duration_text(lag_ms)} behind"
        hint = f"see why the leader's sink is late: `tidemark sink status {watched.name}`"
        return replace(judgement, progress=Progress.CATCHING_UP, lag_ms=lag_ms, why=why, hint=hint)
    return replace(judgement, lag_ms=lag_ms)


def _judge_finding(judgement: Judgement, watched: Watched, rules: Rules, *, now_ms: int) -> Judgement:
    found = watched.finding
    late = replace(judgement, progress=Progress.CATCHING_UP, hint=RUN_IT[watched.kind].format(name=watched.name))
    if found is None or found.object_id != watched.object_id or now_ms - found.found_ms > rules.outdated_ms:
        return replace(late, why="no run of this deployment has looked at it yet, or not for two days")
    if why := _why_outdated(watched, found, rules, now_ms=now_ms):
        return replace(late, why=why)
    if found.error:
        return replace(late, why=f"its last run failed: {found.error}", hint=found.hint or late.hint)
    lag_ms = _lag_ms(watched, found)
    # What was staged may be stale by then, as where both deployments run at the same hour: the flush reconciles it.
    if lag_ms > rules.allowed_lag_ms:
        why = f"the leader has changed it {duration_text(lag_ms)} after this deployment's last run over it"
        return replace(late, lag_ms=lag_ms, why=why)
    well_ms = 0 if found.well_since_ms is None else now_ms - found.well_since_ms
    if well_ms < rules.stable_ms:
        why = f"its runs go well for {duration_text(max(0, well_ms))} now: {duration_text(rules.stable_ms)} are wanted"
        return replace(late, lag_ms=lag_ms, why=why, hint="wait")
    return replace(judgement, lag_ms=lag_ms)


def _why_outdated(watched: Watched, found: Finding, rules: Rules, *, now_ms: int) -> str:
    """Return why what a run found tells nothing of the object as it is now; empty if it does."""
    ahead_ms = found.found_ms - now_ms
    if ahead_ms > rules.ahead_ms:
        ahead = duration_text(ahead_ms)
        return f"the clock of its last run was {ahead} ahead: what it found tells nothing, the next run tells"
    if found.definition != watched.definition:
        return "it was altered since this deployment's last run over it"
    return ""


def _lag_ms(watched: Watched, found: Finding) -> int:
    """Return by how much the leader's last change is later than this deployment's last run, which did not see it.

    Corrections are of the contents below an upper. An ingest has staged, or found published, all that had come by then:
    also what the leader has committed below the upper, whatever the leader's clock said.
    """
    has_seen = watched.changed <= parse_frontier(str(found.upper or 0))
    if has_seen or isinstance(watched.changed, Empty):
        return 0
    return max(0, watched.changed - found.found_ms)


def find_state(
    stored: StoredMode, generation: int, judgements: Iterable[Judgement], *, has_run: bool, is_promoting: bool
) -> DeploymentState:
    """Return the state of a deployment; ``stored`` is the mode of the one that leads, or that opened the catalog.

    ``has_run`` says that this deployment has looked at any object yet, ``is_promoting`` that a promotion of it has
    begun, and has not come to its end.
    """
    if stored.generation > generation:
        return DeploymentState.DEPOSED
    if stored.generation == generation:
        is_opened = bool(stored.led) and generation not in stored.led
        return DeploymentState.PROMOTING if is_opened or is_promoting else DeploymentState.IS_LEADER
    if all(each.progress is not Progress.CATCHING_UP for each in judgements):
        return DeploymentState.READY_TO_PROMOTE
    return DeploymentState.CATCHING_UP if has_run else DeploymentState.INITIALIZING
