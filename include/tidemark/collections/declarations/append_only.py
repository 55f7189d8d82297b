"""Declarations for append-only collections alone: intervals, retention of rows, expectations, histories of statuses."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from tidemark.collections.sources.formats.source import Strict
from tidemark.interval import Unit, instant, milliseconds

ColumnName = Annotated[str, StringConstraints(min_length=1)]


def _refuse_repeated(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names a column twice")
    return names


ColumnNames = Annotated[tuple[ColumnName, ...], AfterValidator(_refuse_repeated)]


def given(value: Any) -> str:
    """Return what a message says of a value that was declared; nothing of a mapping, which may hold a secret."""
    return f", got {value!r}" if isinstance(value, str | int | float) else ""


def read_duration(value: Any) -> Any:
    """Return ``value`` if it is the text of a duration. Raises ``ValueError`` if it is not."""
    if not isinstance(value, str) or re.fullmatch(r"[1-9][0-9]*[smhd]", value) is None:
        raise ValueError(f"a duration is a whole number above 0 and its unit, s, m, h or d, as in `5s`{given(value)}")
    return value


Duration = Annotated[str, BeforeValidator(read_duration)]
# YAML reads a date without quotes as a date, not as text.
Bound = Annotated[
    bool | int | float | str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value)
]
_FIELDS_BY_POLICY = {  # the fields that a policy needs, and the fields that contradict the policy
    "age": (("column",), ("order_by", "key")),
    "time_window": (("column",), ("order_by",)),
    "last_n": (("key", "order_by"), ("column",)),
}
_DURATION_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Return a duration such as ``400d`` in ms."""
    return int(text[:-1]) * _DURATION_MS[text[-1]]


def _read_instant(value: Any) -> Any:
    """Return a date or time, which YAML may have read already, as a time in ISO form, in UTC."""
    text = value.isoformat() if isinstance(value, date) else value
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a date or time in ISO form") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


Instant = Annotated[str, BeforeValidator(_read_instant)]


class Intervals(Strict):
    """The intervals that scheduled runs append, each once it is over: the units ``every``, in UTC.

    They lie in ``[start, end)``; without ``end`` they go on for ever.
    """

    start: Instant
    end: Instant | None = None
    every: Unit = Unit.HOUR

    @model_validator(mode="after")
    def _is_of_whole_units(self) -> Self:
        for name in ("start", "end"):
            if (text := getattr(self, name)) is None:
                continue
            time = datetime.fromisoformat(text)
            if self.every.floor(time) != time:
                raise ValueError(f"`{name}` {text} is not at the turn of the {self.every}")
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"`end` {self.end} is not after `start` {self.start}")
        return self

    @property
    def start_ms(self) -> int:
        return milliseconds(datetime.fromisoformat(self.start))

    def over_by(self, time_ms: int) -> int:
        """Return the end of the last interval that is over at ``time_ms``, in ms; at most ``start`` if none is."""
        last = milliseconds(self.every.floor(instant(time_ms)))
        return last if self.end is None else min(last, milliseconds(datetime.fromisoformat(self.end)))


class Retention(Strict):
    """How long rows stay: exactly one of ``age``, ``time_window`` and ``last_n``; maintenance removes all other rows.

    ``age`` and ``time_window`` keep rows whose ``column`` is at or after now minus the duration, or NULL; with a
    ``key``, a time window also keeps the newest row of each key, however old. ``last_n`` keeps the newest rows of each
    key in the order of ``order_by``.
    """

    age: Duration | None = None
    time_window: Duration | None = None
    last_n: int | None = Field(default=None, ge=1, strict=True)
    column: ColumnName | None = None
    key: ColumnNames = ()
    order_by: ColumnNames = ()

    @model_validator(mode="after")
    def _is_one_policy(self) -> Self:
        given = [name for name in _FIELDS_BY_POLICY if getattr(self, name) is not None]
        if len(given) != 1:
            listed = " and ".join(f"`{name}`" for name in given) or "none of them"
            raise ValueError(f"takes exactly one of `age`, `time_window` and `last_n`, got {listed}")
        needed, foreign = _FIELDS_BY_POLICY[given[0]]
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"`{given[0]}` needs `{name}`")
        for name in foreign:
            if getattr(self, name):
                raise ValueError(f"`{name}` does not go with `{given[0]}`: leave it out")
        return self

    @property
    def window_ms(self) -> int | None:
        """The length of the window, in ms; None for ``last_n``."""
        text = self.age or self.time_window
        return None if text is None else duration_ms(text)

    def __str__(self) -> str:
        if self.last_n is not None:
            return f"last {self.last_n} of each {', '.join(self.key)} by {', '.join(self.order_by)}"
        newest = f", and the newest of each {', '.join(self.key)}" if self.key else ""
        return f"{self.column} within {self.age or self.time_window}{newest}"


class StagedRetention(Strict):
    """The age at which maintenance discards staged batches; written ``30d``, or with fields.

    The leading deployment can still flush its batches, so they stay unless ``include_leader`` is set.
    """

    age: Duration
    include_leader: bool = Field(default=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _reads_a_duration(cls, data: Any) -> Any:
        return {"age": data} if isinstance(data, str) else data

    @property
    def age_ms(self) -> int:
        return duration_ms(self.age)


class Limits(Strict):
    """The smallest and the largest value that a column may have, both included."""

    min: Bound | None = None
    max: Bound | None = None

    @model_validator(mode="after")
    def _limits(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("needs `min` or `max`")
        return self


class Expectations(Strict):
    """What must hold for the rows of a batch before publishing; NULL fails ``not_null`` alone."""

    not_null: ColumnNames = ()
    range: dict[ColumnName, Limits] = Field(default_factory=dict)
    one_of: dict[ColumnName, Annotated[tuple[Bound, ...], Field(min_length=1)]] = Field(default_factory=dict)
    unique: ColumnNames = ()  # the columns together, within one batch

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        if not (self.not_null or self.range or self.one_of or self.unique):
            raise ValueError("expects nothing: name columns under `not_null`, `range`, `one_of` or `unique`")
        return self


class StatusHistory(Strict):
    """A collection of statuses: a batch keeps only statuses that supersede the last status of the key.

    With ``changes_in`` a status is left out, too, if it equals the last status of its key in all these columns.
    """

    key: ColumnNames = Field(min_length=1)
    column: ColumnName
    time: ColumnName
    changes_in: ColumnNames = ()
