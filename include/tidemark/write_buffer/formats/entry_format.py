"""The formats that an entry's payload can have, as its ``content-type`` header names them."""

from __future__ import annotations

from enum import StrEnum

CONTENT_TYPE = "content-type"


class EntryFormat(StrEnum):
    """A format and its version. What is written is the value; ``parse_content_type`` also takes other spellings."""

    JSON_ROWS = "application/x-ndjson; version=1"
    LINE_PROTOCOL = "application/vnd.influxdata.line-protocol; version=1"


DEFAULT_FORMAT = EntryFormat.JSON_ROWS  # of messages without the header: most producers that we do not know write JSON
_DEFAULT_VERSION = "1"
_FORMATS = {
    ("application/x-ndjson", "1"): EntryFormat.JSON_ROWS,
    ("application/json", "1"): EntryFormat.JSON_ROWS,  # one row is a document of one line
    ("application/vnd.influxdata.line-protocol", "1"): EntryFormat.LINE_PROTOCOL,
}


def parse_content_type(text: str) -> EntryFormat | None:
    """Return the format that ``text`` names; ``None`` if it is one, or a version of one, that is not known here.

    Case does not matter, a missing version is the first one, and ``charset=utf-8`` says what is so anyway. A payload in
    a version that this process does not know is never guessed at: it was written by a newer one.
    """
    kind, *parameters = (part.strip().lower() for part in text.split(";"))
    version = _DEFAULT_VERSION
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        value = value.strip().strip('"')
        if name.strip() == "version":
            version = value
        elif (name.strip(), value) != ("charset", "utf-8") and parameter:
            return None
    return _FORMATS.get((kind, version))
