"""Operations that die at a fail point within the test's process, where a new process for each would take minutes."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tidemark import fail_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Crash(BaseException):
    """Takes the place of the process's death: nothing catches it on the way."""


@contextmanager
def dying_at(point: str | None) -> Iterator[None]:
    def die(_code: int) -> None:
        raise Crash

    fail_points._reached.clear()
    real, fail_points.os = fail_points.os, SimpleNamespace(environ={"TIDEMARK_FAIL_POINT": point or ""}, _exit=die)
    try:
        yield
    finally:
        fail_points.os = real


def surviving(operation: Callable[[], object], point: str | None) -> tuple[object, bool]:
    """Run to the end, again if it died on the way; also return whether it died."""
    try:
        with dying_at(point):
            return operation(), False
    except Crash:
        return operation(), True
