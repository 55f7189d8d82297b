"""Operations that die at a fail point within the test's process, where a new process for each would take minutes."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

from tidemark import fail_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")


class Crash(BaseException):
    """Takes the place of the process's death: nothing catches it on the way."""


@contextmanager
def dying_at(point: str | None) -> Iterator[None]:
    def die() -> None:
        raise Crash

    with _at(point or "", die):
        yield


@contextmanager
def interrupted_at(
    point: str, operation: Callable[[], object], *, must_reach: bool = True
) -> Iterator[list[Exception]]:
    """Run ``operation`` at a fail point, once, as another process does between two steps of this one.

    Yields a list, to which what ``operation`` raises is added: this process may catch that. A block that never comes
    to the point fails, unless it need not: nothing would have come between.
    """
    left = [operation]
    failures: list[Exception] = []

    def interrupt() -> None:
        if not left:
            return
        try:
            with _at("", list):
                left.pop()()
        except Exception as error:
            failures.append(error)
            raise

    with _at(point, interrupt):
        yield failures
    assert not (left and must_reach), f"{point} was never reached"


@contextmanager
def _at(point: str, act: Callable[[], object]) -> Iterator[None]:
    fail_points._reached.clear()
    there = SimpleNamespace(environ={"TIDEMARK_FAIL_POINT": point}, _exit=lambda _code: act())
    real, fail_points.os = fail_points.os, there
    try:
        yield
    finally:
        fail_points.os = real


def surviving(operation: Callable[[], T], point: str | None) -> tuple[T, bool]:
    """Run to the end, again if it died on the way; also return whether it died."""
    try:
        with dying_at(point):
            return operation(), False
    except Crash:
        return operation(), True
