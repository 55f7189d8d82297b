"""Write buffers: declared like other sources, but read by an ingest, never opened by a run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

from pydantic import AfterValidator, Field, ValidationInfo

from tidemark.collections.sources.formats.source import IDENTIFIER, Source
from tidemark.errors import UsageError
from tidemark.secrets.redaction import holds_secret

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import Opening


class OnLost(StrEnum):
    """What an ingest does about entries that it can never read."""

    FAIL = "fail"
    EARLIEST = "earliest"


class Envelope(StrEnum):
    """How a message says what became of a row, if it is not the row itself."""

    DEBEZIUM = "debezium"


def _refuse_secret(buffer: str, info: ValidationInfo) -> str:
    if ":" not in buffer:
        if not IDENTIFIER.fullmatch(buffer):
            raise ValueError("is neither an address nor a name of letters, digits and underscores")
    elif "@" in buffer.partition("?")[0] or "password" in buffer.lower() or (info.context and holds_secret(buffer)):
        raise ValueError("must not hold a user or a password: give the name of a connection that has them")
    return buffer


BufferPlace = Annotated[str, AfterValidator(_refuse_secret)]  # an address, or the name of a connection


class BufferSource(Source):
    """The rows that arrive through a write buffer; only an ingest appends them."""

    form = "buffer"
    buffer: BufferPlace
    table: str | None = Field(default=None, min_length=1)  # None: every row, with or without a table
    on_expired: OnLost = OnLost.FAIL  # entries that retention removed before they were ingested
    check_keys: bool = False  # whether an ingest looks at the key of every row, not only of a sample
    on_recreated: OnLost = OnLost.FAIL  # another log of the same name, whose numbers begin anew
    envelope: Envelope | None = None  # for the latest row per key alone

    @property
    def connection_name(self) -> str | None:  # None for an address
        return None if ":" in self.buffer else self.buffer

    def open(self, opening: Opening, where: str) -> NoReturn:  # noqa: ARG002 - the signature of Source
        raise UsageError(f"{where} is a write buffer, which an ingest reads", hint="run `tidemark buffer ingest`")
