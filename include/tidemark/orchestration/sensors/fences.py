"""The sensor that waits until everybody sees the fences of an open, before anything is copied under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.resume import START_OVER, Fences
from tidemark.clock import SystemClock
from tidemark.errors import FencedByEpoch
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings


def see_fences(settings: Settings, fences: Fences, truths: Sequence[str]) -> Seen:
    """Look from outside whether both back ends are fenced, and one of ``truths`` is the truth; in a few ms.

    Raises:
        FencedByEpoch: If somebody opened the catalog since.
        Unreachable: If a back end does not answer.
    """
    ends = Catalog.of(settings, clock=SystemClock()).ends
    stash, persist = ends.stash.head(), ends.persist.head()
    missing = []
    for end, epoch, wanted in (
        (ends.stash, stash.epoch or 0, fences.stash_epoch),
        (ends.persist, persist.epoch or 0, fences.persist_epoch),
    ):
        if epoch > wanted:
            raise FencedByEpoch(
                f"the {end.name} is at epoch {epoch}, this open fenced it at {wanted}: somebody opened it since",
                hint=START_OVER,
            )
        if epoch < wanted:
            missing.append(f"the {end.name} stayed at epoch {epoch}, where {wanted} is wanted,")
    truth = ends.truth(tombstone=stash.tombstone).name
    if truth not in truths:
        missing.append(f"the truth stayed the {truth}, where the plan has the {' or '.join(truths)},")
    return Seen({"stash_epoch": stash.epoch, "persist_epoch": persist.epoch, "truth": truth}, " ".join(missing))


class FencesSensor(WaitingSensor):
    """Wait until both back ends show the fences that a task took, and the truth is where the plan has it.

    It looks as everybody else does, and not through the fences: a back end that answers others from an older state
    must not be copied yet. It fails at once if somebody opened the catalog since.

    Args:
        plan: The plan; its ``truth_before`` is the truth, or its ``truth`` if the flip was made already. (templated)
        fences: The fences, as ``Fences.to_json`` gives them. (templated)
        kwargs: As for ``WaitingSensor``.
    """

    template_fields = ("plan", "fences")
    watch = "FencesTrigger"

    def __init__(self, *, plan: Mapping[str, Any], fences: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan, self.fences = plan, fences

    def look(self, before: Facts | None) -> Seen:
        return see_fences(load_settings(), Fences.parse(self.fences), self._truths)

    def watched(self, seen: Seen) -> dict[str, Any]:
        return {"fences": dict(self.fences), "truths": self._truths}

    @property
    def _truths(self) -> list[str]:
        return sorted({self.plan["truth_before"], self.plan["truth"]})
