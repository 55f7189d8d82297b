"""All errors that Tidemark raises on purpose.

A family says what the caller should do next, and has the exit code; below it stand its members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar, Self

from tidemark.exit_codes import ExitCode
from tidemark.frontier import Frontier
from tidemark.iceberg.shard.token import Token
from tidemark.secrets.redaction import redact


class TidemarkError(Exception):
    """Base class of every error raised on purpose; the class name is the ``kind`` in reports.

    The message may quote a driver: it loses every secret here, before anybody shows it. ``hint`` says what to do next,
    in one sentence; ``sample`` holds a bounded list of offending rows.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, *args: object, hint: str = "", sample: Iterable[dict[str, object]] = ()) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))
        self.hint = hint
        if hint:
            self.add_note(f"→ {hint}")  # below the message in a traceback
        self.sample = list(sample)

    @property
    def kind(self) -> str:
        return type(self).__name__


class UsageError(TidemarkError):
    """The call is invalid: an unknown name, a reversed range, the wrong kind of collection."""

    exit_code = ExitCode.USAGE


class UnknownCollection(UsageError):
    """No collection of that name is declared."""

    what: ClassVar[str] = "collection"

    @classmethod
    def named(cls, name: str, known: Iterable[str], *, renamed: Mapping[str, str] | None = None) -> Self:
        """Build the error for ``name``, with its new name if it was renamed, or near matches among the known ones.

        ``renamed`` are new names by the old ones.
        """
        names = sorted(known)
        near = get_close_matches(name, names, n=3)
        if renamed and name in renamed:
            hint = f"it was renamed, and is called {renamed[name]!r} now"
        elif near:
            hint = "did you mean " + " or ".join(repr(match) for match in near) + "?"
        elif names:
            hint = "declared are: " + ", ".join(names[:20])
        else:
            hint = "nothing is declared: run `tidemark apply PATH`"
        return cls(f"no {cls.what} is named {name!r}", hint=hint)

    @classmethod
    def all_named(cls, names: Sequence[str], known: Collection[str]) -> Self:
        """Build the error for all ``names``, as ``named``."""
        errors = [cls.named(name, known) for name in names]
        hints = dict.fromkeys(error.hint for error in errors)
        return cls("; ".join(map(str, errors)), hint="; ".join(hints))


class UnknownSink(UnknownCollection):
    """No sink of that name is declared."""

    what = "sink"


class UnknownObject(UnknownCollection):
    """No collection and no sink of that name is declared."""

    what = "collection or sink"


class StillRead(UsageError):
    """Other collections or sinks read what was to be dropped or renamed; nothing was changed."""


class UnknownKind(UsageError):
    """The catalog has no items of that kind."""


class Refused(TidemarkError):
    """The data or a guard refused the run; nothing was changed."""

    exit_code = ExitCode.REFUSED


class GuardRefused(Refused):
    """A declared guard (empty source, delete ratio, keys) refused the corrections."""


class InvalidBatch(Refused):
    """A batch breaks the rules of its shard, for example a ``_time`` outside ``[lower, new_upper)``."""


class RangeOverlap(Refused):
    """A batch's range overlaps an accepted range without being equal to it: some rows would come twice."""


class DamagedBatch(Refused):
    """A staging branch does not hold exactly what was staged on it; it is never published."""


class ExpectationFailed(Refused):
    """The rows of a batch break the expectations of their collection; they stay invisible."""


class LateRows(Refused):
    """Rows came for a partition that is closed, and the collection refuses such rows; nothing was published."""


class KeySpread(Refused):
    """Changes of one key lie in several sequencers, and the collection refuses such keys; nothing was published."""


class SchemaMismatch(Refused):
    """A source lacks a column, or has it with another type."""


class KeyTaken(Refused):
    """An item of that key is in the catalog already."""


class NotUnique(Refused):
    """Another item holds a value that only one item of the kind may hold."""


class NotCaughtUp(Refused):
    """A deployment that stands by is not ready to lead; nothing was changed."""


class ForeignCommit(Refused):
    """Another engine wrote to a collection whose declaration says ``on_foreign_commit: fail``."""


class InputMissing(TidemarkError):
    """A source file, folder or table does not exist."""

    exit_code = ExitCode.INPUT_MISSING


class HistoryGone(InputMissing):
    """Updates that a sink has not carried yet are gone: expired, or before the since."""


class Unreachable(TidemarkError):
    """A store, broker or database did not answer; nothing was started."""

    exit_code = ExitCode.UNREACHABLE

    @classmethod
    def by(cls, error: OSError) -> Unreachable:
        """Build the error for a file system, or an object store, that failed in the middle of something."""
        return cls(
            f"files cannot be read or written: {error}",
            hint="check that their store answers, has room, and lets this process write; then run it again",
        )


class StaleState(TidemarkError):
    """Something moved after it was read: refresh, recompute, retry a bounded number of times."""

    exit_code = ExitCode.TRANSIENT


class UpperMismatch(StaleState):
    """The upper is not the expected one; nothing was written. Ordinary: never logged as an error."""

    def __init__(self, expected: Frontier, actual: Frontier) -> None:
        super().__init__(expected, actual)  # plain args, so that it survives pickling between processes
        self.expected, self.actual = expected, actual

    def __str__(self) -> str:
        return f"expected upper {self.expected}, found {self.actual}: recompute from {self.actual}"


class ConflictsUnsettled(StaleState):
    """Other commits kept winning until the attempts were used up; nothing was written."""


class InputsGone(StaleState):
    """Maintenance removed a data file that this change was computed from: compute it again."""


class AppliedMeanwhile(StaleState):
    """Another declaration of a collection was applied after this run had read the one before; nothing was written."""


class StaleCorrections(StaleState):
    """Staged corrections do not fit the contents any more, and stay staged: reconcile their slices."""


class SourceMoved(StaleState):
    """The source changed between two passes over it, which so saw different states."""


class NotLed(StaleState):
    """Nobody leads the catalog at present: an open, such as a migration, is under way, or died."""

    @classmethod
    def at(cls, epoch: int | None, where: str, *, last: int | None = None) -> NotLed:
        """Build the error for the back end ``where`` that is at ``epoch``; ``last`` is the last epoch with a leader."""
        last_text = f"; the last complete one was {last}" if last else ""
        return cls(
            f"the catalog's {where} is being opened at epoch {epoch}, or that open died{last_text}",
            hint="try again in a while; if nobody opens it, run `tidemark catalog open` in the deployment that leads",
        )


class CatalogOutOfSync(StaleState):
    """Somebody else changed the catalog after this handle read it: read again, and build the change anew."""


class CommitStateUnknown(StaleState):
    """The commit may have landed and the store cannot be asked: look for its commit id before anything else."""


class HardLimit(TidemarkError):
    """So many rows of a collection are open that its ingests pause until some are persisted: leave it to a later run.

    Not a stale state: whoever tries again at once finds the same.
    """

    exit_code = ExitCode.TRANSIENT


class NotPossible(TidemarkError):
    """Not possible in this state: sealed, an unexpected transition, an incompatible version."""

    exit_code = ExitCode.NOT_POSSIBLE


class Sealed(NotPossible):
    """The shard's upper is EMPTY: nothing can be written to it ever again."""


class ForeignTable(NotPossible):
    """Another tool made the Iceberg table of that name."""


class Paused(NotPossible):
    """Somebody paused the object: nothing is written to it before it is resumed."""


class Dropped(NotPossible):
    """The collection was dropped, and perhaps made anew, while this process worked on it; nothing more was written."""

    @classmethod
    def meanwhile(cls, name: str) -> Dropped:
        """Build the error for a process that had read the table of ``name`` before the drop."""
        return cls(
            f"{name!r} was dropped, or renamed, while this process worked on it: nothing more was written",
            hint="`tidemark catalog history` says who did it; what is made anew under that name is another collection",
        )


class OutOfTime(NotPossible):
    """The time limit of a run ended it in the midst of its work: what it committed stays, and a later run goes on."""


class RunLost(NotPossible):
    """A run ended without a word in the midst of its work: what it committed stays, and a later run goes on."""


class Unregistered(NotPossible):
    """The collection was unregistered, or everything was shut down, before the rows were written."""

    def __init__(self, collection: str) -> None:
        super().__init__(collection)  # plain args, so that it survives pickling between processes
        self.collection = collection

    def __str__(self) -> str:
        return f"collection {self.collection!r} is not written by this process any more: its rows were not appended"


class AsOfBeforeSince(NotPossible):
    """The time lies before ``since``: its history is gone."""


class NotYetAvailable(NotPossible):
    """The time is not below the upper yet, so its contents are not final."""


class IncompatibleChange(NotPossible):
    """A schema or data-version change that cannot be made in place."""


class IncompatibleDataVersion(NotPossible):
    """Stored data has a version that this program cannot read or upgrade: newer than its own, or too old."""


class NotWritable(NotPossible):
    """The mode in which the catalog is open forbids this change; opening it writable helps, as the message says."""

    @classmethod
    def in_mode(cls, mode: str, *, what: str, where: str) -> NotWritable:
        """Build the error for the change ``what`` (a noun) on the back end ``where``, which is open in ``mode``."""
        return cls(
            f"{what} was refused: {where} was opened {mode}; can be recovered by opening writable",
            hint="nothing was changed; to change it, run a command that does: tidemark catalog --help",
        )

    @classmethod
    def uninitialized(cls, where: str) -> NotWritable:
        """Build the error for a back end that nobody ever opened writable."""
        return cls(
            f"there is nothing in {where} yet: it was never opened; can be recovered by opening writable",
            hint="run `tidemark catalog open` once, then this again",
        )

    @classmethod
    def outdated(cls, where: str) -> NotWritable:
        """Build the error for a back end whose items have an older data version, and may not be migrated now."""
        return cls(
            f"the items of {where} have an older data version than this program; can be recovered by opening writable",
            hint="run `tidemark catalog open`, which brings them up to date, then this again",
        )


class Uninitialized(NotPossible):
    """A back end of the catalog was never opened writable, so it has no contents."""


class InvalidFrontier(NotPossible):
    """A seal, compaction, update or read that the frontiers of a stash collection do not allow."""


class CorruptState(NotPossible):
    """Stored state contradicts itself; this is never repaired by guessing."""


class Fenced(TidemarkError):
    """A larger token owns the shard: stop, and do not retry with the old token."""

    exit_code = ExitCode.FENCED

    @classmethod
    def by(cls, *, mine: Token, theirs: Token, where: str) -> Fenced:
        """Build the error for the shard ``where``: fenced by a newer generation, or by a newer epoch of its own one."""
        if theirs.generation != mine.generation:
            return FencedByGeneration(
                f"{where} belongs to deploy generation {theirs.generation}, this process to {mine.generation}",
                hint="a newer deployment leads: stop this one, and pause its DAGs; "
                f"if this process belongs to it, set TIDEMARK_GENERATION={theirs.generation}",
            )
        return FencedByEpoch(
            f"{where} is at epoch {theirs.epoch} of generation {theirs.generation}, this writer joined at {mine.epoch}",
            hint="start over: a new run joins the present epoch",
        )


class FencedByEpoch(Fenced):
    """A newer attempt, mode switch or migration of the same generation took over: start over."""


class ReplacedBySuccessor(FencedByEpoch):
    """A later life of the same process took over: stop, and leave the work to it."""


class FencedByGeneration(Fenced):
    """A newer deployment took over: stop for good."""


class ReadOnly(TidemarkError):
    """The deployment is read-only and this write was not allowed to be staged."""

    exit_code = ExitCode.FENCED


class OnlyThroughBuffer(TidemarkError):
    """The rows of a collection come from a write buffer alone: a direct write would have no order among them."""

    exit_code = ExitCode.FENCED


class ConfigurationInvalid(TidemarkError):
    """A setting or a declaration is invalid; the message names file, collection and field."""

    exit_code = ExitCode.CONFIGURATION
