"""A deployment that stands by becomes the one that leads: a plan, which a person approves, and then the steps.

The steps are those of a switch of the mode, and of the flush that follows each: the catalog is opened under the new
generation, which fences the older deployment; the mode is written; the token of every collection is raised; what was
staged is flushed; what does not fit any more is reconciled. Each step is safe twice, so that a promotion that died goes
on with another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tidemark.catalog.items.item import canonical_json
from tidemark.catalog.items.kinds import DeploymentState
from tidemark.clock import Clock
from tidemark.collections.deployment import Applied, Deployment, Mode, StoredMode
from tidemark.collections.mode import fence_writers, set_mode
from tidemark.collections.system.findings import (
    NotedPromotion,
    definition_of,
    forget_promotion,
    note_promotion,
    read_promotion,
)
from tidemark.deployment.readiness import Readiness, read_readiness
from tidemark.errors import NotCaughtUp, NotLed, Refused, UsageError
from tidemark.fail_points import fail_point
from tidemark.iceberg.shards import Shards
from tidemark.interval import duration_text

FAIL_POINTS = ("promote.noted", "promote.switched")
ASK_AGAIN = "make the plan again, and have that one approved: `tidemark deployment status` shows what is"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """What a promotion would do now; ``digest`` is what an approval is bound to.

    The digest covers who leads, who would lead, what is applied, and whether the promotion is
    forced. It does not cover what changes with every run, such as lags and numbers of staged batches.
    """

    readiness: Readiness
    digest: str
    is_forced: bool

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to ask: this deployment leads."""
        return self.readiness.state is DeploymentState.IS_LEADER

    @property
    def has_begun(self) -> bool:
        """Whether an earlier promotion, which was approved, has fenced the older deployment, and perhaps died then."""
        return self.is_done or self.readiness.state is DeploymentState.PROMOTING

    def to_json(self) -> dict[str, Any]:
        return {
            "plan_digest": self.digest,
            "is_done": self.is_done,
            "is_forced": self.is_forced,
            **self.readiness.to_json(),
        }


def make_plan(deployment: Deployment, *, clock: Clock, is_forced: bool = False) -> PromotionPlan:
    """Return the plan of a promotion of this deployment; nothing durable changes. Raises as ``read_readiness``."""
    readiness = read_readiness(deployment, clock=clock)
    applied = deployment.registry.read() if readiness.objects else Applied()
    text = canonical_json(
        {
            "generation": readiness.generation,
            "leader": readiness.stored.generation,
            "leads_since": readiness.stored.since_ms,
            "objects": {each.name: definition_of(applied, each.name) for each in readiness.objects},
            "is_forced": is_forced,
        }
    )
    return PromotionPlan(readiness=readiness, digest=hashlib.sha256(text.encode()).hexdigest(), is_forced=is_forced)


def check_plan(plan: PromotionPlan) -> None:
    """Raise ``NotCaughtUp``, with all that is not, if the deployment is not ready and the promotion is not forced."""
    readiness = plan.readiness
    if readiness.is_ready or plan.is_forced:
        return
    obstacles = readiness.obstacles
    raise NotCaughtUp(
        f"deployment {readiness.generation} is {readiness.state.value}: {len(obstacles)} of {len(readiness.objects)} "
        "objects are not caught up; nothing was changed",
        hint="wait, or promote with `--force` and a reason: what is stale is reconciled then",
        sample=[
            {"object": each.name, "lag": _lag_text(each.lag_ms), "why not yet": each.why, "what to do": each.hint}
            for each in obstacles
        ],
    )


def promote(
    shards: Shards, deployment: Deployment, plan: PromotionPlan, *, approved: str | None, who: str, why: str
) -> StoredMode:
    """Make this deployment the one that leads, and writes; return its mode. What was staged is left to a flush.

    ``approved`` is the digest of the plan that somebody approved; None: the caller has just made ``plan``. A promotion
    of the deployment that leads already changes neither the mode nor its reason; in read-write mode it raises the
    tokens that an older deployment still has.

    Raises:
        UsageError: If the promotion is forced without a reason.
        NotCaughtUp: As ``check_plan``.
        Refused: If another plan was approved: nothing was changed.
        FencedByGeneration: If a newer deployment leads.
        Others as ``set_mode``.
    """
    if plan.is_forced and not why:
        raise UsageError("a forced promotion needs a reason, for the record", hint="say why with `--why`")
    if plan.is_done:
        return _go_on_leading(shards, deployment.modes.read())
    if not plan.has_begun:
        check_plan(plan)
        if approved is not None and approved != plan.digest:
            raise Refused("another promotion was approved than the present one: nothing is changed", hint=ASK_AGAIN)
        leader = plan.readiness.stored.generation
        forced = " although it was not caught up" if plan.readiness.obstacles else ""
        why = f"promoted from deployment {leader}{forced}{f': {why}' if why else ''}"
        note_promotion(deployment.settings, NotedPromotion(who=who, why=why))
        fail_point("promote.noted")
    elif (noted := read_promotion(deployment.settings)) is not None:  # one that died; as it was approved
        who, why = noted.who, noted.why
    elif (ended := _find_ended(deployment)) is not None:  # by another process, since the plan was made
        return _go_on_leading(shards, ended)
    stored = set_mode(shards, deployment, Mode.READ_WRITE, who=who, why=why)
    fail_point("promote.switched")
    forget_promotion(deployment.settings)
    return stored


def _find_ended(deployment: Deployment) -> StoredMode | None:
    """Return the mode if a promotion of this deployment came to its end; None while the catalog is not opened."""
    try:
        stored = deployment.modes.read()
    except NotLed:
        return None
    return stored if stored.generation == deployment.generation and stored.generation in stored.led else None


def _go_on_leading(shards: Shards, stored: StoredMode) -> StoredMode:
    """Return the mode as it is; a person may have made the leader read-only, for a reason that still holds."""
    if stored.mode is Mode.READ_WRITE:
        fence_writers(shards, stored)
    return stored


def plan_text(plan: PromotionPlan) -> str:
    """Return a plan as Markdown, for whoever is asked to approve it."""
    readiness = plan.readiness
    stored, generation = readiness.stored, readiness.generation
    rows = "\n".join(
        f"| {each.name} | {each.kind.value} | {each.progress.value} | {_lag_text(each.lag_ms)} | {each.staged} "
        f"| {each.stale} | {_as_code(each.why)} |"
        for each in readiness.objects
    )
    forced = (
        f"\n**Forced**: {len(readiness.obstacles)} objects are not caught up. Their stale corrections are reconciled "
        "after the promotion, until then readers see what the older deployment left.\n"
        if readiness.obstacles
        else ""
    )
    return f"""Deployment **{generation}** is to lead, in place of deployment **{stored.generation}**, which is
{stored.mode.value} now. Deployment {stored.generation} is fenced by that, for good: its runs end with exit code 77.
{forced}
Then everything that deployment {generation} has staged becomes visible, one commit per collection, and so does what
deployment {stored.generation} had staged. What does not fit the contents any more is reconciled.

| object | kind | state | lag | staged | stale | |
|---|---|---|---|---|---|---|
{rows}

The way back is the same way: start the older program with a generation larger than {generation}, and promote it.

Plan `{plan.digest}`. If another deployment takes the lead, or anything is applied, before the promotion, this approval
is void: clear `plan` with everything after it, and the run asks again.
"""


def _as_code(text: str) -> str:
    """Return a text, which may quote anything, so that Markdown shows it as it is, in a cell of a table."""
    shown = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return f"`{shown}`" if shown else ""


def _lag_text(lag_ms: int | None) -> str:
    return "" if lag_ms is None else duration_text(lag_ms)
