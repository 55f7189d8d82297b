"""Whether this deployment may write: one stored fact, switched by compare-and-set, audited, read in milliseconds.

The fact is the last entry of the log ``system.deployment``; the same commit puts it into the table's properties, where
a sensor reads it without opening the log. Every switch stays in the log: who, when, why.

Why a writer that joined before a switch to read-only cannot publish after it: a switch writes the mode first and raises
the token of every collection afterwards; a writer joins the token first and reads the mode afterwards
(``join_to_write``). If the writer still read *read-write*, it read before the mode was written, so it had joined before
the token was raised, and the publisher, which checks the token in the commit itself, fences it. In either other order
(tokens first, or mode read first) a writer could join between the two steps and be neither told nor fenced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from include.errors import ConflictsUnsettled, CorruptState, Fenced, ReadOnly, Sealed, UnknownCollection, UpperMismatch
from include.fail_points import fail_point
from include.persist.state_reader import read_state
from include.persist.token import Token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from include.clock import Clock
    from include.persist.shard import Shard, Writer
    from include.persist.shards import Shards
    from include.settings import Settings

FAIL_POINTS = ("mode.after-write", "mode.after-token")
LOG, SYSTEM, COLLECTIONS = "deployment", "system", "collections"
PROPERTY = "tidemark.mode"
ENTRY_KIND = "mode"
_ATTEMPTS = 12


class Mode(StrEnum):
    """What a deployment may do: publish, or only stage."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMode:
    """The mode of the generation that leads, and who set it when and why; ``since_ms`` is 0 if nobody ever did."""

    mode: Mode = Mode.READ_WRITE
    generation: int
    since_ms: int = 0
    who: str = ""
    why: str = ""

    def __str__(self) -> str:
        return json.dumps(
            {
                "mode": self.mode.value,
                "generation": self.generation,
                "since": self.since_ms,
                "who": self.who,
                "why": self.why,
            },
            sort_keys=True,
        )

    @classmethod
    def parse(cls, text: str) -> StoredMode:
        """Read back what ``str`` wrote.

        Raises:
            CorruptState: If it is malformed: somebody edited it.
        """
        try:
            found = json.loads(text)
            return cls(
                mode=Mode(found["mode"]),
                generation=int(found["generation"]),
                since_ms=int(found["since"]),
                who=str(found["who"]),
                why=str(found["why"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptState(
                f"the stored mode cannot be read: {text!r}", hint="set it again: tidemark mode read-only"
            ) from error


def mode_of(stored: StoredMode, generation: int) -> Mode:
    """Return what a deployment of ``generation`` may do; a newer one than the leading only stages, until it leads.

    Raises:
        FencedByGeneration: If a newer deployment leads.
    """
    if stored.generation > generation:
        raise Fenced.by(mine=Token(generation, 0), theirs=Token(stored.generation, 0), where="this installation")
    return stored.mode if stored.generation == generation else Mode.READ_ONLY


def read_mode(settings: Settings) -> StoredMode:
    """Return the stored mode without pyiceberg, in milliseconds; read-write if nobody ever switched it.

    Raises:
        Unreachable: If the catalog does not answer.
        CorruptState: If the stored mode was edited.
    """
    try:
        properties = read_state(settings, LOG, SYSTEM).properties
    except UnknownCollection:
        return StoredMode(generation=settings.generation)
    return _stored_in(properties, settings.generation)


def join_to_write(shard: Shard, settings: Settings) -> tuple[Writer, Mode]:
    """Take the shard's token and then read the mode; only in this order is the writer fenced by the next switch.

    Raises:
        FencedByGeneration: If a newer deployment owns the shard, or leads.
        Sealed: If nothing can be written to the shard any more.
    """
    writer = shard.join(settings.generation)
    mode = mode_of(read_mode(settings), settings.generation)
    if mode is Mode.READ_ONLY or writer.token.generation == settings.generation:
        return writer, mode
    # The first writer of a deployment that leads fences the one before, and joins anew by that.
    writer = shard.raise_token(settings.generation)
    return writer, mode_of(read_mode(settings), settings.generation)


def lead_to_write(shard: Shard, settings: Settings, *, what: str) -> Writer:
    """Join for a change that cannot be staged.

    Args:
        shard: The shard to change.
        settings: Whose deployment this is.
        what: What is to be done, for the message.

    Raises:
        ReadOnly: If the deployment is read-only.
        FencedByGeneration: If a newer deployment owns the shard, or leads.
        Sealed: If nothing can be written to the shard any more.
    """
    writer, mode = join_to_write(shard, settings)
    if mode is Mode.READ_ONLY:
        raise read_only(settings, f"{what} of {shard.name!r}")
    return writer


def refuse_when_read_only(settings: Settings, what: str) -> None:
    """Refuse ``what`` before anything is looked at; politeness, where each commit is fenced by its own token.

    Raises:
        ReadOnly: If the deployment is read-only.
        FencedByGeneration: If a newer deployment leads.
    """
    if mode_of(read_mode(settings), settings.generation) is Mode.READ_ONLY:
        raise read_only(settings, what)


def read_only(settings: Settings, what: str) -> ReadOnly:
    """Build the error that says that ``what`` cannot be done now."""
    return ReadOnly(
        f"deployment {settings.generation} is read-only: no {what}",
        hint="do it again after `tidemark mode read-write`",
    )


def switch_mode(shards: Shards, settings: Settings, wanted: Mode, *, who: str, why: str, clock: Clock) -> StoredMode:
    """Make ``wanted`` the mode of this deployment, which then leads, and fence everybody who joined before.

    Asked for the mode that holds already, it writes nothing, and fences whom an interrupted switch left unfenced. A
    newer deployment than the leading one is read-only as it is, so for it only a switch to read-write changes anything.

    Raises:
        FencedByGeneration: If a newer deployment leads, or owns a collection.
        ConflictsUnsettled: If other switches kept winning.
    """
    shard = _open_log(shards)
    stored = _write(shard, settings, wanted, who=who, why=why, clock=clock)
    if stored.generation != settings.generation:
        return stored  # read-only beside a leader, which goes on: nothing to fence
    fail_point("mode.after-write")
    for namespace in (COLLECTIONS, SYSTEM):
        for name in shards.names(namespace):
            _fence(shards.open(name, namespace), stored)
            fail_point("mode.after-token")
    return stored


def _write(shard: Shard, settings: Settings, wanted: Mode, *, who: str, why: str, clock: Clock) -> StoredMode:
    from include.persist.log import LogUpdate, append_to_log  # noqa: PLC0415 - sensors read the mode without pyiceberg

    for _ in range(_ATTEMPTS):
        head = shard.load()
        stored = _stored_in(head.table.metadata.properties, settings.generation)
        present = mode_of(stored, settings.generation)
        held = present is wanted and stored.since_ms
        if held and (stored.generation == settings.generation or wanted is Mode.READ_ONLY):
            return stored
        upper = head.state.upper
        if not isinstance(upper, int):
            raise Sealed(f"shard {shard.name!r} is sealed", hint="this installation was closed for good")
        now_ms = max(clock.now_ms(), upper)
        new = replace(stored, mode=wanted, generation=settings.generation, since_ms=now_ms, who=who, why=why)
        entry = LogUpdate(ENTRY_KIND, str(now_ms), str(new), 1)
        try:
            writer = shard.join(settings.generation)
            append_to_log(writer, [entry], lower=upper, time=now_ms, properties={PROPERTY: str(new)})
        except (UpperMismatch, Fenced):  # somebody else switched: look what holds now
            continue
        return new
    raise ConflictsUnsettled("other switches of the mode kept winning", hint="see `tidemark mode`, then run it again")


def _fence(shard: Shard, stored: StoredMode) -> None:
    """Raise the token, unless the mode is read-write and the token is of this deployment already.

    A switch to read-only has to fence every writer, whatever was done before; leaving it only has to end the writers of
    an older deployment: whoever joined while the mode was read-only has published nothing, and may go on.
    """
    try:
        state = shard.load().state
    except CorruptState:
        return  # a table of somebody else, or a damaged one: nobody can publish to what cannot be read
    if state.is_sealed or (stored.mode is Mode.READ_WRITE and state.token.generation == stored.generation):
        return
    shard.raise_token(stored.generation)


def _stored_in(properties: Mapping[str, str], generation: int) -> StoredMode:
    text = properties.get(PROPERTY)
    return StoredMode(generation=generation) if text is None else StoredMode.parse(text)


def _open_log(shards: Shards) -> Shard:
    from include.persist.log import LOG_SCHEMA  # noqa: PLC0415
    from include.persist.shard_state import ShardKind  # noqa: PLC0415

    return shards.create(LOG, schema=LOG_SCHEMA, kind=ShardKind.LOG, namespace=SYSTEM)
