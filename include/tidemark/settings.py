"""All settings, read once: environment over defaults, checked at start with messages that name the setting.

Orchestration passes Airflow connections as environment variables to the processes that it starts; a variable that is
set already wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tidemark.errors import ConfigurationInvalid
from tidemark.locations import NOT_IN_DATABASES, NOT_IN_FOLDERS, check_path, parse_uri, to_location
from tidemark.secrets.database_uri import DatabaseUri
from tidemark.secrets.redaction import is_secret_name, know

CATALOG_PREFIX = "TIDEMARK_CATALOG_"  # of the Iceberg catalogs that sinks write to, by name
CONNECTION_PREFIXES = ("TIDEMARK_SOURCE_", "TIDEMARK_BUFFER_", "AIRFLOW_CONN_", CATALOG_PREFIX)
LIBRARY = Path(__file__).resolve().parent
PROJECT_ROOT = LIBRARY.parents[1]
# A checkout, or an image with the same folders, has the applications beside `include/`; a wheel has them inside.
IN_CHECKOUT = LIBRARY.parent.name == "include" and (PROJECT_ROOT / "spark_apps").is_dir()
SPARK_APPS = (PROJECT_ROOT if IN_CHECKOUT else LIBRARY) / "spark_apps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where state lives, and which deployment this process belongs to."""

    home: Path
    catalog_uri: DatabaseUri
    stash_uri: DatabaseUri  # of the SQL back end of the system's own catalog
    warehouse: str  # a location (`locations.py`), or s3://…
    reports: Path
    jars: Path  # folder with Spark's jars; `make setup` or `tidemark init --jars` fills it
    generation: int
    # Raw connections of sources, buffers and catalogs by variable, with passwords; parsed when one is opened.
    connections: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    connect_timeout_s: float = 3.0  # an unreachable store must be reported within 5 s, the start of Python included
    lease_s: float = 30.0  # a process that does not renew its lease for so long counts as dead

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Settings:
        """Build the settings from ``TIDEMARK_…`` variables; with ``TIDEMARK_HOME`` alone everything is embedded there.

        The secrets among them are known from here on, and taken out of every message.

        Raises ``ConfigurationInvalid`` if a variable is malformed; the message names it, never its password.
        """
        connections = {name: value for name, value in environ.items() if name.startswith(CONNECTION_PREFIXES)}
        texts = [value for name, value in environ.items() if name.startswith("TIDEMARK_")]  # an address may be anywhere
        known = [value for name, value in connections.items() if is_secret_name(name)]
        know(*texts, *connections.values(), secrets=tuple(known))
        home = Path(environ.get("TIDEMARK_HOME") or _default_folder(environ, "home")).expanduser().resolve()
        check_path(home, refused=NOT_IN_FOLDERS, variable="TIDEMARK_HOME", environ=environ)
        text = environ.get("TIDEMARK_GENERATION") or "1"
        if not text.isdecimal() or int(text) < 1:
            raise ConfigurationInvalid(f"TIDEMARK_GENERATION must be a whole number from 1 on, got {text!r}")
        return cls(
            home=home,
            catalog_uri=_database_uri(environ, "TIDEMARK_CATALOG_URI", home / "catalog.db"),
            stash_uri=_database_uri(environ, "TIDEMARK_STASH_URI", home / "stash.db"),
            warehouse=_warehouse(environ, home / "warehouse"),
            reports=Path(environ.get("TIDEMARK_REPORTS") or home / "reports"),
            jars=Path(environ.get("TIDEMARK_JARS") or _default_folder(environ, "jars")),
            generation=int(text),
            connections=connections,
        )

    @property
    def catalog_is_sqlite(self) -> bool:
        return self.catalog_uri.path is not None

    @property
    def catalog_path(self) -> Path:
        """The SQLite file; only if ``catalog_is_sqlite``."""
        if (path := self.catalog_uri.path) is None:
            raise ValueError("the catalog is on a server")
        return path


def _default_folder(environ: Mapping[str, str], name: Literal["home", "jars"]) -> Path:
    """Return a folder that does not depend on the working directory of the process."""
    if IN_CHECKOUT:
        return PROJECT_ROOT / {"home": ".tidemark", "jars": ".jars"}[name]
    return Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "tidemark" / name


def _warehouse(environ: Mapping[str, str], default: Path) -> str:
    text = environ.get("TIDEMARK_WAREHOUSE")
    if not text:
        return to_location(default)
    is_uri = "://" in text or text.startswith("file:")
    path = parse_uri(text) if is_uri else Path(text).expanduser().resolve()
    if path is None:
        if "@" in urlsplit(text).netloc:
            raise ConfigurationInvalid(
                "TIDEMARK_WAREHOUSE must not hold a login", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return text.rstrip("/")
    return to_location(check_path(path, refused=NOT_IN_FOLDERS, variable="TIDEMARK_WAREHOUSE", environ=environ))


def _database_uri(environ: Mapping[str, str], variable: str, default: Path) -> DatabaseUri:
    uri = DatabaseUri.parse(environ.get(variable) or f"sqlite:///{default}", variable=variable)
    if uri.path is not None:
        check_path(uri.path, refused=NOT_IN_DATABASES, variable=variable, environ=environ)
    return uri
