"""The one bounded loop for work that other processes may disturb: attempts are counted, pauses grow and are jittered.

The loop stands around all steps of an operation: every attempt begins with a fresh look at the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tidemark.errors import ConflictsUnsettled

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.5


def back_off_s(failures: int, *, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row, at least 1: a second that doubles up to ``longest_s``.

    For work that goes on for as long as its process does, and so may fail thousands of times.
    """
    return min(2.0 ** min(failures - 1, 30), longest_s)


def retrying(
    *errors: type[Exception],
    attempts: int,
    what: str,
    hint: str = "run it again",
    first_pause_s: float = FIRST_PAUSE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
    give_up: Callable[[Exception], Exception] | None = None,
    **options: Any,
) -> Retrying:
    """Return a loop: ``retrying(UpperMismatch, attempts=12, what="the flush of 'planes'")(flush_once, shard, …)``.

    The pause after attempt ``n`` (from 1) is random, from ``first_pause_s`` to ``first_pause_s * 2**n`` seconds and at
    most ``longest_pause_s``: two processes that met once do not meet again.

    Args:
        errors: Errors that another process causes, so that a fresh look may succeed. Other errors end the loop at once.
        attempts: The most attempts, the first one included.
        what: The work, for the message of the error that ends the loop.
        hint: What the user does about this error.
        first_pause_s: Lower bound of the pauses.
        longest_pause_s: Upper bound of the pauses.
        give_up: Builds another error than ``ConflictsUnsettled`` from the last failure, or returns the failure.
        options: Further options of ``tenacity.Retrying``, ``sleep`` for tests among them.

    Raises:
        ConflictsUnsettled: From the last failure, by the loop, when the attempts are used up.
    """

    def end(state: RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        assert isinstance(failure, Exception), "the loop ends here after a failure only"  # noqa: S101 -- for mypy
        if give_up is not None:
            error = give_up(failure)
            if error is failure:
                raise error
            raise error from failure
        raise ConflictsUnsettled(f"{what} kept losing to other commits", hint=hint) from failure

    def log_failure(state: RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        log.debug("%s, attempt %s of %s: %s", what, state.attempt_number, attempts, failure)

    return Retrying(
        retry=retry_if_exception_type(errors),
        stop=stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=2 * first_pause_s, min=first_pause_s, max=longest_pause_s),
        retry_error_callback=end,
        before_sleep=log_failure,
        **options,
    )
