"""Runs a transaction on one connection to a stash again until it is committed or cannot be committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tidemark.catalog.stash.connection import Conflict, LostCommit, LostConnection, StashConnection
from tidemark.errors import CommitStateUnknown, ConflictsUnsettled, Unreachable
from tidemark.fail_points import fail_point
from tidemark.retry import retrying

R = TypeVar("R")
FAIL_POINTS = ("stash.before-commit", "stash.after-commit")
ATTEMPTS = 30  # with pauses up to the longest one, about half a minute: a server has restarted by then
LONGEST_PAUSE_S = 2.0


class StashTransactions:
    """Serializable transactions on ``connection``; a lost connection is made again.

    A stash that never answered is reported at once; a stash that answered before is waited for.
    """

    def __init__(self, connection: StashConnection, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.connection = connection
        self._retrying = partial(retrying, attempts=ATTEMPTS, longest_pause_s=LONGEST_PAUSE_S, sleep=pause)
        self._reached = False

    def run(self, body: Callable[[], R], *, write: bool, before_commit: Callable[[], None] | None = None) -> R:
        """Return the result of ``body`` in the transaction that was committed; ``body`` may be run several times.

        An error of ``body`` ends the transaction and is passed on. Without ``write`` the database refuses changes.
        ``before_commit`` is the last action of the transaction.

        Raises:
            Unreachable: If the database does not answer.
            ConflictsUnsettled: If other transactions were in the way each time.
            CommitStateUnknown: If nobody can tell whether a lost commit happened.
            MissingTable: If the stash, or a table of it, does not exist.
        """

        def give_up(last: Exception) -> Exception:
            if not isinstance(last, Conflict):
                return unreachable(self.connection, last)
            return ConflictsUnsettled(
                f"other transactions on {self.connection.where} were in the way {ATTEMPTS} times: {last}",
                hint="nothing was changed: run it again",
            )

        retry = self._retrying(LostConnection, Conflict, what="a transaction", give_up=give_up)
        result: R = retry(self._run_once, body, write=write, before_commit=before_commit)
        return result

    def _run_once(self, body: Callable[[], R], *, write: bool, before_commit: Callable[[], None] | None) -> R:
        try:
            self.connection.begin(write=write)
        except LostConnection as error:
            if not self._reached:
                raise unreachable(self.connection, error) from error
            raise
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
        unknown = CommitStateUnknown(
            f"{self.connection.where} was lost during a commit, and cannot be asked what came of it",
            hint="look at the catalog before you do it again",
        )
        ask = self._retrying(LostConnection, what="the question after a lost commit", give_up=lambda _: unknown)
        committed: bool | None = ask(self.connection.was_committed, lost.transaction_id)
        if committed is None:
            raise unknown from lost
        return committed


def unreachable(connection: StashConnection, error: Exception | None) -> Unreachable:
    """Build the error for a database that does not answer."""
    return Unreachable(
        f"{connection.where} cannot be reached: {error}", hint="check TIDEMARK_STASH_URI and that the server runs"
    )
