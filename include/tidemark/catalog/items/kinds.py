"""The kinds of items that the catalog holds: a typed key and a typed, versioned value for each.

``config`` alone has no version: its format, a string key and an unsigned 64-bit number, is never migrated, so that it
can be read before the catalog is opened, by any version of this program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel, StringConstraints, ValidationError

from tidemark.catalog.items.item import Item, canonical_json
from tidemark.collections.deployment import Mode
from tidemark.collections.objects.standing import ObjectKind, ObjectState
from tidemark.errors import CorruptState, IncompatibleDataVersion, UnknownKind

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Unsigned = Annotated[int, Field(ge=0, le=2**64 - 1)]
TimeMs = Annotated[int, Field(ge=0)]  # ms since the Unix epoch
K = TypeVar("K", bound=BaseModel)
V = TypeVar("V", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NamedKey(_Strict):
    """The key of an item that has a name."""

    name: Name


class NumberedKey(_Strict):
    """The key of an item that is only ever added: a number from an id allocator."""

    id: Unsigned


# -- config: never migrated ----------------------------------------------------------------------------------------


class ConfigKey(RootModel[Name]):
    """A config key, in JSON a bare string."""

    model_config = ConfigDict(frozen=True, strict=True)


class ConfigValue(RootModel[Unsigned]):
    """A config value, in JSON a bare number; 0 and 1 for no and yes."""

    model_config = ConfigDict(frozen=True, strict=True)


# In the stash only, see ``catalog/back_end.py``: absent or 0, the stash is the truth; 1, the persist catalog is.
TOMBSTONE: Final = "tombstone"
CATALOG_KIND: Final = "catalog_kind"  # a ``CatalogKind``: what the next open is to do
DATA_VERSION_KEY: Final = "data_version"  # of the items, see data_versions.py; in every initialised back end
GENERATION_KEY: Final = "deployment_generation"  # who opened the back end last; in every initialised back end
LEADER_EPOCH: Final = "leader_epoch"  # in the truth: the epoch whose open is complete, so that tasks may join


class CatalogKind(IntEnum):
    """What the stored ``catalog_kind`` asks the next open to do."""

    STASH = 0  # use the stash: roll back if the persist catalog is the truth
    PERSIST = 1  # use the persist catalog: migrate if the stash is the truth
    EMERGENCY_STASH = 2
    SHADOW = 3  # refused with a log line


# -- versioned kinds -----------------------------------------------------------------------------------------------


class SettingValue(_Strict):
    """A setting that operators change at run time."""

    version: Literal[1] = 1
    value: str


class IdAllocatorValue(_Strict):
    """The next number that the allocator hands out; the first one is 1."""

    version: Literal[1] = 1
    next_id: Unsigned


class CollectionValue(_Strict):
    """An applied declaration; ``id`` tells a collection from an earlier one of the same name."""

    version: Literal[1] = 1
    id: Unsigned
    declaration_version: Unsigned
    declaration: dict[str, JsonValue]  # as ``Declaration.to_json`` wrote it


class _Connected(_Strict):
    version: Literal[1] = 1
    id: Unsigned
    collection: Name
    definition: dict[str, JsonValue]


class SourceValue(_Connected):
    """Where rows of a collection come from continuously."""


class SinkValue(_Connected):
    """Where changes of a collection go to."""


class DeploymentKey(_Strict):
    """The generation of a deployment."""

    generation: Unsigned


class DeploymentState(StrEnum):
    """How far a deployment has come on its way to lead; ``DEPOSED`` once another one leads."""

    INITIALIZING = "initializing"
    CATCHING_UP = "catching-up"
    READY_TO_PROMOTE = "ready-to-promote"
    PROMOTING = "promoting"
    IS_LEADER = "is-leader"
    DEPOSED = "deposed"


class DeploymentValue(_Strict):
    """The state and the mode of a deployment."""

    version: Literal[1] = 1
    state: DeploymentState
    mode: Mode
    since_ms: TimeMs
    who: str = ""
    why: str = ""
    leader: str = ""  # the process that opened the catalog, in words


class AuditEventValue(_Strict):
    """A change of the catalog, recorded in the transaction that made it."""

    version: Literal[1] = 1
    occurred_at_ms: TimeMs
    operation: Name  # a verb: create, alter, drop, migrate, …
    subject_kind: Name
    subject: str
    who: str
    details: dict[str, JsonValue] = {}


class ObjectStateValue(_Strict):
    """Why an object does not run; see ``Standing``."""

    version: Literal[1] = 1
    state: ObjectState
    since_ms: TimeMs
    who: str = ""
    reason: str = ""
    error: str = ""
    attempts: Unsigned = 0
    retry_at_ms: TimeMs | None = None


class DroppedValue(_Strict):
    """An object that was dropped and is not removed yet; ``table_uuid`` is empty if there is no table."""

    version: Literal[1] = 1
    object_kind: ObjectKind
    name: Name
    object_id: Unsigned
    table_uuid: str
    dropped_at_ms: TimeMs
    who: str


class StorageUsageValue(_Strict):
    """The storage that a collection occupied at a time."""

    version: Literal[1] = 1
    collection: Name
    size_bytes: Unsigned
    collected_at_ms: TimeMs


@dataclass(frozen=True, slots=True)
class ItemKind(Generic[K, V]):
    """One kind of items: its name, which is also the name of its collection in the stash, its types and constraints.

    ``unique`` maps the name of a constraint to a function; no two items of the kind may have the same result, but for
    None.
    """

    name: str
    key_type: type[K]
    value_type: type[V]
    unique: Mapping[str, Callable[[K, V], Hashable | None]] = field(default_factory=dict)

    def key_text(self, key: K) -> str:
        return canonical_json(key.model_dump(mode="json"))

    def value_text(self, value: V) -> str:
        return canonical_json(value.model_dump(mode="json"))

    def item(self, key: K, value: V) -> Item:
        return Item(self.name, self.key_text(key), self.value_text(value))

    def parse_key(self, text: str) -> K:
        """Return the key that ``key_text`` wrote. Raises ``CorruptState`` if the text is malformed."""
        try:
            return self.key_type.model_validate_json(text)
        except ValidationError as error:
            raise self._malformed("key", text) from error

    def parse_value(self, text: str) -> V:
        """Return the value that ``value_text`` wrote.

        Raises:
            IncompatibleDataVersion: If a newer version of this program wrote the value.
            CorruptState: If the text is malformed.
        """
        try:
            return self.value_type.model_validate_json(text)
        except ValidationError as error:
            versions = [problem["input"] for problem in error.errors() if problem["loc"] == ("version",)]
            if versions:
                raise IncompatibleDataVersion(
                    f"an item of kind {self.name!r} has version {versions[0]!r}, which this program does not know",
                    hint="a newer Tidemark wrote it: use that one",
                ) from error
            raise self._malformed("value", text) from error

    def _malformed(self, what: str, text: str) -> CorruptState:
        return CorruptState(
            f"the {what} of an item of kind {self.name!r} cannot be read: {text[:200]!r}",
            hint="somebody edited the catalog's tables: restore them from a dump",
        )


def _id(_key: BaseModel, value: CollectionValue | SourceValue | SinkValue) -> int:
    return value.id


def _leadership(_key: DeploymentKey, value: DeploymentValue) -> str | None:
    return "leader" if value.state is DeploymentState.IS_LEADER else None


CONFIG = ItemKind("config", ConfigKey, ConfigValue)
SETTING = ItemKind("setting", NamedKey, SettingValue)
ID_ALLOCATOR = ItemKind("id_allocator", NamedKey, IdAllocatorValue)
COLLECTION = ItemKind("collection", NamedKey, CollectionValue, {"id": _id})
SOURCE = ItemKind("source", NamedKey, SourceValue, {"id": _id})
SINK = ItemKind("sink", NamedKey, SinkValue, {"id": _id})
DEPLOYMENT = ItemKind("deployment", DeploymentKey, DeploymentValue, {"leader": _leadership})
AUDIT_EVENT = ItemKind("audit_event", NumberedKey, AuditEventValue)
STORAGE_USAGE = ItemKind("storage_usage", NumberedKey, StorageUsageValue)
OBJECT_STATE = ItemKind("object_state", NamedKey, ObjectStateValue)
DROPPED = ItemKind("dropped", NumberedKey, DroppedValue)

_KINDS = (
    CONFIG, SETTING, ID_ALLOCATOR, COLLECTION, SOURCE, SINK, DEPLOYMENT, AUDIT_EVENT, STORAGE_USAGE, OBJECT_STATE,
    DROPPED,
)  # fmt: skip  # a stash that lacks the collection of a kind gets it with the first item
KINDS: Final[Mapping[str, ItemKind[Any, Any]]] = {kind.name: kind for kind in _KINDS}


def kind_named(name: str) -> ItemKind[Any, Any]:
    """Return the kind ``name``. Raises ``UnknownKind`` if it does not exist."""
    if name not in KINDS:
        raise UnknownKind(f"the catalog has no items of kind {name!r}", hint="kinds are: " + ", ".join(KINDS))
    return KINDS[name]


def config_item(key: str, value: int) -> Item:
    """Return the item that sets the config ``key`` to ``value``."""
    return CONFIG.item(ConfigKey(key), ConfigValue(value))
