"""Records the numbers whose entries retention took before an ingest read them, where the declaration accepts that."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemark.collections.mode import stands_by
from tidemark.fail_points import fail_point

if TYPE_CHECKING:
    from tidemark.ingest.batches import PlannedBatch
    from tidemark.ingest.plan import PlannedRange
    from tidemark.ingest.publish import Target

log = logging.getLogger(__name__)

FAIL_POINTS = ("ingest.after-record-lost",)
_WHO = "an ingest, as the declared `on_expired: earliest` says"


def record_lost(target: Target, planned: Iterable[PlannedRange], batches: Iterable[PlannedBatch] = ()) -> None:
    """Record what was lost in the audit, before the ledger covers the numbers; the same loss once.

    An ingest that dies after the record finds the loss again; if retention took more meanwhile, a later record of the
    sequencer has all of it. A deployment that stands by only logs the loss. Raises as ``LossRecords.add``.
    """
    lost = {str(part.sequencer_id): [part.start, part.first] for part in planned if part.lost}
    of_batches = {str(batch.name): batch.lost for batch in batches if batch.lost}
    if not lost and not of_batches:
        return
    name, total = target.shard.name, sum(end - start for start, end in lost.values()) + sum(of_batches.values())
    log.warning(
        "%s: retention took %s entries before they were ingested, which goes on without them: %s",
        name, total, {**lost, **of_batches},
    )  # fmt: skip
    if stands_by(target.deployment):  # the audit is the leader's
        return
    details = {"collection": name, "log": target.log.title, "lost": lost, "batches": of_batches, "total": total}
    target.deployment.losses.add(name, details, who=_WHO)
    fail_point("ingest.after-record-lost")
