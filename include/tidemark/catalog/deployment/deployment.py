"""Puts together what collections know of the deployment: all of it in the catalog that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.deployment.discard_records import CatalogDiscards
from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import CatalogModes
from tidemark.catalog.deployment.registry import CatalogRegistry
from tidemark.catalog.opening.catalog import CombinedCatalog
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Deployment

if TYPE_CHECKING:
    from tidemark.clock import Clock
    from tidemark.settings import Settings


def deployment_of(settings: Settings, *, who: str = "", clock: Clock | None = None) -> Deployment:
    """Return the deployment of this process, which joins the catalog's leader when it first asks for anything.

    Args:
        settings: Where the catalog is, and of which generation this process is.
        who: The person or process, for the audit.
        clock: Tells the time.

    Raises:
        ConfigurationInvalid: If the stash's URI is malformed.
    """
    membership = Membership(CombinedCatalog.of(settings, clock=clock or SystemClock(), who=who))
    return Deployment(
        settings=settings,
        registry=CatalogRegistry(membership, who),
        modes=CatalogModes(membership),
        discards=CatalogDiscards(membership),
    )
