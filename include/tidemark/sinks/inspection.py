"""Looks at the targets of sinks: whether a new sink may write there, and how far the sinks that run have come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import AppliedSink
from tidemark.collections.schema.types import Columns
from tidemark.errors import TidemarkError
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state import Hold
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.settings import Settings
from tidemark.sinks.progress import Owner, SinkColumn, check_owner, lag_ms
from tidemark.sinks.targets.registry import open_target


def inspect_target(settings: Settings, sink: SinkDeclaration, columns: Columns) -> None:
    """Check that a new sink may carry rows of ``columns`` to its target; writes nothing.

    Raises:
        Unreachable: If the target does not answer.
        NotPossible: If the target belongs to somebody else.
        SchemaMismatch: If the target has other columns.
        Refused: If the target has rows that the declaration does not let the sink replace.
    """
    with open_target(sink, settings) as target:
        target.check()
        if (found := target.look()) is not None:
            nobody = Owner(sink.name, 0, sink.collection, "")  # a new sink has no id yet
            check_owner(found, nobody, replaces=sink.to.replaces, where=target.title)
        target.inspect(tuple(SinkColumn(0, column.name, column.type) for column in columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """How far a sink has come; times are ms since the Unix epoch."""

    sink: str
    collection: str
    mode: str
    target: str
    time: int | None = None  # below which everything is in the target; None: nothing was loaded, or nobody knows
    upper: int | str | None = None  # of the collection
    lag_ms: int | None = None  # since the time, if there is something to carry
    held_since: int | None = None
    epoch: int | None = None
    details: dict[str, Any] = field(default_factory=dict)  # what else the target says of itself
    error: str = ""  # why the target, or the collection, cannot be asked

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_statuses(settings: Settings, sinks: Sequence[AppliedSink], *, now_ms: int) -> list[SinkStatus]:
    """Ask every target how far it came; a target that does not answer is reported as such."""
    return [_read_status(settings, applied, now_ms=now_ms) for applied in sinks]


def _read_status(settings: Settings, applied: AppliedSink, *, now_ms: int) -> SinkStatus:
    sink = applied.declaration
    known: dict[str, Any] = {}
    errors = list[str]()
    changed = None
    holds: Mapping[str, Hold] = {}
    try:
        state = read_state(settings, sink.collection).state
        changed, holds = state.changed, state.holds
        hold = holds.get(sink.hold)
        known |= {"upper": frontier_json(state.upper), "held_since": None if hold is None else hold.since}
    except TidemarkError as error:
        errors.append(str(error))
    try:
        with open_target(sink, settings) as target:
            known["target"] = target.title
            target.check()
            found = target.look()
            target.refuse_away(found, holds)
            known["details"] = target.describe()
            if found is not None and (found.owner.sink, found.owner.sink_id) == (sink.name, applied.id):
                known |= {"time": found.time, "epoch": found.epoch}
                known["lag_ms"] = lag_ms(found.time, changed, now_ms=now_ms)
    except TidemarkError as error:
        errors.append(str(error))
    fields = {"target": str(sink.to), **known, "error": "; ".join(errors)}
    return SinkStatus(sink=sink.name, collection=sink.collection, mode=sink.mode.value, **fields)
