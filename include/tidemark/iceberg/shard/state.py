"""What the last own commit left at the head of a shard, as table properties and snapshot summaries carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from tidemark.errors import CorruptState, Sealed
from tidemark.frontier import EMPTY, Empty, Frontier, parse_frontier
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.token import Token

LEDGER = "tidemark.ledger."
HOLD = "tidemark.hold."
NEVER: Final = 2**63 - 1  # when a durable hold expires; a number, so that older programs read the hold, too


class ShardKind(StrEnum):
    """The three layouts of design §4.2."""

    DIFFERENTIAL = "differential"
    APPEND_ONLY = "append-only"
    LOG = "log"


class CommitKind(StrEnum):
    """What a commit did; ``tidemark.kind`` of its snapshot."""

    GENESIS = "genesis"
    APPEND = "append"
    CORRECT = "correct"
    FLUSH = "flush"
    FENCE = "fence"
    ADVANCE = "advance"
    COMPACT = "compact"
    RETAIN = "retain"
    DOWNGRADE = "downgrade"
    SEAL = "seal"


class Hold(NamedTuple):
    """A reader's claim on history: ``since`` may not pass it before ``expires_at_ms`` (exclusive).

    A durable hold never expires; any other one is leased.
    """

    since: int
    expires_at_ms: int

    @property
    def is_durable(self) -> bool:
        return self.expires_at_ms >= NEVER

    def is_live(self, now_ms: int) -> bool:
        return now_ms < self.expires_at_ms

    def __str__(self) -> str:
        return f"{self.since}:{self.expires_at_ms}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """Readable times are ``[since, upper)``, in ms; the last commit covered ``[lower, upper)``."""

    layout: ShardKind
    kind: CommitKind
    lower: Frontier
    upper: Frontier
    since: Frontier
    changed: Frontier  # the upper that the last commit which changed the contents left
    token: Token
    writer: str
    commit_id: str  # chosen before the commit, so that a commit with an unknown outcome can be found
    schema_id: int
    digest: str = ""  # how the digest in the statistics file was made; opaque to this layer
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.upper < self.since:
            raise CorruptState(f"since {self.since} is beyond upper {self.upper} in commit {self.commit_id}")
        if self.upper < self.lower:
            raise CorruptState(f"lower {self.lower} is beyond upper {self.upper} in commit {self.commit_id}")

    def still_shows(self, upper: int) -> bool:
        """Tell whether the contents are still those of the time when ``upper`` was the upper."""
        return self.changed <= upper <= self.upper

    @property
    def is_sealed(self) -> bool:
        return self.upper is EMPTY

    def open_upper(self, where: str, *, hint: str = "nothing can be written to it any more") -> int:
        """Return the upper, in ms. Raises ``Sealed``, which calls the shard ``where``, if it is ``EMPTY``."""
        if isinstance(self.upper, Empty):
            raise Sealed(f"{where} is sealed", hint=hint)
        return self.upper

    def next_upper(self, now_ms: int) -> int:
        """Return the upper of a commit at ``now_ms``, above the present upper. Raises ``Sealed`` on a sealed shard."""
        return max(now_ms, self.open_upper("the shard")) + 1

    def smallest_hold(self, now_ms: int) -> int | None:
        """Return the smallest time that a live hold needs; None without a live hold."""
        return min((hold.since for hold in self.holds.values() if hold.is_live(now_ms)), default=None)

    def as_in(self, summary: Mapping[str, str], *, shard: str) -> ShardState:
        """Return the state in a snapshot's ``summary``, which has no ledgers and holds, with those of ``self``.

        Raises ``CorruptState`` if Tidemark did not write the summary.
        """
        return replace(ShardState.parse(summary, shard=shard), ledgers=self.ledgers, holds=self.holds)

    def summary(self) -> dict[str, str]:
        """Return the entries for a snapshot's summary: everything but ledgers and holds."""
        return {
            "tidemark.layout": self.layout.value,
            "tidemark.kind": self.kind.value,
            "tidemark.lower": str(self.lower),
            "tidemark.upper": str(self.upper),
            "tidemark.since": str(self.since),
            # It names its commit, because an older Tidemark commits without it and leaves the property as it was.
            "tidemark.changed": f"{self.changed} {self.commit_id}",
            "tidemark.generation": str(self.token.generation),
            "tidemark.epoch": str(self.token.epoch),
            "tidemark.writer": self.writer,
            "tidemark.commit-id": self.commit_id,
            "tidemark.schema": str(self.schema_id),
            "tidemark.digest": self.digest,
        }

    def properties(self) -> dict[str, str]:
        """Return the table properties: the summary, the ledgers and the holds."""
        return {
            **self.summary(),
            **{LEDGER + producer: str(ledger) for producer, ledger in self.ledgers.items()},
            **{HOLD + reader: str(hold) for reader, hold in self.holds.items()},
        }

    @classmethod
    def parse(cls, properties: Mapping[str, str], *, shard: str) -> ShardState:
        """Read the state from table properties, or, without ledgers and holds, from a snapshot's summary.

        Raises ``CorruptState`` if a key is missing or malformed: the table is not ours, or damaged.
        """
        changed, _, by_commit = properties.get("tidemark.changed", "").partition(" ")
        try:
            is_known = by_commit == properties["tidemark.commit-id"]
            return cls(
                layout=ShardKind(properties["tidemark.layout"]),
                kind=CommitKind(properties["tidemark.kind"]),
                lower=parse_frontier(properties["tidemark.lower"]),
                upper=parse_frontier(properties["tidemark.upper"]),
                since=parse_frontier(properties["tidemark.since"]),
                changed=parse_frontier(changed if is_known else properties["tidemark.upper"]),
                token=Token(int(properties["tidemark.generation"]), int(properties["tidemark.epoch"])),
                writer=properties["tidemark.writer"],
                commit_id=properties["tidemark.commit-id"],
                schema_id=int(properties["tidemark.schema"]),
                digest=properties.get("tidemark.digest", ""),
                ledgers={producer: Ledger.parse(text) for producer, text in _below(LEDGER, properties)},
                holds={reader: Hold(*map(int, text.split(":"))) for reader, text in _below(HOLD, properties)},
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptState(
                f"the state of shard {shard!r} cannot be read: {error!r}",
                hint="the table was not made by Tidemark, or its tidemark.* properties were edited",
            ) from error


def _below(prefix: str, properties: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key.removeprefix(prefix), text) for key, text in properties.items() if key.startswith(prefix)]
