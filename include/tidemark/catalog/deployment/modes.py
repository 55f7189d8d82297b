"""The mode in the catalog: an item of the deployment that leads, and the audit event of each switch beside it.

Why a read of the mode, wherever the truth is, reads one register (``collections/mode.py`` says what for):

- *One look is of one instant.* With the stash as the truth, one transaction sees the tombstone and the item. With the
  persist catalog as the truth, one metadata file has the item, which each commit mirrors there (``SHOWN``), and the
  stash has the same epoch before and after: an open that moves the truth back raises that epoch (``read_truth``).
- *The truth holds the last switch.* A switch is a transaction under the leader's epoch. A migration or rollback raises
  that epoch before it reads the items to copy. So the copy holds every committed switch, and a switch that was not
  committed is fenced and starts over on the new truth. From the fence to the announcement nobody can join, so until
  then the mode is the same on both sides.
- So a writer that joined a collection's token and then read *read-write* has read before the switch was committed, on
  either side. The tokens are raised after the switch, which fences the writer. A switch to read-only on the new truth
  also fences a writer that read the old truth, because the writer read, and joined before, the flip.

An emergency is the exception: it goes back to the mode that the stash held, and does not fence the persist catalog.
Whoever runs it has to stop every process first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.items.kinds import DEPLOYMENT, GENERATION_KEY, DeploymentKey, DeploymentState, DeploymentValue
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.opening import BackEnds
from tidemark.catalog.opening.truth import TruthHead, find_truth
from tidemark.collections.deployment import Mode, StoredMode
from tidemark.errors import Refused
from tidemark.fail_points import fail_point

FAIL_POINTS = ("mode.after-open",)
_LED = frozenset({DeploymentState.IS_LEADER, DeploymentState.DEPOSED})


@dataclass(frozen=True, slots=True)
class CatalogModes:
    """Implements ``Modes``."""

    membership: Membership

    def read(self) -> StoredMode:
        return _mode_in_head(self.membership.truth(), self.membership.generation)

    def switch(self, wanted: Mode, *, who: str, why: str) -> StoredMode:
        truth, generation = self.membership.look(), self.membership.generation
        if truth is not None:
            is_newer = truth.deployment_generation < generation
            if is_newer and wanted is Mode.READ_ONLY:  # already the mode beside the leader; the catalog stays as it is
                return _mode_in_head(truth, generation)
            # The open of an earlier promotion: this deployment has never led.
            has_died = not truth.is_led and generation not in _mode_in_head(truth, generation).led
            if wanted is Mode.READ_WRITE and (is_newer or has_died):
                self.membership.lead()
                fail_point("mode.after-open")
        return self.membership.change(lambda transaction: _switch(transaction, generation, wanted, who=who, why=why))


def look_at_mode(ends: BackEnds) -> StoredMode:
    """Return the mode of the leading deployment, for readers: also while nobody can join.

    Without pyiceberg, in milliseconds; read-write if nobody ever switched the mode. Raises as ``find_truth``.
    """
    return _mode_in_head(find_truth(ends), ends.generation)


def refuse_beside_leader(ends: BackEnds, what: str) -> None:
    """Refuse an open of the catalog, which would fence an older deployment that leads: that is a promotion.

    The stash is asked alone, since each open fences it first, and an emergency has to do without the other back end.

    Raises:
        Refused: If an older deployment opened the catalog last.
        Others as ``BackEnd.head``.
    """
    leader = ends.stash.head().config.get(GENERATION_KEY, ends.generation)
    if leader < ends.generation:
        raise Refused(
            f"deployment {ends.generation} stands by, and {what} would fence deployment {leader}, which leads",
            hint=f"have deployment {leader} do it (TIDEMARK_GENERATION={leader}), or make this one the leader first, "
            "by `tidemark deployment promote`, or the DAG `promote_deployment`",
        )


def mode_in(transaction: Transaction, generation: int) -> StoredMode:
    """Return the mode as a transaction sees it: the transaction commits only if that mode still holds."""
    opened_by = transaction.config(GENERATION_KEY)
    return _leading(transaction.items(DEPLOYMENT), generation if opened_by is None else opened_by)


def _mode_in_head(truth: TruthHead | None, generation: int) -> StoredMode:
    if truth is None or not truth.was_led:
        return StoredMode(generation=generation)
    items = (
        (DEPLOYMENT.parse_key(key), DEPLOYMENT.parse_value(value)) for key, value in truth.head.deployments.items()
    )
    return _leading(items, truth.deployment_generation)


def _leading(items: Iterable[tuple[DeploymentKey, DeploymentValue]], opened_by: int) -> StoredMode:
    """Return the mode of the leader; a deployment that opened the catalog and was never switched only stages."""
    known = {key.generation: value for key, value in items}
    led = frozenset(generation for generation, value in known.items() if value.state in _LED)
    for generation, value in known.items():
        if value.state is DeploymentState.IS_LEADER:
            return StoredMode(
                mode=value.mode if generation == opened_by else Mode.READ_ONLY,
                generation=max(generation, opened_by),
                since_ms=value.since_ms,
                who=value.who,
                why=value.why,
                led=led,
            )
    return StoredMode(generation=opened_by, led=led)


def _switch(transaction: Transaction, generation: int, wanted: Mode, *, who: str, why: str) -> StoredMode:
    own = DeploymentKey(generation=generation)
    present = transaction.get(DEPLOYMENT, own)
    if present is not None and present.state is DeploymentState.IS_LEADER and present.mode is wanted:
        if why not in {"", present.why}:  # the same mode since then, and a reason that nobody gave before
            present = present.model_copy(update={"who": who, "why": why})
            transaction.put(DEPLOYMENT, own, present)
            transaction.audit(
                "explain-mode", kind=DEPLOYMENT, subject=f"generation {generation}", who=who, details={"why": why}
            )
        return mode_in(transaction, generation)
    last_ms = max((value.since_ms for _, value in transaction.items(DEPLOYMENT)), default=0)

    def depose(key: DeploymentKey, value: DeploymentValue) -> DeploymentValue | None:
        leads = value.state is DeploymentState.IS_LEADER and key != own
        return value.model_copy(update={"state": DeploymentState.DEPOSED}) if leads else None

    transaction.update(DEPLOYMENT, depose)
    new = DeploymentValue(
        state=DeploymentState.IS_LEADER,
        mode=wanted,
        since_ms=max(transaction.now_ms, last_ms + 1),  # sensors tell switches by it
        who=who,
        why=why,
    )
    transaction.put(DEPLOYMENT, own, new)
    transaction.audit(
        "switch-mode",
        kind=DEPLOYMENT,
        subject=f"generation {generation}",
        who=who,
        details={"mode": wanted.value, "generation": generation, "since": new.since_ms, "why": why},
    )
    return mode_in(transaction, generation)
