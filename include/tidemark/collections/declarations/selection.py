"""Selects declared collections by words: by name, by tag, and with what lies above or below in the order of reading.

The words are those of dbt: ``planes``, ``tag:reference``, ``+flights`` (and all that ``flights`` reads, directly or
through others), ``planes+`` (and all that read ``planes``). Several words select what any of them selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Applied
from tidemark.errors import UnknownCollection, UsageError

_TAG, _NEIGHBOURS = "tag:", "+"


def choose(
    declared: Mapping[str, Declaration],
    words: Sequence[str],
    belongs: Callable[[Declaration], bool],
    *,
    require: Callable[[Declaration], object],
) -> list[Declaration]:
    """Return the declared collections that ``words`` select, or all, as far as they belong to what is to be done.

    ``require`` raises an error for one that does not belong, and is named by a word; rules leave it out.

    Raises:
        UsageError: If the words select nothing that belongs.
        Others as ``select``.
    """
    names = select(declared, words) if words else sorted(declared)
    for name in names:
        if name in words:
            require(declared[name])
    chosen = [declared[name] for name in names if belongs(declared[name])]
    if words and not chosen:
        raise UsageError(
            f"{' '.join(words)} selects {', '.join(names)}, and none of them is a collection that this is for",
            hint="`tidemark collections` lists kinds and tags",
        )
    return chosen


def select(declared: Mapping[str, Declaration], words: Sequence[str]) -> list[str]:
    """Return the names that the words select, in the order of the words, each name once.

    Raises:
        UnknownCollection: If a word names no declared collection; with its new name, or near matches.
        UsageError: If no collection has the tag.
    """
    names: dict[str, None] = {}
    for word in words:
        kernel = word.removeprefix(_NEIGHBOURS).removesuffix(_NEIGHBOURS)
        found = dict.fromkeys(_find(declared, kernel))
        names |= found
        if word.startswith(_NEIGHBOURS):
            names |= _reach(found, {name: declaration.inputs for name, declaration in declared.items()})
        if word.endswith(_NEIGHBOURS):
            names |= _reach(found, _readers(declared))
    return [*names]


def _find(declared: Mapping[str, Declaration], kernel: str) -> list[str]:
    if not kernel.startswith(_TAG):
        if kernel not in declared:
            raise UnknownCollection.named(kernel, declared, renamed=Applied({**declared}).renamed)
        return [kernel]
    tag = kernel.removeprefix(_TAG)
    found = sorted(name for name, declaration in declared.items() if tag in declaration.tags)
    if not found:
        tags = sorted({tag for declaration in declared.values() for tag in declaration.tags})
        hint = f"declared are: {', '.join(tags)}" if tags else "no collection declares `tags`"
        raise UsageError(f"no collection has the tag {tag!r}", hint=hint)
    return found


def _readers(declared: Mapping[str, Declaration]) -> dict[str, list[str]]:
    """Return by collection which collections read it."""
    readers: dict[str, list[str]] = {}
    for name, declaration in sorted(declared.items()):
        for read in declaration.inputs:
            readers.setdefault(read, []).append(name)
    return readers


def _reach(names: Mapping[str, None], neighbours: Mapping[str, Sequence[str]]) -> dict[str, None]:
    """Return the declared collections that can be reached from ``names``, without these."""
    reached, waiting = dict[str, None](), [*names]
    while waiting:
        for name in neighbours.get(waiting.pop(), ()):
            if name not in reached and name not in names:
                reached[name] = None
                waiting.append(name)
    return reached
