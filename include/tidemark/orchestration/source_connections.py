"""Airflow's connections for the databases that sources read, as the environment of the application that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.settings import Settings


def source_connections(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``AIRFLOW_CONN_<NAME>`` for each connection that an applied source names and Airflow has.

    What the environment has already stands. A connection that nobody has is not an error here: it fails the one
    collection that needs it, and that message names the variables. Nor is a catalog that does not answer, or that
    nobody leads: the application finds the same, and says so in its report.
    """
    try:
        declared = deployment_of(settings).registry.read().declarations.values()
    except TidemarkError:
        return {}
    found = {}
    for name in sorted({name for declaration in declared for name in declaration.connections}):
        variable = f"AIRFLOW_CONN_{name.upper()}"
        if variable in environ:
            continue
        try:
            found[variable] = BaseHook.get_connection(name).as_json()
        except AirflowNotFoundException:
            continue
    return found
