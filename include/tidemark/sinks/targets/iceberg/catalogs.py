"""The catalogs of Iceberg tables that sinks write: our own, and others by the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError, RESTError
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from tidemark.errors import ConfigurationInvalid, Unreachable
from tidemark.iceberg.shard.catalog import open_catalog
from tidemark.iceberg.shard.state_reader import CATALOG_NAME
from tidemark.iceberg.shards import COLLECTIONS, DROPPED, SYSTEM
from tidemark.secrets.redaction import first_line, is_secret_name, know
from tidemark.settings import CATALOG_PREFIX, Settings
from tidemark.sinks.targets.batches import file_gone

LOST = (SQLAlchemyError, RESTError, OSError)  # what pyiceberg raises when a catalog, or a store, does not answer
EXAMPLE_URI = "sqlite:////data/lake.db"
_POSTGRESQL = "postgresql://"


@contextmanager
def answering(title: str) -> Iterator[None]:
    """Raise ``Unreachable`` if the catalog, or the store of files, fails; not for commits, which may have landed.

    Raises ``InputMissing`` if a file of the table is gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise file_gone(title, error) from error
    except LOST as error:
        raise Unreachable(
            f"{title}: {first_line(getattr(error, 'orig', None) or error)}",
            hint="check that catalog and store answer, and the login; history is kept until then",
        ) from error


def check_name(catalog: str, table: str, settings: Settings) -> None:
    """Raise ``ConfigurationInvalid`` for a catalog that is not set, and for a table among our collections."""
    if catalog != CATALOG_NAME:
        catalog_properties(catalog, settings)
    elif table.split(".", maxsplit=1)[0] in {COLLECTIONS, DROPPED, SYSTEM}:
        raise ConfigurationInvalid(
            f"the namespace of {table!r} belongs to the collections of this installation",
            hint=f"choose another namespace of the catalog {CATALOG_NAME!r}, for example `analytics`",
        )


def open_target_catalog(name: str, settings: Settings) -> Catalog:
    """Open the catalog.

    Raises:
        ConfigurationInvalid: If the catalog is not set, or pyiceberg cannot use its properties.
        Unreachable: If the folder of an SQLite catalog is not there.
    """
    if name == CATALOG_NAME:
        return open_catalog(settings)
    properties = catalog_properties(name, settings)
    try:
        _check_folder(name, properties.get("uri", ""))
        return load_catalog(name, **properties)
    except LOST:
        raise
    except (ValueError, KeyError, NotInstalledError, ImportError) as error:
        if "uri" not in properties:  # not before: some types need none
            variable = f"{CATALOG_PREFIX}{name.upper()}_URI"
            raise ConfigurationInvalid(
                f"the URI of the catalog {name!r} is not set", hint=f"set {variable}, for example to {EXAMPLE_URI}"
            ) from error
        raise ConfigurationInvalid(
            f"the catalog {name!r} cannot be opened: {first_line(error)}",
            hint=f"check the variables {CATALOG_PREFIX}{name.upper()}_…: they are the catalog properties of pyiceberg",
        ) from error


def _check_folder(name: str, uri: str) -> None:
    """Raise ``Unreachable`` if the database of an SQLite catalog cannot be made, because its folder is not there."""
    if uri.startswith("sqlite"):
        path = Path(make_url(uri).database or "")
        if not (path.parent.is_dir() or str(path).startswith("file:")):
            raise Unreachable(
                f"the catalog {name!r}: the folder of its SQLite database {str(path)!r} does not exist",
                hint=f"make the folder {str(path.parent)!r}, or mount it: SQLite makes no folders",
            )


def catalog_properties(name: str, settings: Settings) -> dict[str, str]:
    """Return pyiceberg's properties of a catalog: ``TIDEMARK_CATALOG_LAKE_S3__ACCESS_KEY_ID`` is ``s3.access-key-id``.

    Raises ``ConfigurationInvalid`` if the environment has none.
    """
    prefix = f"{CATALOG_PREFIX}{name.upper()}_"
    found = {
        variable.removeprefix(prefix).lower().replace("__", ".").replace("_", "-"): value
        for variable, value in settings.connections.items()
        if variable.startswith(prefix)
    }
    if not found:
        raise ConfigurationInvalid(
            f"the catalog {name!r} is not set",
            hint=f"set {prefix}TYPE, {prefix}URI and {prefix}WAREHOUSE; the catalog of this installation is called "
            f"{CATALOG_NAME!r}",
        )
    if found.get("warehouse", "").removeprefix("file://").rstrip("/") == settings.warehouse.removeprefix("file://"):
        raise ConfigurationInvalid(
            f"the catalog {name!r} keeps its files in the warehouse of this installation, whose maintenance removes "
            "files that no table of its own catalog names",
            hint=f"set {prefix}WAREHOUSE to another place, or name the catalog {CATALOG_NAME!r}",
        )
    know(*found.values(), secrets=tuple(value for key, value in found.items() if is_secret_name(key)))
    uri = found.get("uri", "")
    if uri.startswith(_POSTGRESQL):  # the driver that is installed
        seconds = max(2, int(settings.connect_timeout_s))
        found["uri"] = f"{uri.replace(_POSTGRESQL, 'postgresql+psycopg://', 1)}{'&' if '?' in uri else '?'}" + (
            f"connect_timeout={seconds}"
        )
    return found
