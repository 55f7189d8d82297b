"""Whether somebody may still be working on the persist catalog: an emergency does not fence it, so it has to be asked.

Every commit to the persist catalog bears the time at which it was made, and each acknowledged change is one. So the
time of the last commit is when a leader, or a task that joined it, was last heard of. Silence proves nothing: a task
may be computing. Whoever opens in an emergency has to make sure that the old processes are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemark.errors import CorruptState, Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

FRESH_FOR_MS: Final = 5 * 60_000  # longer than the pauses between commits of a scheduler that is at work


def check_silence(last_commit_ms: Callable[[], int | None], *, now_ms: int) -> None:
    """Refuse an emergency while the persist catalog is the truth and somebody may be at work on it.

    Args:
        last_commit_ms: Tells when the last commit was made, ms since the Unix epoch; None if there never was one.
        now_ms: The present time; a commit that seems to lie after it counts as fresh.

    Raises:
        Refused: If the last commit is younger than ``FRESH_FOR_MS``, or cannot be asked for.
    """
    try:
        heard_ms = last_commit_ms()
    except (Unreachable, CorruptState) as error:
        raise Refused(
            f"whether a leader lives on the persist catalog cannot be told: {error}",
            hint="stop every process of the deployment, then run it again with --force",
        ) from error
    if heard_ms is not None and now_ms - heard_ms < FRESH_FOR_MS:
        raise Refused(
            f"a leader of the persist catalog was heard of {max(0, now_ms - heard_ms) // 1000} s ago: what it writes "
            "from now on would be lost, for an emergency does not fence it",
            hint="roll back instead; or stop every process of the deployment, then run it again with --force",
        )
