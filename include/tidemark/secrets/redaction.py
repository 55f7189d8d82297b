"""What must never be shown: the secrets of this process, taken out of every text that other programs wrote.

A driver, a parser or Spark may quote an address in its message. ``redact`` takes out the secrets that this process
knows (``know``: settings, connections, options of databases) and whatever stands where addresses have a password.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "***"
_NAME = r"pass(?:word|wd|phrase|code)|pwd|secret|token|credential|private[._-]?key|api[._-]?key|access[._-]?key|jaas"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)([^:/@\s]*):([^@\s]*)@")  # USER:PASSWORD@, with whatever a password may hold
_WIDE_LOGIN = re.compile(r"(?<=://)([^:/@\s]*):(\S*)@")  # up to the last @, which a password may hold, too
_ORACLE_LOGIN = re.compile(r"(?<=:)([^/@:?;\s]+)/([^/@\s]+)@")
_PARAMETER = re.compile(rf"([\w.%-]*(?:{_NAME})[\w.%-]*=)([^&;,)\s'\"]+)", re.IGNORECASE)
_ANY_PARAMETER = re.compile(r"([\w.%-]+)=([^&;,)\s'\"]*)")
_SHORTEST, _LONG = 4, 8  # a short secret is taken out of addresses alone; a long one even out of a word

_known: set[str] = set()


def is_secret_name(name: str) -> bool:
    """Tell whether an option of that name, percent-encoded or not, holds a secret."""
    return _SECRET_NAME.search(unquote(name)) is not None


def find_secrets(text: str) -> set[str]:
    """Return the secrets in an address, or in the JSON of an Airflow connection, as they stand and decoded."""
    if text.lstrip().startswith("{"):
        try:
            return set(_secrets_in(json.loads(text)))
        except ValueError:
            pass
    patterns = (_LOGIN, _WIDE_LOGIN, _ORACLE_LOGIN)
    found = [match[2] for pattern in patterns for match in pattern.finditer(text)]
    found += [value for name, value in _ANY_PARAMETER.findall(text) if is_secret_name(name)]
    return {form for secret in found for form in (secret, unquote(secret), unquote_plus(secret)) if form}


def holds_secret(text: str) -> bool:
    """Tell whether an address has a parameter that holds a secret, percent-encoded or not."""
    return any(is_secret_name(name) for each in (text, unquote(text)) for name, _ in _ANY_PARAMETER.findall(each))


def _secrets_in(value: Any, *, is_secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets_in(inner, is_secret=is_secret or is_secret_name(str(name)))
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets_in(inner, is_secret=is_secret)
    elif isinstance(value, str):
        yield from {value} if is_secret else find_secrets(value)


def know(*texts: str, secrets: tuple[str | None, ...] = ()) -> None:
    """Remember for ``redact`` the secrets in addresses and connections, and ``secrets`` themselves."""
    found = {*filter(None, secrets)}.union(*map(find_secrets, texts))
    _known.update(found, (quote(secret, safe="") for secret in found))


def redact(text: str) -> str:
    """Return ``text`` without secrets."""
    for secret in sorted(_known, key=len, reverse=True):  # of a copy: threads may learn more
        if len(secret) >= _LONG:
            text = text.replace(secret, HIDDEN)
        elif len(secret) >= _SHORTEST and secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    text = _LOGIN.sub(rf"\1:{HIDDEN}@", text)
    text = _ORACLE_LOGIN.sub(rf"\1/{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\1{HIDDEN}", text)


def first_line(error: BaseException) -> str:
    """Return the first line of a driver's message without secrets, or the name of the error."""
    text = str(error).strip()
    return redact(text.splitlines()[0]) if text else type(error).__name__


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error, without secrets."""
    return redact("".join(traceback.format_exception(error)))


class RedactingFormatter(logging.Formatter):
    """Formats log records, of whatever library, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
