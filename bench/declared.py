"""Declarations that are applied, as those of users are: a run refuses what the catalog does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.deployment.deployment import deployment_of

if TYPE_CHECKING:
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.settings import Settings


def register(settings: Settings, declaration: Declaration) -> Declaration:
    """Put the declaration of a table that is there into the catalog; return the declaration."""
    registry = deployment_of(settings).registry
    registry.replace([declaration], seen=registry.read())
    return declaration
