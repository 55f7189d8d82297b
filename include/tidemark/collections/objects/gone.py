"""Leaves out what was dropped, or renamed, between the task that listed the objects and the one that works on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import skipped
from tidemark.errors import UnknownCollection
from tidemark.report import CollectionReport

Chosen = TypeVar("Chosen")
Gone = Mapping[str, CollectionReport]


def choose_present(
    choose: Callable[[Deployment, Sequence[str]], list[Chosen]], deployment: Deployment, names: Sequence[str]
) -> tuple[list[Chosen], Gone]:
    """Return what ``choose`` chooses by the names that are there, and the reports of those that are gone, as skipped.

    Raises ``UnknownCollection`` if there never was an object of a name, and as ``choose``.
    """
    try:
        return choose(deployment, names), {}
    except UnknownCollection:
        reasons = deployment.objects.gone(names)
        if not reasons:
            raise
    gone = {name: skipped(f"{why}, after it was chosen to run") for name, why in reasons.items()}
    present = [name for name in names if name not in gone]
    if not present:  # without names ``choose`` would choose all
        return [], gone
    chosen, more = choose_present(choose, deployment, present)  # what is dropped right now
    return chosen, {**gone, **more}
