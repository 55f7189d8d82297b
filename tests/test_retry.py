"""One loop for all retries: bounded, jittered, and it ends with an error that names the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.errors import ConflictsUnsettled, Unreachable, UpperMismatch
from tidemark.retry import back_off_s, retrying

if TYPE_CHECKING:
    from collections.abc import Callable


def failing(times: int) -> Callable[[], str]:
    """Return work that another writer disturbs ``times`` times."""
    left = iter(range(times))

    def work() -> str:
        for _ in left:
            raise UpperMismatch(1, 2)
        return "done"

    return work


def test_work_that_is_disturbed_is_tried_again_with_growing_pauses() -> None:
    pauses: list[float] = []
    assert retrying(UpperMismatch, attempts=5, what="the flush", sleep=pauses.append)(failing(4)) == "done"
    assert len(pauses) == 4
    assert all(0.02 <= pause <= 0.02 * 2**n for n, pause in enumerate(pauses, start=1))


def test_a_pause_never_passes_the_longest() -> None:
    pauses: list[float] = []
    retrying(UpperMismatch, attempts=20, what="x", longest_pause_s=0.1, sleep=pauses.append)(failing(19))
    assert max(pauses) <= 0.1


def test_the_error_at_the_end_names_the_work_and_chains_the_last_failure() -> None:
    loop = retrying(UpperMismatch, attempts=3, what="the flush of 'planes'", sleep=lambda _: None)
    with pytest.raises(ConflictsUnsettled, match="the flush of 'planes' kept losing") as caught:
        loop(failing(3))
    assert isinstance(caught.value.__cause__, UpperMismatch)


def test_another_error_ends_the_loop_at_once() -> None:
    def work() -> None:
        raise Unreachable("the catalog does not answer", hint="start it")

    with pytest.raises(Unreachable):
        retrying(UpperMismatch, attempts=3, what="x", sleep=pytest.fail)(work)


def test_the_caller_may_build_the_last_error() -> None:
    loop = retrying(UpperMismatch, attempts=1, what="x", give_up=lambda error: error)
    with pytest.raises(UpperMismatch):
        loop(failing(1))


@pytest.mark.parametrize(("failures", "wait_s"), [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (5_000, 30.0)])
def test_the_wait_after_failures_doubles_up_to_the_longest(failures: int, wait_s: float) -> None:
    assert back_off_s(failures, longest_s=30.0) == wait_s
