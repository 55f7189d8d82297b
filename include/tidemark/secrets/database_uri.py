"""The address of a database in a setting: parsed once, before anything is opened, and shown without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import category
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tidemark.errors import ConfigurationInvalid
from tidemark.locations import sqlite_path
from tidemark.secrets.redaction import HIDDEN, is_secret_name

PORT = 5432
_FORM = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters escaped: / is %2F, @ is %40"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)|sqlite(?=:)")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_LOGIN = {"user", "password"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUri:
    """A file of SQLite, or a database of PostgreSQL. ``str`` and ``repr`` hide the password; ``reveal`` has it."""

    path: Path | None = None  # of SQLite's file
    host: str = ""
    port: int = PORT
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # a key may have a password, too

    @classmethod
    def parse(cls, text: str, *, variable: str) -> DatabaseUri:
        """Read what ``variable`` holds. Raises ``ConfigurationInvalid``, which quotes nothing that may be a secret."""
        scheme = (found := _SCHEME.match(text)) and found[0].lower()
        if text != text.strip():
            raise ConfigurationInvalid(f"{variable} begins or ends with a space", hint="leave the space out")
        if scheme == "sqlite":
            if not text.startswith("sqlite:////"):
                raise ConfigurationInvalid(
                    f"{variable} must name a file by its absolute path, as in sqlite:////data/catalog.db: "
                    "every process must find the same one"
                )
            return cls(path=sqlite_path(text))
        if scheme not in {"postgres", "postgresql"}:  # Airflow and libpq say both
            given = f", got the scheme {scheme!r}" if scheme else ""
            raise ConfigurationInvalid(f"{variable} must start with sqlite:/// or postgresql://{given}")
        try:
            return cls._parse_server(text)
        except ValueError:  # the text of the error may quote the password
            raise ConfigurationInvalid(f"{variable} is not a URI of PostgreSQL", hint=_FORM) from None

    @classmethod
    def _parse_server(cls, text: str) -> DatabaseUri:
        parts = urlsplit(text)
        login, _, _ = parts.netloc.rpartition("@")
        # An @, / or # that is not escaped would end the password early, and what follows would be shown as an address.
        if "#" in text or "@" in login + parts.path + parts.query or _BROKEN_ESCAPE.search(text):
            raise ValueError
        if any(letter.isspace() or category(letter) == "Cc" for letter in text) or parts.port == 0:
            raise ValueError
        user, _, password = map(unquote, login.partition(":"))
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        by_name = {"user": user, "password": password} | {name: value for name, value in options if name in _LOGIN}
        return cls(
            host=unquote(parts.hostname or ""),
            port=PORT if parts.port is None else parts.port,
            user=by_name["user"],
            password=by_name["password"],
            database=unquote(parts.path.removeprefix("/")),
            options=tuple(each for each in options if each[0] not in _LOGIN),
        )

    @property
    def where(self) -> str:
        """Where the server listens, for messages: a host and a port, or a socket."""
        options = dict(self.options)
        host, port = self.host or options.get("host", ""), options.get("port", self.port)
        if host and not host.startswith("/"):
            return f"{f'[{host}]' if ':' in host else host}:{port}"
        return f"the socket {host}/.s.PGSQL.{port}" if host else f"the local socket of port {port}"

    def reveal(self, scheme: str = "postgresql") -> str:
        """Return the URI with the password, for drivers alone."""
        return self._text(self.password, self.options, scheme=scheme)

    def __str__(self) -> str:
        options = tuple((name, HIDDEN if is_secret_name(name) else value) for name, value in self.options)
        return self._text(HIDDEN if self.password else "", options)

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")

    def _text(self, password: str, options: tuple[tuple[str, str], ...], *, scheme: str = "postgresql") -> str:
        if self.path is not None:
            return f"sqlite:///{self.path}"
        login = quote(self.user, safe="") + (f":{quote(password, safe='*')}" if password else "")
        place = f"{self._host}:{self.port}" if self._host or self.port != PORT else ""
        query = f"?{urlencode(options, quote_via=quote, safe='*')}" if options else ""
        return f"{scheme}://{login}{'@' if login else ''}{place}/{quote(self.database, safe='')}{query}"

    @property
    def jdbc_url(self) -> str:
        """The JDBC form, without the login and options that are secrets, which ``jdbc_secrets`` has."""
        options = tuple(each for each in self.options if not is_secret_name(each[0]))
        query = f"?{urlencode(options, quote_via=quote)}" if options else ""
        return f"jdbc:postgresql://{self._host or 'localhost'}:{self.port}/{quote(self.database, safe='')}{query}"

    @property
    def jdbc_secrets(self) -> dict[str, str]:
        """The login, as far as there is one, and options that are secrets."""
        login = {"user": self.user, "password": self.password}
        secrets = {name: value for name, value in self.options if is_secret_name(name)}
        return {name: value for name, value in (login | secrets).items() if value}
