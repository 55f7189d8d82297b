"""Reads how far a deployment is on its way to lead, without a JVM and without one change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.catalog.items.kinds import DeploymentState
from tidemark.catalog.opening.catalog import Catalog
from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration, Kind, OnReadOnly
from tidemark.collections.deployment import Applied, AppliedSink, CatalogObject, Deployment, StoredMode
from tidemark.collections.mode import mode_of
from tidemark.collections.objects.standing import Standing
from tidemark.collections.sources.formats.frame import BY_A_PROGRAM
from tidemark.collections.system.findings import Finding, definition_of, read_findings, read_promotion
from tidemark.deployment.caught_up import Judgement, Progress, Rules, Watched, find_state, judge
from tidemark.errors import CorruptState, NotLed
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.shard.state_reader import ShardSummary, read_states
from tidemark.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How far a deployment is: its state, who leads, and each object with why it is not caught up yet."""

    generation: int
    stored: StoredMode  # of the deployment that leads
    state: DeploymentState
    objects: tuple[Judgement, ...]

    @property
    def is_ready(self) -> bool:
        """Whether nothing speaks against a promotion; a deployment that leads already is ready."""
        return self.state in {DeploymentState.READY_TO_PROMOTE, DeploymentState.PROMOTING, DeploymentState.IS_LEADER}

    @property
    def obstacles(self) -> list[Judgement]:
        return [each for each in self.objects if each.progress is Progress.CATCHING_UP]

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "state": self.state.value,
            "leader": self.stored.generation,
            "leader_mode": self.stored.mode.value,
            "since": self.stored.since_ms,
            "objects": [each.to_json() for each in self.objects],
        }


def read_readiness(deployment: Deployment, *, clock: Clock) -> Readiness:
    """Return how far this deployment is; without objects if it leads, or while its own promotion opens the catalog.

    Raises:
        FencedByGeneration: If a newer deployment leads.
        NotLed: If the catalog is moved, or opened by the leader.
        Others as ``look_at_mode``, ``Registry.read`` and ``read_states``.
    """
    generation = deployment.generation
    stored = look_at_mode(Catalog.of(deployment.settings, clock=clock).ends)
    mode_of(stored, generation)  # raises if a newer deployment leads
    try:
        applied, objects = deployment.registry.read(), deployment.registry.objects()
    except NotLed:
        if stored.generation != generation:
            raise  # the catalog is moved, or opened by the leader
        state = DeploymentState.PROMOTING  # a promotion of this deployment is in the middle of its open, or died there
        return Readiness(generation=generation, stored=stored, state=state, objects=())
    if stored.generation == generation:
        state = find_leading_state(deployment.settings, stored)
        return Readiness(generation=generation, stored=stored, state=state, objects=())
    look = Look(
        generation=generation,
        stored=stored,
        applied=applied,
        objects=objects,
        states=read_states(deployment.settings),
        findings=read_findings(deployment.settings),
        standings=deployment.objects.read(),
    )
    return look.judge(now_ms=clock.now_ms())


def find_leading_state(settings: Settings, stored: StoredMode) -> DeploymentState:
    """Return the state of a deployment that no older one leads: none of its objects is judged."""
    is_promoting = read_promotion(settings) is not None
    return find_state(stored, settings.generation, (), has_run=True, is_promoting=is_promoting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was read at one time, of which a deployment that stands by is judged."""

    generation: int
    stored: StoredMode
    applied: Applied
    objects: Mapping[str, CatalogObject]
    states: Mapping[str, ShardSummary | CorruptState]
    findings: Mapping[str, Finding]
    standings: Mapping[str, Standing]

    def judge(self, *, now_ms: int) -> Readiness:
        """Return how far the deployment is."""
        rules = Rules()
        judgements = tuple(
            judge(self._watch(name, known), rules, now_ms=now_ms) for name, known in self.objects.items()
        )
        has_run = bool(self.findings)
        state = find_state(self.stored, self.generation, judgements, has_run=has_run, is_promoting=False)
        return Readiness(generation=self.generation, stored=self.stored, state=state, objects=judgements)

    def _watch(self, name: str, known: CatalogObject) -> Watched:
        """Return what is to be judged of one object."""
        sink = self.applied.sinks.get(name)
        seen = self.states.get(name if sink is None else sink.collection)
        summary = seen if isinstance(seen, ShardSummary) else None
        carried = None if sink is None or summary is None else _carried(sink, summary)
        branches = [] if summary is None or sink is not None else _own(summary.staged, self.generation)
        return Watched(
            name=name,
            kind=known.kind,
            object_id=known.id,
            definition=definition_of(self.applied, name),
            needs_no_run=_needs_no_run(self.applied.declarations.get(name)),
            damage=_damage(seen),
            resting=str(self.standings[name]) if name in self.standings else "",
            changed=0 if summary is None else summary.state.changed,
            is_loaded=carried is not None,
            uncarried=None if carried is None or summary is None else summary.first_change_after(carried),
            finding=self.findings.get(name),
            staged=len(branches),
            stale=0 if summary is None else len({*branches} & {*summary.stale}),
        )


def _needs_no_run(declaration: Declaration | None) -> str:
    """Return why no run of a deployment that stands by looks at a collection; empty for a reconcile, and an ingest."""
    if declaration is not None and declaration.is_handed_over:
        return f"{BY_A_PROGRAM}, of the deployment that leads"
    if declaration is None or declaration.kind is Kind.DIFFERENTIAL:
        return ""
    if declaration.kind is Kind.LATEST:
        return "the leader alone ingests it; it goes on from its ledger once this deployment leads"
    if not declaration.reads_buffer:
        return "appends go on at once; no run of a deployment that stands by tries them"
    if declaration.on_read_only is OnReadOnly.REJECT:
        return "it is declared to stage nothing: it goes on from its ledger once this deployment leads"
    return ""


def _damage(seen: ShardSummary | CorruptState | None) -> str:
    if seen is None:
        return "its table is not there yet"
    return f"it cannot be read: {seen}" if isinstance(seen, CorruptState) else ""


def _carried(sink: AppliedSink, summary: ShardSummary) -> int | None:
    """Return up to where the sink's target is: a hold keeps the last time that the target has."""
    hold = summary.state.holds.get(sink.declaration.hold)
    return None if hold is None else hold.since + 1


def _own(branches: tuple[str, ...], generation: int) -> list[str]:
    """Return the staging branches of one deployment."""
    return [branch for branch in branches if branch.startswith(f"{STAGED}{generation}/")]
