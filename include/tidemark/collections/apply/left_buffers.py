"""The buffers that a change of declarations leaves: batches that were accepted may still wait there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import TidemarkError, Unreachable

# How many appended batches wait in a buffer, for each of the collections that lacks some. Raises as `Buffers.open`.
CountWaiting = Callable[[str, Iterable[Declaration]], Mapping[str, int]]


@dataclass(slots=True)
class LeftBuffers:
    """What waits in buffers that collections leave."""

    problems: list[str] = field(default_factory=list)  # batches that nobody would bring in any more
    notes: dict[str, str] = field(default_factory=dict)  # by collection: what becomes of what was appended to it


def look_at_left_buffers(
    applied: Mapping[str, Declaration], declared: Mapping[str, Declaration], count_waiting: CountWaiting
) -> LeftBuffers:
    """Return what waits where the collections ``declared`` read or write now, as ``applied`` says, and would not then.

    Raises ``Unreachable`` if a buffer that a collection would leave, or the catalog, does not answer.
    """
    left = LeftBuffers()
    for name, new in declared.items():
        if (old := applied.get(name)) is None:
            continue
        if (buffer := _read_no_more(old, new)) and (problem := _leaving(buffer, old, count_waiting)):
            left.problems.append(f"collection {name!r}: {problem}")
        if old.writes_to is not None and not _is_same_place(old.writes_to, new.writes_to):
            readers = {**applied, **declared}.values()
            left.notes[name] = _note(old.writes_to, old.buffer_table, readers, count_waiting)
    return left


def _read_no_more(old: Declaration, new: Declaration) -> str | None:
    """Return the buffer that a collection would read no more, or not all that it reads now."""
    source = old.source
    if not isinstance(source, BufferSource) or _reads(new, source.buffer, source.table):
        return None
    return source.buffer


def _leaving(buffer: str, old: Declaration, count_waiting: CountWaiting) -> str | None:
    """Return why a collection cannot leave a buffer that it reads."""
    try:
        count = count_waiting(buffer, [old]).get(old.name)
    except Unreachable:
        raise
    except TidemarkError as error:
        return (
            f"what waits in the buffer {buffer!r}, which it would not read any more, cannot be counted: {error}; "
            "mend that first, or remove the buffer if nothing in it matters"
        )
    if not count:
        return None
    bring = f"bring them in first: `tidemark buffer ingest {old.name}`"
    return f"{_batches(count)} in the buffer {buffer!r}, which it would not read any more; {bring}"


def _note(buffer: str, table: str, declarations: Iterable[Declaration], count_waiting: CountWaiting) -> str:
    readers = [each for each in declarations if _reads(each, buffer, table)]
    if not readers:
        return f"what was appended before stays in the buffer {buffer!r}, which no collection here reads"
    try:
        waiting = count_waiting(buffer, readers)
    except TidemarkError as error:  # nothing is lost by this change: whoever reads the buffer goes on
        return f"what waits in the buffer {buffer!r} cannot be counted: {error}"
    return "; ".join(
        f"{_batches(count)} in the buffer {buffer!r} for {name!r}: `tidemark buffer ingest {name}`"
        for name, count in waiting.items()
    )


def _reads(declaration: Declaration, buffer: str, table: str | None) -> bool:
    """Tell whether the collection reads all rows of a table (None: of all tables) that are in the buffer."""
    source = declaration.source
    if not isinstance(source, BufferSource):
        return False
    return _is_same_place(source.buffer, buffer) and source.table in {None, table}


def _is_same_place(one: str, other: str | None) -> bool:
    """Compare names of connections, whose case nobody minds, or addresses, whose options say nothing of the place."""
    if other is None or ":" in one or ":" in other:
        return other is not None and one.partition("?")[0] == other.partition("?")[0]
    return one.upper() == other.upper()


def _batches(count: int) -> str:
    return f"{count} appended batches wait" if count > 1 else "1 appended batch waits"
