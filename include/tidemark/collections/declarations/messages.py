"""Errors of declarations in words: which field, what is wrong, and what was meant, without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tidemark.collections.declarations.sink import PLACES
from tidemark.collections.sources.formats.sql import SOURCES
from tidemark.secrets.redaction import find_secrets, is_secret_name, redact

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

_ENUM_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")


def describe(error: ErrorDetails, model: type[BaseModel], *, where: Callable[..., str]) -> str:
    """Return the sentence for an error of ``model``; ``where`` returns place and name for a location inside it."""
    location = _without_tags(error["loc"])
    place = where(*location)
    if error["type"] == "extra_forbidden":
        field_name = str(location[-1])
        parent = ".".join(map(str, location[:-1]))
        suggestion = _say_owners(model, location) or did_you_mean(field_name, _fields_at(model, location))
        return f"{place}: unknown field {field_name!r}{f' in {parent!r}' if parent else ''}{suggestion}"
    dotted = ".".join(map(str, location))
    prefix = f"{place}, field {dotted!r}" if dotted else place
    return f"{prefix}: {_sentence(error, dotted)}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence that names the nearest of the ``known`` names; empty if none is near."""
    near = get_close_matches(name, {*known} - {name}, n=1)  # which another form of source has
    return f"; did you mean {near[0]!r}?" if near else ""


def _say_owners(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return which other fields have a field of the name at the end of ``location``; empty if there is none."""
    name = str(location[-1])
    owners = [
        owner for owner in model.model_fields if owner != location[0] and name in _fields_at(model, (owner, name))
    ]
    return f"; it belongs in {' or '.join(map(repr, owners))}" if owners else ""


def _without_tags(location: Sequence[int | str]) -> list[int | str]:
    """Leave out the names of union branches, which pydantic adds after `source`, `to` and the name of an input."""
    parts = list(location)
    if parts[:1] == ["to"]:
        del parts[1:2]
    if parts[:1] == ["source"]:
        if parts[2:3] == ["inputs"]:
            del parts[4:5]
        del parts[1:2]
    return parts


def _sentence(error: ErrorDetails, dotted: str) -> str:
    error_type, given = error["type"], error.get("input")
    if error_type == "value_error":
        return redact(str(error["ctx"]["error"]))
    if error_type == "missing":
        return "is missing"
    if _may_be_secret(given) or any(map(is_secret_name, dotted.split("."))):
        return "is not what belongs there; the value is not shown, because it may hold a password"
    if error_type in {"model_type", "dict_type"}:
        return f"must be a mapping of fields, got {given!r}"
    if error_type == "string_pattern_mismatch" and dotted == "name":
        return f"{given!r} is no collection name: use lower-case letters, digits and underscores, a letter first"
    message = _ENUM_MEMBER.sub(r"\1", error["msg"][0].lower() + error["msg"][1:])
    return f"{message}, got {given!r}" if isinstance(given, str | int | float | bool) else message


def _may_be_secret(given: object) -> bool:
    """Tell whether a value is an address with a login, or has a field whose name is that of a secret."""
    if isinstance(given, Mapping):
        return any(is_secret_name(str(name)) or _may_be_secret(value) for name, value in given.items())
    if isinstance(given, list):
        return any(map(_may_be_secret, given))
    return isinstance(given, str) and bool(find_secrets(given))


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Return the field names that are valid at the end of ``location``; for a source, the names of all forms."""
    parents = [str(part) for part in location[:-1]]
    if not parents:
        models: tuple[type[Any], ...] = (model,)
    elif parents[0] == "source":
        models = SOURCES
    elif parents[0] == "to":
        models = PLACES
    else:
        annotation = model.model_fields[parents[0]].annotation if parents[0] in model.model_fields else None
        models = tuple(
            part for part in (annotation, *getattr(annotation, "__args__", ())) if hasattr(part, "model_fields")
        )
    return [info.alias or name for model in models for name, info in model.model_fields.items()]
