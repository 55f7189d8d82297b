"""Holds as their owners see them: who keeps what history, who may take and release holds, and which hold is overdue.

A hold is *overdue* if it keeps history for longer than its owner wants: its reader stands still, and old snapshots and
changes pile up. A leased hold, which expires by itself, is overdue only once it keeps more than maintenance keeps
anyway.

A hold is *dead* if it is of a sink that the catalog does not have: of a run that was killed while the sink was dropped.
Nobody needs what it keeps, and maintenance releases it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.collections.deployment import Deployment, Registry
from tidemark.collections.mode import lead_to_write, refuse_when_read_only
from tidemark.errors import NotYetAvailable, UsageError
from tidemark.iceberg.shard.state import NEVER, Hold, ShardState
from tidemark.iceberg.shard.state_reader import DROPPED
from tidemark.interval import DAY_MS, EARLIEST_MS, LATEST_MS, duration_text, time_text

if TYPE_CHECKING:
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.shard import Shard

SINK_READER: Final = "sink-"  # and the name of the sink: the reader that holds history for it
HISTORY_MS: Final = 7 * DAY_MS  # how much history maintenance keeps without any hold
WARN_AFTER_MS: Final = DAY_MS  # of a durable hold whose owner declares nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHold:
    """The hold of one reader on one collection, and how much history it keeps."""

    collection: str
    reader: str
    hold: Hold
    age_ms: int  # how long ago the kept history starts; 0 if the reader has seen every final time
    warn_after_ms: int
    is_live: bool
    is_of_sink: bool  # which the catalog has

    @property
    def is_overdue(self) -> bool:
        return self.is_live and self.age_ms > self.warn_after_ms

    @property
    def expires_at_ms(self) -> int | None:
        """When the hold ends, in ms since the Unix epoch (exclusive); None: never."""
        return None if self.hold.is_durable else self.hold.expires_at_ms

    @property
    def warning(self) -> str:
        """What is wrong with an overdue hold, in one sentence."""
        return (
            f"the hold of {self.reader!r} on {self.collection!r} keeps {duration_text(self.age_ms)} of history, since "
            f"{moment_text(self.hold.since)}; more than {duration_text(self.warn_after_ms)} is too much"
        )

    @property
    def hint(self) -> str:
        """What to do about an overdue hold."""
        if self.is_of_sink:
            name = self.reader.removeprefix(SINK_READER)
            return (
                "see why the sink stands still: `tidemark status`; if it is paused or suspended, "
                f"`tidemark resume {name}`; then `tidemark sink run {name}`; or drop it"
            )
        return (
            "let the reader go on, and move its hold; if nobody needs it any more: "
            f"`tidemark hold release {self.collection} {self.reader}`"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "collection": self.collection,
            "reader": self.reader,
            "since": self.hold.since,
            "expires_at": self.expires_at_ms,
            "live": self.is_live,
            "age_ms": self.age_ms,
            "warn_after_ms": self.warn_after_ms,
            "overdue": self.is_overdue,
            **({"warning": self.warning, "hint": self.hint} if self.is_overdue else {}),
        }


def read_sink_holds(registry: Registry) -> Mapping[tuple[str, str], int]:
    """Return, by collection and reader, the ages in ms at which the owners of the applied sinks want to be warned.

    Raises as ``Registry.read``.
    """
    sinks = (applied.declaration for applied in registry.read().sinks.values())
    return {(sink.collection, sink.hold): sink.warn_after_ms for sink in sinks}


def list_holds(
    collection: str, state: ShardState, oldest_ms: int, *, now_ms: int, sink_holds: Mapping[tuple[str, str], int]
) -> list[ReaderHold]:
    """Return the holds on one collection by reader, those that have expired included.

    ``oldest_ms`` is the time of the oldest kept snapshot: before it there is no history to keep. ``sink_holds`` are
    those of ``read_sink_holds``.
    """
    return [
        ReaderHold(
            collection=collection,
            reader=reader,
            hold=hold,
            age_ms=max(0, now_ms - max(hold.since, oldest_ms)) if state.upper > hold.since + 1 else 0,
            warn_after_ms=sink_holds.get((collection, reader), WARN_AFTER_MS if hold.is_durable else HISTORY_MS),
            is_live=hold.is_live(now_ms),
            is_of_sink=(collection, reader) in sink_holds,
        )
        for reader, hold in sorted(state.holds.items())
    ]


def find_overdue(
    collection: str, state: ShardState, oldest_ms: int, *, now_ms: int, registry: Registry
) -> list[ReaderHold]:
    """Return the overdue holds on one collection, without dead ones.

    The catalog is asked only if sinks may hold history. Raises as ``Registry.read``.
    """
    declared = read_sink_holds(registry) if any(map(may_be_of_sink, state.holds)) else {}
    found = list_holds(collection, state, oldest_ms, now_ms=now_ms, sink_holds=declared)
    return [held for held in found if held.is_overdue and (held.is_of_sink or not may_be_of_sink(held.reader))]


def find_dead(collection: str, state: ShardState, *, registry: Registry) -> list[str]:
    """Return the readers of the dead holds on one collection; the catalog is asked only if sinks may hold history.

    ``state`` was read before this call: a sink is in the catalog before its first run holds history. No sink carries
    the table of a dropped collection (``dropped.NAME_NUMBER``), whatever has that collection's name now.

    Raises as ``Registry.read``.
    """
    readers = [reader for reader in state.holds if may_be_of_sink(reader)]
    declared = read_sink_holds(registry) if readers else {}
    return [reader for reader in readers if (collection, reader) not in declared]


def release_dead(shard: Shard, deployment: Deployment, *, writer: Writer | None = None) -> Collection[str]:
    """Release the dead holds on a collection, or on the table of a dropped one; return their readers.

    A run of a dropped sink that still lives may take its hold once more, and then looks into the catalog itself.
    Raises as ``release``, and as ``Registry.read``.
    """
    from tidemark.iceberg.commit.holds import release_chosen  # noqa: PLC0415 - holds are listed without pyiceberg

    name = shard.identifier if shard.namespace == DROPPED else shard.name
    return release_chosen(shard, lambda state: find_dead(name, state, registry=deployment.registry), writer=writer)


def take_hold(shard: Shard, reader: str, *, since: int | None, expires_at_ms: int, deployment: Deployment) -> int:
    """Take or move the hold of ``reader``; return the first kept time.

    Without ``since`` the hold stays where it is, or starts at the present since. A leased hold, which loses nothing but
    time if it expires, is allowed to a read-only deployment as well.

    Raises:
        UsageError: If such a name belongs to sinks.
        NotYetAvailable: If the collection has no commit up to ``since`` yet.
        ReadOnly: If the hold is durable, or was so, and the deployment is read-only.
        Others as ``hold``.
    """
    from tidemark.iceberg.commit.holds import hold  # noqa: PLC0415 - holds are listed without pyiceberg

    if may_be_of_sink(reader):
        raise UsageError(
            f"{reader!r} is the name of a sink's hold", hint=f"a reader's name must not begin with {SINK_READER!r}"
        )
    state = shard.load().state
    if since is not None and since > state.upper:
        raise NotYetAvailable(
            f"{shard.name!r} ends at {state.upper}: a hold from {since} on would hold nothing",
            hint="times are ms since 1970, or as 2026-01-31T12:00:00",
        )
    before = state.holds.get(reader)
    is_durable = expires_at_ms >= NEVER or (before is not None and before.is_durable)
    writer = _writer_for(shard, deployment) if is_durable else None
    start = before.since if since is None and before is not None else since
    return hold(shard, reader, since=start, expires_at_ms=expires_at_ms, writer=writer)


def release_hold(shard: Shard, reader: str, *, deployment: Deployment) -> bool:
    """Give up the hold of ``reader``, also on the table of a dropped collection; return whether there was one.

    Raises:
        UsageError: If the hold belongs to a sink.
        ReadOnly: If the hold is durable, and the deployment is read-only.
        Others as ``release``.
    """
    from tidemark.iceberg.commit.holds import release  # noqa: PLC0415 - holds are listed without pyiceberg

    before = shard.load().state.holds.get(reader)
    if before is None:
        return False
    if shard.namespace == DROPPED:  # sealed: no writer is left to be fenced, and no sink carries it
        if before.is_durable:
            refuse_when_read_only(deployment, f"release of a durable hold of {shard.identifier!r}")
        release(shard, reader)
        return True
    if may_be_of_sink(reader) and (shard.name, reader) in read_sink_holds(deployment.registry):
        name = reader.removeprefix(SINK_READER)
        raise UsageError(
            f"the sink {name!r} needs the history of {shard.name!r} that {reader!r} holds",
            hint=f"drop the sink: `tidemark drop {name}`",
        )
    release(shard, reader, writer=_writer_for(shard, deployment) if before.is_durable else None)
    return True


def moment_text(time_ms: int) -> str:
    """Return a time for people: 0 is the beginning of every history; a time that has no date is only a number."""
    if time_ms == 0:
        return "the beginning"
    return f"{time_text(time_ms // 1000 * 1000)} UTC" if EARLIEST_MS <= time_ms <= LATEST_MS else str(time_ms)


def may_be_of_sink(reader: str) -> bool:
    """Tell whether the name is kept for sinks: whether there is such a sink, only the catalog knows."""
    return reader.startswith(SINK_READER)


def _writer_for(shard: Shard, deployment: Deployment) -> Writer:
    """Return the writer whose token the commit of a durable hold checks: a switch to read-only fences the writer."""
    return lead_to_write(shard, deployment, what="durable hold")
