"""Times what is compared in turns, so that a slow minute of the machine is everybody's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def alternate(
    sides: Mapping[str, Callable[[], object]],
    runs: int,
    *,
    warm_ups: int = 1,
    before: Callable[[], None] = lambda: None,
    check: Callable[[str], None] = lambda _side: None,
) -> dict[str, list[float]]:
    """Return the seconds of ``runs`` runs of every side; none always comes after the same other one.

    Args:
        sides: What is timed, by name.
        runs: How often.
        warm_ups: Rounds before these, which are not timed.
        before: What comes before every run and is not timed.
        check: Given the name of a side that has just warmed up.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-warm_ups, runs):
        for name in sorted(sides, reverse=turn % 2 == 0):
            before()
            started = time.perf_counter()
            sides[name]()
            if turn >= 0:
                times[name].append(time.perf_counter() - started)
            else:
                check(name)
    return times
