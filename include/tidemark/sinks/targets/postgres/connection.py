"""Connections to the PostgreSQL of a sink, and its errors in the families of Tidemark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from tidemark.collections.sources.logins import EXAMPLE_URL, JDBC, find_login
from tidemark.errors import (
    ConfigurationInvalid,
    InputMissing,
    NotPossible,
    Refused,
    SchemaMismatch,
    StaleState,
    TidemarkError,
    Unreachable,
)
from tidemark.secrets.redaction import first_line, redact
from tidemark.settings import Settings

SILENCE_S = 15  # after which a server that went away without closing the connection counts as lost
# Said in each transaction, because a pool may give each one another session. A frozen process must not hold the locks
# of a target for ever (in a COPY the next run ends it), a run waits for another one for a while, a load takes as long
# as it takes, and times are UTC.
BEGIN = (
    "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL lock_timeout = '20s'; "
    "SET LOCAL statement_timeout = 0; SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL timezone = 'UTC'"
)
_POSTGRESQL = "postgresql:"
# libpq gives no SQL state for a login that the server refuses (classes 28 and 3D), only the server's text.
_REFUSED_LOGIN = re.compile(
    r'authentication failed for user|no password supplied|pg_hba\.conf|role ".*" (does not exist|is not permitted)|'
    r'database ".*" does not exist|permission denied for database'
)
_LOST = ("08", "57", "53", "58")  # connection exceptions, a server that stops or cancels, no resources, the disk


def connection_options(name: str, settings: Settings) -> dict[str, Any]:
    """Return what ``psycopg.connect`` takes for the connection ``name``.

    Raises ``ConfigurationInvalid`` if the connection is not set, or is not one to PostgreSQL.
    """
    login = find_login(name, settings.connections)
    variable = f"TIDEMARK_SOURCE_{name.upper()}_URL"
    if login.url is None:
        raise ConfigurationInvalid(
            f"the URL of the connection {name!r} is not set", hint=f"set {variable} as in {EXAMPLE_URL}"
        )
    uri = login.url.removeprefix(JDBC)
    if not uri.startswith(_POSTGRESQL):
        raise ConfigurationInvalid(
            f"the connection {name!r} is not one to PostgreSQL, the only database that sinks write to",
            hint=f"set {variable} as in {EXAMPLE_URL}",
        )
    try:
        options = conninfo_to_dict(uri)
    except psycopg.ProgrammingError as error:
        raise ConfigurationInvalid(
            f"the URL of the connection {name!r} is none that libpq reads: {first_line(error)}",
            hint=f"repair {variable}: parameters after the ? are those of libpq, such as sslmode",
        ) from None  # libpq may quote a password
    return {
        "user": login.user,
        "password": login.password,
        **options,
        "connect_timeout": max(2, int(settings.connect_timeout_s)),  # libpq takes 1 for 2
        "keepalives_idle": SILENCE_S // 3,
        "keepalives_interval": SILENCE_S // 3,
        "keepalives_count": 2,
        "tcp_user_timeout": SILENCE_S * 1_000,
    }


def application_name(sink: str) -> str:
    """Return the name by which PostgreSQL knows the sessions of a sink."""
    return f"tidemark-sink-{sink}"[:63]


def connect(options: dict[str, Any], *, title: str, sink: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection that is in no transaction.

    Raises:
        ConfigurationInvalid: If the server refuses the login, or has no such database.
        Unreachable: If the server does not answer, or takes no connection for now.
    """
    try:
        return psycopg.connect(**options, autocommit=True, application_name=application_name(sink))
    except psycopg.Error as error:
        if refusal := find_refusal(str(error)):
            raise ConfigurationInvalid(
                f"{title}: the database refuses the login: {refusal}",
                hint="repair the URL, the user or the password of the connection, or the user's rights in the database",
            ) from error
        raise Unreachable(
            f"{title} does not answer, or takes no connection: {first_line(error)}",
            hint="start the database, or check the connection; the sink goes on where it was, and history is kept",
        ) from error


def find_refusal(text: str) -> str:
    """Return the line of libpq's ``text`` in which a server refuses the login for good; empty if no server does."""
    return next((redact(line.strip()) for line in text.splitlines() if _REFUSED_LOGIN.search(line)), "")


class LostConnection(Unreachable):
    """The connection broke; whether a commit that was under way landed is not known."""


@contextmanager
def translated(title: str) -> Iterator[None]:
    """Raise the errors of ``psycopg`` as those of Tidemark."""
    try:
        yield
    except (errors.UniqueViolation, errors.CardinalityViolation) as error:
        raise Refused(
            f"two rows for {title} have the same key: {_told(error)}",
            hint="declare columns as `key` that tell all rows of the collection apart, or `mode: changes`",
        ) from error
    except errors.IntegrityError as error:  # NOT NULL, a check, or a foreign key of the target's owner
        raise Refused(
            f"{title} refuses a row: {_told(error)}", hint="the constraint is the target's: change it or the row"
        ) from error
    except (errors.DataError, errors.ProgramLimitExceeded) as error:
        raise Refused(f"{title} cannot hold a value: {_told(error)}", hint="change it in the source") from error
    except (errors.LockNotAvailable, errors.SerializationFailure, errors.DeadlockDetected) as error:
        raise StaleState(
            f"somebody else has {title} locked: {first_line(error)}",
            hint="another run may be writing to it; this one is tried again",
        ) from error
    except (errors.InvalidSchemaName, errors.UndefinedTable) as error:
        raise InputMissing(
            f"{title} is gone, or its schema is: {first_line(error)}",
            hint="make the schema; if the table was removed, drop the sink and declare it again",
        ) from error
    except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
        raise NotPossible(
            f"{title} does not allow it: {first_line(error)}",
            hint="the connection's user needs to create and write tables there, on the primary server",
        ) from error
    except psycopg.Error as error:
        if (error.sqlstate or "08").startswith(_LOST):
            raise LostConnection(
                f"{title} went away: {first_line(error)}",
                hint="the next run goes on where the target is; history is kept until then",
            ) from error
        raise _refusal(error, title) from error


def _refusal(error: psycopg.Error, title: str) -> TidemarkError:
    """Return what a statement's refusal means that has no family above: the owner of the table changed something."""
    state = error.sqlstate or ""
    if state.startswith("42"):  # columns, types, keys, generated columns
        return SchemaMismatch(
            f"{title} is not as the sink made it, or found it: {_told(error)}", hint="undo the change there"
        )
    if state.startswith(("0A", "2B")):
        return NotPossible(
            f"something in the database depends on {title} as it is: {_told(error)}",
            hint="drop what depends (a view, for example), run the sink, and make it again",
        )
    return Refused(  # a trigger that raises, for example
        f"{title} refuses what the sink writes: {_told(error)} (SQLSTATE {state})", hint="change it in the database"
    )


def _told(error: psycopg.Error) -> str:
    return f"{first_line(error)} {error.diag.message_detail or ''}".strip()
