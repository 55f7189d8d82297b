"""The objects of the catalog as commands name and describe them: written by the controller, read by dataflows.

A definition is JSON text, equal exactly when the declarations are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import AppliedSink, CatalogObject, StatusKind

if TYPE_CHECKING:
    from tidemark.storage.commands import ObjectId


def object_id(known: CatalogObject) -> ObjectId:
    """Return the id under which workers know an object of the catalog; an object made anew has another one."""
    return f"{'sink' if known.kind is StatusKind.SINK else 'collection'}-{known.id}"


def number_of(id_: ObjectId) -> int:
    """Return the id in the catalog of what workers know under an id."""
    return int(id_.rpartition("-")[2])


def definition_of(declared: Declaration | SinkDeclaration) -> str:
    """Return the definition of an ingestion or a sink."""
    return json.dumps(declared.to_json(), sort_keys=True, ensure_ascii=False)


def declaration_of(definition: str) -> Declaration:
    """Return the declaration of the collection that an ingestion fills."""
    return Declaration.model_validate(json.loads(definition))


def sink_of(id_: ObjectId, definition: str) -> AppliedSink:
    """Return the sink that the catalog has under the id."""
    return AppliedSink(number_of(id_), SinkDeclaration.model_validate(json.loads(definition)))


def name_of(definition: str) -> str:
    """Return the name of the object."""
    return str(json.loads(definition)["name"])
