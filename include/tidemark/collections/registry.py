"""Which declarations are applied: the interface; where they are kept is no matter of collections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidemark.collections.declarations.collection import Declaration


@dataclass(frozen=True, slots=True)
class Applied:
    """The applied declarations by name, sorted, as they were at one instant; what a change of them is based on."""

    declarations: dict[str, Declaration] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # as stored: equal exactly when nothing was changed


class Registry(Protocol):
    """Where applied declarations are. Changes are serialised: one that is based on old contents fails.

    Every method may raise ``Unreachable``, ``Fenced``, or ``StaleState`` if nobody leads for now.
    """

    def read(self) -> Applied:
        """Return what is applied now; nothing if there never was anything."""

    def get(self, name: str) -> Declaration:
        """Return one declaration.

        Raises:
            UnknownCollection: If there is none of that name; with near matches.
        """

    def replace(self, changed: Iterable[Declaration], *, seen: Applied) -> None:
        """Apply ``changed``, all or nothing, if what is applied is still what was ``seen``; audited in the same commit.

        Raises:
            CatalogOutOfSync: If somebody else applied something since; nothing was written.
            ReadOnly: If the deployment became read-only since; nothing was written.
            Fenced: If a newer deployment leads, or another leader has come.
        """
