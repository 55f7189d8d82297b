"""Settings as Airflow knows them: ``TIDEMARK_...`` variables over Airflow connections over defaults.

A connection that is named here must exist: a missing one is an error that says how to load it, never a default.
The values go into the environment of the processes that are started, because a process's arguments are public.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.objects.standing import ObjectKind
from tidemark.errors import ConfigurationInvalid, TidemarkError
from tidemark.settings import IN_CHECKOUT, LIBRARY, Settings

if TYPE_CHECKING:
    from airflow.sdk import Connection

CATALOG_CONNECTION = "tidemark_catalog"
STASH_CONNECTION = "tidemark_stash"
WAREHOUSE_CONNECTION = "tidemark_warehouse"
POSTGRESQL_PORT = 5432
_EXTRAS = frozenset({"sslmode", "sslrootcert", "options"})  # libpq and the JDBC driver spell them alike


def existing_connection(conn_id: str) -> Connection:
    """Return the connection. Raises ``ConfigurationInvalid`` if Airflow has none of that name."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationInvalid(
            f"the Airflow connection {conn_id!r} does not exist",
            hint="load airflow_settings.yaml: `python -m tools.local_airflow.settings load`",
        ) from error


def database_uri(connection: Connection) -> str:
    """Return the URI of the catalog or stash; empty when the connection means the file below ``TIDEMARK_HOME``."""
    if connection.conn_type == "sqlite":
        return f"sqlite:///{Path(connection.host).expanduser().resolve()}" if connection.host else ""
    if connection.conn_type not in {"postgres", "postgresql"}:
        raise ConfigurationInvalid(
            f"the Airflow connection {connection.conn_id!r} has the type {connection.conn_type!r}",
            hint="catalog and stash are in SQLite or PostgreSQL: use the type sqlite or postgres",
        )
    if not connection.host:
        raise ConfigurationInvalid(
            f"the Airflow connection {connection.conn_id!r} names no host",
            hint="set its host, or use the type sqlite for the file below TIDEMARK_HOME",
        )
    login = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    port = connection.port or POSTGRESQL_PORT
    more = urlencode(
        {name: value for name, value in connection.extra_dejson.items() if name in _EXTRAS}, quote_via=quote
    )
    query = f"?{more}" if more else ""
    return f"postgresql://{login}{password}@{connection.host}:{port}/{connection.schema or ''}{query}"


def tidemark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return every ``TIDEMARK_...`` variable a process needs, with what connections say where none is set."""
    found = {name: value for name, value in environ.items() if name.startswith("TIDEMARK_")}
    if not found.get("TIDEMARK_CATALOG_URI"):
        found["TIDEMARK_CATALOG_URI"] = database_uri(existing_connection(CATALOG_CONNECTION))
    if not found.get("TIDEMARK_STASH_URI"):
        found["TIDEMARK_STASH_URI"] = database_uri(existing_connection(STASH_CONNECTION))
    if not found.get("TIDEMARK_WAREHOUSE"):
        extra = existing_connection(WAREHOUSE_CONNECTION).extra_dejson
        found["TIDEMARK_WAREHOUSE"] = str(extra.get("path") or "")  # empty: the folder below TIDEMARK_HOME
    # A process that imports `tidemark` from an archive cannot derive these two folders from its own place.
    settings = Settings.load(found)
    return found | {"TIDEMARK_HOME": str(settings.home), "TIDEMARK_JARS": str(settings.jars)}


def load_settings() -> Settings:
    """Return the settings as this Airflow process sees them."""
    return Settings.load(tidemark_environment(os.environ))


def process_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment for ``spark-submit`` and the Python processes it starts."""
    scripts = str(Path(sys.executable).parent)
    # Every Python of this environment finds a library that was installed from a wheel.
    checkout = [str(LIBRARY.parent)] if IN_CHECKOUT else []
    python_path = [*checkout, *filter(None, [environ.get("PYTHONPATH")])]
    return {
        **environ,
        **tidemark_environment(environ),
        **({"PYTHONPATH": os.pathsep.join(python_path)} if python_path else {}),
        "PATH": os.pathsep.join([environ.get("PATH", os.defpath), scripts]),  # a user's own spark-submit goes first
        "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
    }


def with_source_connections(settings: Settings) -> Settings:
    """Return the settings with the connections of declarations that Airflow has, as an application gets them."""
    return replace(settings, connections={**source_connections(settings, {}), **settings.connections})


def source_connections(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``AIRFLOW_CONN_<NAME>`` for the connections that Airflow has and that declarations and sinks name.

    Those of dropped sinks are among them until maintenance has cleaned up after these.

    Variables of the environment are left out. A missing connection fails only the collection that needs the connection,
    and the message names the variables. The application reports a catalog that does not answer, or that nobody leads.
    """
    try:
        deployment = deployment_of(settings)
        applied, dropped = deployment.registry.read(), deployment.objects.dropped()
    except TidemarkError:
        return {}
    found = {}
    declared = applied.declarations.values()
    names = {name for declaration in declared for name in (*declaration.connections, *declaration.written_connections)}
    sinks = [sink.declaration for sink in applied.sinks.values()]
    sinks += [SinkDeclaration.model_validate(gone.definition) for gone in dropped if gone.kind is ObjectKind.SINK]
    names |= {name for sink in sinks for name in sink.to.connections}
    for name in sorted(names):
        variable = f"AIRFLOW_CONN_{name.upper()}"
        if variable not in environ:
            with suppress(AirflowNotFoundException):
                found[variable] = BaseHook.get_connection(name).as_json()
    return found
