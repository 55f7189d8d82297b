"""What collections know of the deployment that they are used by; put together above, where the catalog is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.collections.mode import Modes
    from tidemark.collections.registry import Registry
    from tidemark.collections.staged.discard import DiscardRecords
    from tidemark.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment of an installation, as one process takes part in it.

    All of it is one place behind one leader of the catalog: once that has changed, everything that is asked of the
    system's own state fails as fenced by epoch, and the process starts over.
    """

    settings: Settings
    registry: Registry
    modes: Modes
    discards: DiscardRecords

    @property
    def generation(self) -> int:
        return self.settings.generation
