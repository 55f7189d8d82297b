"""Runs transactions on one connection to a stash until one goes through, or it is known that none will."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from tidemark.catalog.stash.connection import Conflict, LostCommit, LostConnection
from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, Unreachable
from tidemark.fail_points import fail_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.catalog.stash.connection import StashConnection

R = TypeVar("R")
FAIL_POINTS = ("stash.before-commit", "stash.after-commit")
ATTEMPTS = 30  # with the pauses below, about half a minute: a server has restarted by then
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


def pause_s(attempt: int, jitter: float) -> float:
    """Return how long to wait after ``attempt`` (from 0): doubling up to one second, less up to a half of it.

    ``jitter`` is a random number in ``[0, 1)``.
    """
    return min(FIRST_PAUSE_S * 2.0**attempt, LONGEST_PAUSE_S) * (1 - jitter / 2)


class StashTransactions:
    """Serializable transactions on ``connection``, which is connected again when it is lost.

    A stash that was never reached is reported at once; one that was reached before is waited for.
    """

    def __init__(self, connection: StashConnection, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.connection = connection
        self._pause = pause
        self._reached = False

    def run(self, body: Callable[[], R], *, write: bool, before_commit: Callable[[], None] | None = None) -> R:
        """Return what ``body`` returned in the transaction that was committed; it may be run several times.

        Args:
            body: Works on the connection; what it raises ends the transaction and is passed on.
            write: Whether it may change anything; if not, the database sees to it.
            before_commit: The last thing to be done in the transaction.

        Raises:
            Unreachable: If the database does not answer.
            ConflictsUnsettled: If others were in the way each time.
            CommitStateUnknown: If it cannot be told whether a lost commit happened.
            MissingTable: If the stash, or a table of it, does not exist.
        """
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            try:
                return self._run_once(body, write=write, before_commit=before_commit)
            except LostConnection as error:
                if not self._reached:
                    raise unreachable(self.connection, error) from error
                last = error
            except Conflict as error:
                last = error
            self._wait(attempt)
        if isinstance(last, Conflict):
            raise ConflictsUnsettled(
                f"other transactions on {self.connection.where} were in the way {ATTEMPTS} times: {last}",
                hint="nothing was changed: run it again",
            ) from last
        raise unreachable(self.connection, last) from last

    def _run_once(self, body: Callable[[], R], *, write: bool, before_commit: Callable[[], None] | None) -> R:
        self.connection.begin(write=write)
        self._reached = True
        try:
            result = body()
            if before_commit is not None:
                before_commit()
            if write:
                fail_point("stash.before-commit")
            self.connection.commit()
        except LostCommit as lost:
            if not self._was_committed(lost):
                raise Conflict("the connection was lost before the commit") from lost
        except BaseException:
            self.connection.rollback()
            raise
        if write:
            fail_point("stash.after-commit")
        return result

    def _was_committed(self, lost: LostCommit) -> bool:
        for attempt in range(ATTEMPTS):
            self._wait(attempt)
            try:
                known = self.connection.was_committed(lost.transaction_id)
            except LostConnection:
                continue
            if known is None:
                break
            return known
        raise CommitStateUnknown(
            f"{self.connection.where} was lost during a commit, and cannot be asked what came of it",
            hint="look at the catalog before you do it again",
        ) from lost

    def _wait(self, attempt: int) -> None:
        self._pause(pause_s(attempt, random.random()))  # noqa: S311 - spreads retries, keeps no secret


def unreachable(connection: StashConnection, error: Exception | None) -> Unreachable:
    """Build the error for a database that does not answer."""
    return Unreachable(
        f"{connection.where} cannot be reached: {error}", hint="check TIDEMARK_STASH_URI and that the server runs"
    )
