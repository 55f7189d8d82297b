"""Something that happens just when a process comes to one of its fail points."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pytest


def once(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, point: str, what: Callable[[], object], *, nth: int = 1
) -> list[str]:
    """Do something the ``nth`` time, from 1, that ``module`` comes to ``point``; the times that it came there."""
    reached: list[str] = []

    def fail_point(name: str) -> None:
        if name == point:
            reached.append(name)
            if len(reached) == nth:
                what()

    monkeypatch.setattr(module, "fail_point", fail_point)
    return reached
