"""Declares when the rows of a partition are merged, split at a time, deduplicated and persisted."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tidemark.collections.declarations.append_only import Duration, duration_ms, given
from tidemark.collections.sources.formats.source import Strict
from tidemark.interval import Unit

_ZEROS = (0, "0s", "0m", "0h", "0d")
PERSIST_AGE = "30m"  # the default
_UNIT_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Count = Annotated[int, Field(ge=1, strict=True)]
PartitionUnit = Literal[Unit.HOUR, Unit.DAY, Unit.MONTH]


def _read_limit(value: Any) -> Any:
    is_count = type(value) is int and value > 0
    if not is_count and not (isinstance(value, str) and re.fullmatch(r"[1-9][0-9]*(KiB|MiB|GiB)", value)):
        raise ValueError(f"a limit is a number of rows, or a size such as `512MiB` or `8GiB`{given(value)}")
    return value


MostOpen = Annotated[int | str, BeforeValidator(_read_limit)]


class Visible(StrEnum):
    """When readers see ingested rows."""

    AT_ONCE = "at-once"
    WHEN_PERSISTED = "when-persisted"


class Chunks(StrEnum):
    """Where rows wait that storage workers have read, and that readers do not see before they are persisted."""

    FILES = "files"
    MEMORY = "memory"  # of the workers; whatever is lost with one is read again


class Late(StrEnum):
    """What an ingest does about rows of a partition that is closed."""

    APPEND = "append"
    QUARANTINE = "quarantine"
    REFUSE = "refuse"


class Merge(StrEnum):
    """What a persist keeps of rows with the same key and event time."""

    ROWS = "rows"  # the last row
    FIELDS = "fields"  # of each column the last value that is not NULL


class Limit(NamedTuple):
    """The most open rows, or bytes of open or staged files."""

    amount: int
    unit: str  # `rows` or `bytes`

    @classmethod
    def of(cls, declared: int | str | None) -> Limit | None:
        """Return the limit that was declared: a number of rows, or a size such as ``8GiB``; None if there is none."""
        if declared is None or isinstance(declared, int):
            return None if declared is None else cls(declared, "rows")
        return cls(int(declared[:-3]) * _UNIT_BYTES[declared[-3:]], "bytes")


class Lateness(Strict):
    """How late and how early rows may be, and what is done about those that are later; zero stands for the default."""

    late_arrive_window: Duration = "5m"
    late: Late = Late.APPEND
    max_ahead: Duration = "1h"  # an event time beyond arrival + this is an error of the producer

    @model_validator(mode="before")
    @classmethod
    def _takes_zero_for_the_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if isinstance(value, bool) or value not in _ZEROS}

    @property
    def late_ms(self) -> int:
        return duration_ms(self.late_arrive_window)

    @property
    def max_ahead_ms(self) -> int:
        return duration_ms(self.max_ahead)


class LifecycleRules(Lateness):
    """The rules of one collection: when rows are persisted, that is written anew, in order of time.

    They may be altered at any time.

    ``late_arrive_window`` is how long rows may be late: so long a chunk waits for more rows before it is compacted, and
    so long a window of arrivals waits before it is persisted. A window longer than the default of ``persist_age`` is
    also the default of that age.
    """

    visible: Visible = Visible.AT_ONCE
    chunks: Chunks = Chunks.FILES
    persist: bool = Field(default=True, strict=True)
    persist_age: Duration = PERSIST_AGE  # of the oldest row that is not persisted, by arrival
    persist_rows: Count = 1_000_000
    persist_when_cold: bool = Field(default=True, strict=True)  # cold: no row arrived for `late_arrive_window`
    merge: Merge = Merge.ROWS  # of rows with the same key and event time
    open_rows: Count = 100_000  # in so many open rows of a partition small files are merged, also while more rows come
    soft_limit: MostOpen | None = None  # open rows, or their size: from there on the oldest are persisted
    hard_limit: MostOpen | None = None  # from there on ingest pauses

    @model_validator(mode="before")
    @classmethod
    def _waits_for_late_rows_by_default(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("persist_age") not in (None, *_ZEROS):
            return data
        try:
            late = Lateness.model_validate({"late_arrive_window": data.get("late_arrive_window", 0)})
        except ValidationError:  # the field itself says what is wrong
            return data
        is_longer = late.late_ms > duration_ms(PERSIST_AGE)
        return {**data, "persist_age": late.late_arrive_window} if is_longer else data

    @model_validator(mode="after")
    def _persists_after_the_late_rows(self) -> Self:
        if self.persist_age_ms < self.late_ms:
            raise ValueError(
                f"`persist_age` {self.persist_age} is less than `late_arrive_window` {self.late_arrive_window}: rows "
                "would be persisted before the late ones are there; raise `persist_age`, or lower the window"
            )
        return self

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        soft, hard = self.limits
        if soft is not None and hard is not None:
            if soft.unit != hard.unit:
                raise ValueError(f"`soft_limit` counts {soft.unit} and `hard_limit` {hard.unit}: use one of them")
            if soft.amount > hard.amount:
                raise ValueError(
                    f"`soft_limit` {self.soft_limit} is more than `hard_limit` {self.hard_limit}: ingest would pause "
                    "before anything is persisted to make room"
                )
        return self

    @model_validator(mode="after")
    def _shows_what_it_persists(self) -> Self:
        if self.visible is Visible.WHEN_PERSISTED and not self.persist:
            raise ValueError(
                "`visible: when-persisted` shows rows once they are persisted, and `persist: false` never persists "
                "any: persist, or show rows `at-once`"
            )
        return self

    @model_validator(mode="after")
    def _holds_what_nobody_sees(self) -> Self:
        if self.chunks is Chunks.MEMORY and self.visible is Visible.AT_ONCE:
            raise ValueError(
                "`chunks: memory` keeps rows out of files until they are persisted, and `visible: at-once` shows them "
                "before: declare `visible: when-persisted`, too, or `chunks: files`"
            )
        return self

    @property
    def persist_age_ms(self) -> int:
        return duration_ms(self.persist_age)

    @property
    def limits(self) -> tuple[Limit | None, Limit | None]:
        """The soft and the hard limit."""
        return Limit.of(self.soft_limit), Limit.of(self.hard_limit)
