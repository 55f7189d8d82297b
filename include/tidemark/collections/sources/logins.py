"""Logins of databases, read from the environment alone: declarations and reports never hold a secret.

A connection NAME is ``TIDEMARK_SOURCE_<NAME>_URL``, ``_USER`` and ``_PASSWORD``; a missing part comes from
``AIRFLOW_CONN_<NAME>``, as a URI or as JSON, the two forms that Airflow itself reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tidemark.errors import ConfigurationInvalid
from tidemark.secrets.redaction import know

JDBC = "jdbc:"
SQLITE = "jdbc:sqlite:"
EXAMPLE_URL = "jdbc:postgresql://host:5432/database"
_WHOLE_SQLITE = ("/", ":", "file:/")  # a path, ``:memory:`` or ``:resource:``, a URI
_JDBC_SCHEMES = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}


@dataclass(frozen=True, slots=True)
class Login:
    """The URL of a database, and who logs in; any part may be missing."""

    url: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def find_login(name: str, environ: Mapping[str, str]) -> Login:
    """Return the login of the connection ``name``.

    Raises ``ConfigurationInvalid`` if no variable is set, or one cannot be read; the message never quotes a value.
    """
    own, airflow = f"TIDEMARK_SOURCE_{name.upper()}", f"AIRFLOW_CONN_{name.upper()}"
    text = environ.get(airflow)
    fallback = Login() if text is None else _parse(text, airflow)
    login = Login(
        url=environ.get(f"{own}_URL", fallback.url),
        user=environ.get(f"{own}_USER", fallback.user),
        password=environ.get(f"{own}_PASSWORD", fallback.password),
    )
    know(text or "", login.url or "", secrets=(login.password,))  # a driver may quote what it is given
    if login == Login():
        raise ConfigurationInvalid(
            f"the connection {name!r} is not set", hint=f"set {own}_URL, {own}_USER and {own}_PASSWORD, or {airflow}"
        )
    if login.url is not None and not login.url.startswith(JDBC):
        raise ConfigurationInvalid(
            f"the URL of the connection {name!r} does not start with {JDBC}",
            hint=f"set {own}_URL as in {EXAMPLE_URL}, without a password, which belongs into {own}_PASSWORD",
        )
    if login.url is not None and is_relative(login.url):
        raise ConfigurationInvalid(
            f"the URL of the connection {name!r} names an SQLite file from the folder that a run starts in",
            hint=f"set {own}_URL={SQLITE}/FOLDER/FILE, or {airflow}=sqlite:////FOLDER/FILE",
        )
    return login


def is_relative(url: str) -> bool:
    """Say whether a URL names an SQLite file by a path that depends on the folder of the process."""
    return url.startswith(SQLITE) and not url.removeprefix(SQLITE).startswith(_WHOLE_SQLITE)


def _parse(text: str, variable: str) -> Login:
    try:
        return _parse_json(json.loads(text)) if text.lstrip().startswith("{") else _parse_uri(text)
    except (ValueError, KeyError, TypeError):  # the text of the error would quote the password
        raise ConfigurationInvalid(
            f"{variable} is neither a connection URI nor the JSON form of a connection",
            hint="for example postgres://USER:PASSWORD@HOST:5432/DATABASE",
        ) from None


def _parse_json(fields: dict[str, Any]) -> Login:
    port = fields.get("port")
    return Login(
        url=_jdbc_url(fields["conn_type"], fields.get("host") or "", port, fields.get("schema") or ""),
        user=fields.get("login") or None,
        password=fields.get("password") or None,
    )


def _parse_uri(uri: str) -> Login:
    parts = urlsplit(uri)
    if not parts.scheme:
        raise ValueError
    path = parts.path.removeprefix("/")  # sqlite:////absolute, as Airflow and SQLAlchemy write it
    return Login(
        url=_jdbc_url(parts.scheme, unquote(parts.hostname or ""), parts.port, unquote(path)),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )


def _jdbc_url(database_type: str, host: str, port: int | None, database: str) -> str:
    if host.startswith(JDBC):  # Airflow's JDBC connections keep the whole URL there
        return host
    scheme = _JDBC_SCHEMES[database_type]
    if scheme == "sqlite":
        return f"{SQLITE}{host or database}"
    return f"jdbc:{scheme}://{host}{f':{port}' if port else ''}/{database}"
