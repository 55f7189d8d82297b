"""Checks the connections that declared sources name, before Spark starts to read the sources."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.logins import find_login
from tidemark.errors import ConfigurationInvalid
from tidemark.settings import Settings


def check_connections(declarations: Iterable[Declaration], settings: Settings) -> None:
    """Check that the source of at least one collection has its connections: else nothing can be done.

    Where only some lack one, each of them fails alone, with the same error.

    Raises ``ConfigurationInvalid`` if a connection of every collection is not set, or cannot be read.
    """
    errors: list[ConfigurationInvalid] = []
    for declaration in declarations:
        try:
            for name in declaration.connections:
                find_login(name, settings.connections)
        except ConfigurationInvalid as error:
            errors.append(ConfigurationInvalid(f"{declaration.name!r}: {error}", hint=error.hint))
        else:
            return
    if errors:
        raise errors[0]
