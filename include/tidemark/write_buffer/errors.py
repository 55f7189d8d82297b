"""Errors of write buffers, in the families of ``tidemark/errors.py`` with their exit codes."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import InputMissing, NotPossible, Refused, Unreachable, UsageError


class UnknownSequencer(UsageError):
    """An entry was meant for a sequencer that the buffer does not have; nothing was stored."""

    @classmethod
    def named(cls, sequencer_id: int, known: Iterable[int], *, buffer: str) -> UnknownSequencer:
        """Build the error for ``sequencer_id``; the hint lists the ``known`` sequencers."""
        names = ", ".join(map(str, sorted(known)))
        return cls(f"{buffer} has no sequencer {sequencer_id}", hint=f"its sequencers are: {names}")


class EntryTooLarge(Refused):
    """An entry is larger than the buffer takes; nothing was sent."""

    def __init__(self, entry_bytes: int, limit_bytes: int, *, buffer: str, limit_name: str) -> None:
        super().__init__(
            f"an entry of {entry_bytes} bytes is larger than {buffer} takes: {limit_name} is {limit_bytes} bytes",
            hint=f"split the entry (`--rows-per-entry` of a write), or raise {limit_name}",
        )
        self.entry_bytes, self.limit_bytes = entry_bytes, limit_bytes


class InvalidData(Refused):
    """The log holds bytes that cannot be read at all, not even as a bad message."""


class NoLongerExists(InputMissing):
    """Retention removed entries that were to be read next.

    At most ``lost`` entries are missing, those of ``[number, earliest)``: the log may have had holes there.
    """

    def __init__(
        self, sequencer_id: int, number: int, earliest: int, *, buffer: str, others: int = 0, hint: str = ""
    ) -> None:
        """``others`` counts entries of other sequencers that are lost besides; ``hint`` says what else to do next."""
        also = f", and {others} of other sequencers" if others else ""
        super().__init__(
            f"number {number} of sequencer {sequencer_id} of {buffer} no longer exists: the earliest is {earliest}, "
            f"so that up to {earliest - number} entries are lost{also}",
            hint=hint or "go on from the earliest number if that loss is acceptable, and keep the log longer",
        )
        self.sequencer_id, self.number, self.earliest = sequencer_id, number, earliest

    @property
    def lost(self) -> int:
        return self.earliest - self.number


class AfterWatermark(NotPossible):
    """A number that was read before lies beyond the end of the log: the log was made anew, or cut."""

    def __init__(self, sequencer_id: int, number: int, watermark: int, *, buffer: str) -> None:
        super().__init__(
            f"number {number} of sequencer {sequencer_id} of {buffer} lies after its watermark {watermark}",
            hint="the log was recreated or truncated: find out why before anything is read from it again",
        )
        self.sequencer_id, self.number, self.watermark = sequencer_id, number, watermark


class BufferMissing(InputMissing):
    """The buffer does not exist, and the caller did not ask to create it."""

    @classmethod
    def of(cls, buffer: str) -> BufferMissing:
        return cls(
            f"{buffer} does not exist, or has no sequencers",
            hint="make it with `tidemark buffer create`; if it was there before, find out first where its entries are",
        )


class BufferUnreachable(Unreachable):
    """The broker or the disk failed; a read may be tried again, before a write is repeated somebody checks the log."""


class StreamsOpen(NotPossible):
    """A reader has one set of streams at a time, and cannot be moved while they are open."""
