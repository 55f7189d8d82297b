"""Shares what one run may read among the sequencers, by how much waits in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def share_fairly(backlogs: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Return how many numbers of each sequencer are read.

    Args:
        backlogs: How many wait, by sequencer; none negative.
        limit: The most in all; None: everything.

    Returns:
        At most the backlog of each, in proportion to it, together ``min(limit, all that waits)``. If there is enough,
        no sequencer where anything waits gets nothing, so that a small one does not starve beside a large one.
    """
    waiting = {each: count for each, count in backlogs.items() if count > 0}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(backlogs)
    exact = {each: divmod(count * limit, total) for each, count in waiting.items()}
    shares = {each: whole for each, (whole, _) in exact.items()}
    by_remainder = sorted(exact, key=lambda each: (-exact[each][1], each))
    for each in by_remainder[: limit - sum(shares.values())]:
        shares[each] += 1
    if limit >= len(waiting):
        for each in [each for each, share in shares.items() if not share]:
            shares[max(shares, key=lambda other: shares[other])] -= 1
            shares[each] = 1
    return {each: shares.get(each, 0) for each in backlogs}
