"""Fences the runs of sinks that are under way, in their targets: a switch to read-only stops exports, too."""

from __future__ import annotations

from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import stands_by
from tidemark.errors import TidemarkError
from tidemark.sinks.targets.registry import open_target
from tidemark.sinks.turns import find_run


def fence_sinks(deployment: Deployment) -> list[str]:
    """Take the targets of all sinks over, so that no run which began before writes there any more.

    Return, for each sink whose target cannot be asked, why: a run of it that has looked at the mode already may still
    write. So may the first load into a target that is made with the commit, after a last look at the mode: a sink whose
    target is not there yet is named while a run of it is under way.

    A deployment that stands by fences nothing: the runs are the leader's, whose mode it has not switched. Raises as
    ``stands_by``.
    """
    if stands_by(deployment):
        return []
    unfenced = []
    for name, applied in deployment.registry.read().sinks.items():
        try:
            with open_target(applied.declaration, deployment.settings) as target:
                target.check()
                found = target.look()
                if found is not None and (found.owner.sink, found.owner.sink_id) == (name, applied.id):
                    target.claim(found.owner, generation=deployment.generation)
                if found is None and (run := find_run(deployment.settings, applied)) is not None:
                    unfenced.append(f"the first load of sink {name!r}, in {run.writer}, may still end")
        except TidemarkError as error:
            unfenced.append(f"a run of sink {name!r} that is under way may still write: {error}")
    return unfenced
