"""Translates errors of Spark and of database drivers into errors that say who has to act."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # py4j has no annotations
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tidemark.errors import (
    ConfigurationInvalid,
    InputMissing,
    Refused,
    SchemaMismatch,
    SourceMoved,
    TidemarkError,
    Unreachable,
)
from tidemark.secrets.redaction import redact

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9]*_[A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\]")
_SQL_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")
_FILE = re.compile(r"reading file (\S.*?)\.(?:\s|$)")
_HEADER = re.compile(r"CSV header does not conform.*?CSV file: (\S+)", re.DOTALL)
_RECORD = re.compile(r"(?:record parsing|Malformed CSV record): (.*?)(?: SQLSTATE|\n|$)")
_MAX_CAUSES = 12
_DATA_EXCEPTION = "22"  # the SQL standard's class for values that an operation cannot take
_DRIVER_STATES = {"08": Unreachable, "28": ConfigurationInvalid, "3D": ConfigurationInvalid}
_SERVER_STOPS = "57P"  # PostgreSQL shuts down, crashes, or is starting up
_UNPARSED_SQLITE = ("Error parsing date", "Error parsing time")
_UNOPENED_SQLITE = ("CANTOPEN", "NOTADB")

SPARK_ERRORS = (PySparkException, Py4JJavaError)


class CannotFollow(Exception):
    """The changes of a source cannot be followed, for the reason that the message says: compare all rows."""


@contextmanager
def translating(where: str) -> Iterator[None]:
    """Turn Spark's errors in the block into typed errors, if the source causes them; other errors pass unchanged.

    ``where`` names the source in messages.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        translated = translate(error, where)
        if translated is None:
            raise
        raise translated from error


def translate(error: Exception, where: str) -> TidemarkError | None:
    """Return the typed form of ``error``; None if the source does not cause the error."""
    causes = list(_causes(error))
    text = "\n".join([str(error), *(message for _, message, _ in causes)])
    for name, message, state in causes:
        if found := _driver_error(name, message, state, where):
            return found
    conditions = _CONDITION.findall(text)
    return _file_error(conditions, text, causes, where) or _query_error(conditions, error, text, where)


def why_unreached(error: Exception, where: str) -> TidemarkError | None:
    """Return the typed form of ``error`` if no database has answered; None if one has, though with an error."""
    found = (_unreached(name, message, state, where) for name, message, state in _causes(error))
    return next(filter(None, found), None)


def _causes(error: Exception) -> Iterator[tuple[str, str, str]]:
    """Yield class, message and SQL state (of database drivers) of each Java exception, outermost first."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_MAX_CAUSES):
        if java is None:
            return
        name, message = java.getClass().getName(), java.getMessage() or ""
        from_driver = is_instance_of(SparkContext._gateway, java, "java.sql.SQLException")  # noqa: SLF001 - no other way
        yield name, message, (java.getSQLState() or "") if from_driver else ""
        java = java.getCause()


def _driver_error(name: str, message: str, state: str, where: str) -> TidemarkError | None:
    if name.startswith("org.apache.iceberg") and name.endswith("NotFoundException"):
        return SourceMoved(f"{where}: a snapshot was expired while it was read: {_first(message)}", hint="run again")
    if state == "42P01" or (name.startswith("org.sqlite") and "no such table" in message):
        return InputMissing(f"{where}: {_first(message)}", hint="check the source's `dbtable` or `query`")
    if message.startswith(_UNPARSED_SQLITE):
        hint = "declare `options: {date_string_format: yyyy-MM-dd}`, or `{customSchema: 'COLUMN string'}`"
        return Refused(f"{where}: SQLite: {_first(message)}, which is text of another form", hint=hint)
    return _unreached(name, message, state, where)


def _unreached(name: str, message: str, state: str, where: str) -> TidemarkError | None:
    first = _first(message) or name
    if name.startswith("org.sqlite") and any(code in message for code in _UNOPENED_SQLITE):
        hint = "check the file that the source's `url` or `connection` names, and who may read it"
        return InputMissing(f"{where}: its database cannot be opened: {first}", hint=hint)
    family = Unreachable if state.startswith(_SERVER_STOPS) else _DRIVER_STATES.get(state[:2])
    if family is not None:
        hint = "check the source's `url` or `connection`, and that the database runs"
        return family(f"{where}: {first}", hint=hint)
    if "No suitable driver" in message or name == "java.lang.ClassNotFoundException":
        return ConfigurationInvalid(f"{where}: {first}", hint="put the driver's jar into the folder of jars")
    return None


def _first(message: str) -> str:
    return redact(message.strip().splitlines()[0]) if message.strip() else ""


def _file_error(
    conditions: list[str], text: str, causes: list[tuple[str, str, str]], where: str
) -> TidemarkError | None:
    if "PATH_NOT_FOUND" in conditions or "FAILED_READ_FILE.FILE_NOT_EXIST" in conditions:
        return SourceMoved(f"{where}: a file vanished while it was read", hint="run again")
    if header := _HEADER.search(text):
        return SchemaMismatch(
            f"{where}: the header of {header[1]} is not the declared schema", hint=_one_line(header[0])
        )
    found = _FILE.search(text)
    file = found[1] if found else "a file"
    reason = _one_line(causes[-1][1]) if causes else ""
    if any(condition.startswith("MALFORMED_") for condition in conditions):
        records = _RECORD.findall(text)  # the innermost exception quotes the whole line
        return Refused(
            f"{where}: {file} holds a malformed record: {_one_line(records[-1]) if records else reason}",
            hint=f"repair the file, or the declared schema ({reason})" if reason else "repair the file",
        )
    if any(condition.startswith(("FAILED_READ_FILE", "CANNOT_READ_FILE")) for condition in conditions):
        return Refused(f"{where}: {file} cannot be read: {reason}", hint="replace the file")
    return None


def _query_error(conditions: list[str], error: Exception, text: str, where: str) -> TidemarkError | None:
    first = _one_line(str(error).split("\n\n", 1)[0])
    for condition in conditions:
        if condition.startswith("UNRESOLVED_COLUMN"):
            return SchemaMismatch(f"{where}: {first}", hint="repair the query, or the source that lacks the column")
        if condition in {"PARSE_SYNTAX_ERROR", "UNRESOLVED_ROUTINE"} or condition.startswith("DATATYPE_MISMATCH"):
            return ConfigurationInvalid(f"{where}: {first}", hint="repair the declaration")
        if condition == "TABLE_OR_VIEW_NOT_FOUND":
            return InputMissing(f"{where}: {first}", hint="check the table's name, and that its catalog is configured")
    states = _SQL_STATE.findall(text)
    if any(state.startswith(_DATA_EXCEPTION) for state in states):
        return Refused(f"{where}: {first}", hint="repair the values, or the query that meets them")
    return None


def first_line(error: Exception) -> str:
    """Return what an error of Spark or of Java says first, without secrets."""
    causes = [message for _, message, _ in _causes(error) if message]
    return _one_line((causes or [str(error)])[-1].split("\n", 1)[0])


def _one_line(text: str, limit: int = 300) -> str:
    line = redact(" ".join(text.split()))
    return line if len(line) <= limit else line[:limit] + "…"
