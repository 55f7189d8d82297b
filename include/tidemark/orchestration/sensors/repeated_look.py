"""A look that triggers repeat: Airflow is asked for the connections once, not at every look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tidemark.orchestration.connections import load_settings
from tidemark.settings import Settings

S = TypeVar("S")


class RepeatedLook(Generic[S]):
    """Calls ``see`` with the settings; asks Airflow for the connections at the first look and after a failure."""

    def __init__(self, see: Callable[[Settings], S]) -> None:
        self._see = see
        self._settings: Settings | None = None

    def __call__(self) -> S:
        """Look. Raises as ``see``, and ``ConfigurationInvalid`` if a connection is missing."""
        settings = self._settings or load_settings()
        self._settings = None
        seen = self._see(settings)
        self._settings = settings
        return seen
