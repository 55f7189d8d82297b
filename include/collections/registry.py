"""Which declarations are applied: the interface, and its first form, a small log shard.

The catalog will take this over; nothing but this module knows where applied declarations are kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from include.collections.declaration import DECLARATION_VERSION, Declaration
from include.errors import CorruptState, NotPossible, UnknownCollection
from include.persist.log import LOG_SCHEMA, LogUpdate, append_to_log, read_log
from include.persist.shard_state import ShardKind
from include.persist.shards import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from include.persist.shards import Shards

SHARD = "declarations"
KIND = "collection"


@dataclass(frozen=True, slots=True)
class Applied:
    """The applied declarations by name, sorted, as they were at one instant; what a change of them is based on."""

    declarations: dict[str, Declaration] = field(default_factory=dict)
    upper: int = 0
    texts: dict[str, str] = field(default_factory=dict)  # as stored, so that they can be retracted


class Registry(Protocol):
    """Where applied declarations are. Changes are serialised: one that is based on old contents fails."""

    def read(self) -> Applied:
        """Return what is applied now."""

    def get(self, name: str) -> Declaration:
        """Return one declaration.

        Raises:
            UnknownCollection: If there is none of that name; with near matches.
        """

    def replace(self, changed: Iterable[Declaration], *, seen: Applied, now_ms: int) -> None:
        """Apply ``changed``, all or nothing, if what is applied is still what was ``seen``.

        Raises:
            UpperMismatch: If somebody else applied something since; nothing was written.
            Fenced: If a newer deployment leads.
        """


@dataclass(frozen=True, slots=True)
class LogRegistry:
    """Declarations in the log shard ``system.declarations``, one JSON text with a version for each."""

    shards: Shards
    generation: int

    def create(self) -> None:
        """Make the shard, if it is not there; reading does without it."""
        self.shards.create(SHARD, schema=LOG_SCHEMA, kind=ShardKind.LOG, namespace=SYSTEM)

    def read(self) -> Applied:
        if not self.shards.exists(SHARD, SYSTEM):
            return Applied()
        head = self.shards.open(SHARD, SYSTEM).load()
        upper = head.state.upper
        if not isinstance(upper, int):
            raise NotPossible("the declarations are sealed", hint="this installation was closed for good")
        texts = {key: value for (kind, key, value), _ in sorted(read_log(head).items()) if kind == KIND}
        return Applied({name: parse_entry(name, text) for name, text in texts.items()}, upper, texts)

    def get(self, name: str) -> Declaration:
        known = self.read().declarations
        if name not in known:
            raise UnknownCollection.named(name, known)
        return known[name]

    def replace(self, changed: Iterable[Declaration], *, seen: Applied, now_ms: int) -> None:
        updates = []
        for declaration in changed:
            name = declaration.name
            if name in seen.texts:
                updates.append(LogUpdate(KIND, name, seen.texts[name], -1))
            updates.append(LogUpdate(KIND, name, entry_text(declaration), 1))
        self.create()
        writer = self.shards.open(SHARD, SYSTEM).join(self.generation)
        append_to_log(writer, updates, lower=seen.upper, time=max(now_ms, seen.upper))


def entry_text(declaration: Declaration) -> str:
    """Return the stored form, the same for equal declarations."""
    return json.dumps({"version": DECLARATION_VERSION, "declaration": declaration.to_json()}, sort_keys=True)


def parse_entry(name: str, text: str) -> Declaration:
    """Return the declaration that ``entry_text`` wrote.

    Raises:
        NotPossible: If a newer Tidemark wrote it.
        CorruptState: If it cannot be read.
    """
    try:
        entry: Mapping[str, object] = json.loads(text)
        version = entry["version"]
        if isinstance(version, int) and version > DECLARATION_VERSION:
            raise NotPossible(
                f"the declaration of {name!r} has version {version}, this Tidemark reads up to {DECLARATION_VERSION}",
                hint="a newer Tidemark applied it: use that one",
            )
        return Declaration.model_validate(entry["declaration"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise CorruptState(
            f"the applied declaration of {name!r} cannot be read: {error}", hint="apply its file once more"
        ) from error
