"""Write buffers: declared like other sources, but read by an ingest, never opened by a run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from tidemark.collections.declarations.append_only import Duration, duration_ms
from tidemark.collections.sources.formats.source import IDENTIFIER, Source
from tidemark.errors import UsageError
from tidemark.secrets.redaction import holds_secret

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import Opening

MOST_ENTRIES: Final = 50_000  # the default
_SECOND_MS, _HOUR_MS = 1_000, 3_600_000


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


def _check_pace(every: str) -> str:
    if not _SECOND_MS <= duration_ms(every) <= _HOUR_MS:
        raise ValueError(
            f"storage workers run an object every 1s to 1h, got {every!r}: leave `every` out for what the scheduled "
            "DAG may run more seldom"
        )
    return every


BufferPlace = Annotated[str, AfterValidator(_refuse_secret)]  # an address, or the name of a connection
Pace = Annotated[Duration, AfterValidator(_check_pace)]  # how often storage workers run an object


def pace_ms(every: str | None) -> int | None:
    """Return ``every`` in ms; None for what the scheduled DAG alone runs."""
    return None if every is None else duration_ms(every)


class BufferSource(Source):
    """The rows that arrive through a write buffer; only an ingest appends them."""

    form = "buffer"
    takes_no_events = "is for sources of differential collections: declare `every` to have a buffer ingested at once"

    buffer: BufferPlace
    table: str | None = Field(default=None, min_length=1)  # None: every row, with or without a table
    on_expired: OnLost = OnLost.FAIL  # entries that retention removed before they were ingested
    check_keys: bool = False  # whether an ingest looks at the key of every row, not only of a sample
    on_recreated: OnLost = OnLost.FAIL  # another log of the same name, whose numbers begin anew
    envelope: Envelope | None = None  # for the latest row per key alone
    every: Pace | None = None  # None: the scheduled DAG alone ingests
    most_entries: Annotated[int, Field(ge=1, strict=True)] = MOST_ENTRIES  # of one round of one storage worker

    @model_validator(mode="after")
    def _bounds_rounds_that_there_are(self) -> Self:
        if self.every is None and self.most_entries != MOST_ENTRIES:
            raise ValueError(
                "`most_entries` bounds a round of a storage worker, and without `every` none ingests: declare "
                "`every: 5s`, or leave `most_entries` out"
            )
        return self

    @property
    def every_ms(self) -> int | None:
        return pace_ms(self.every)

    @property
    def connection_name(self) -> str | None:  # None for an address
        return None if ":" in self.buffer else self.buffer

    def open(self, opening: Opening, where: str) -> NoReturn:  # noqa: ARG002 - the signature of Source
        raise UsageError(f"{where} is a write buffer, which an ingest reads", hint="run `tidemark buffer ingest`")
