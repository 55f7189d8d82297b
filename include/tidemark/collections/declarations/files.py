"""Reads and checks declarations in YAML files; every message names file, line, collection and field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tidemark.collections.declarations.collection import DECLARATION_VERSION, QUARANTINE_SUFFIX, Declaration
from tidemark.collections.declarations.yaml_positions import YamlDocument, parse_yaml
from tidemark.collections.sources.formats.sql import SOURCES
from tidemark.errors import ConfigurationInvalid, InputMissing

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations by name, in the order of the files, and their places (file and line), for messages."""

    by_name: dict[str, Declaration] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def load_declarations(paths: Iterable[Path], known: Iterable[str] = ()) -> Declarations:
    """Read the YAML files in ``paths``, files and folders; files of one folder in the order of their names.

    ``known`` are the names of applied collections, which inputs may name, too.

    Raises:
        InputMissing: If a path does not exist, or a folder holds no YAML file.
        ConfigurationInvalid: With all errors.
    """
    found, problems = Declarations(), list[str]()
    for path in _list_files(paths):
        _read_file(path, found, problems)
    if not problems:
        problems = _check_inputs(found, set(known))
    if problems:
        raise ConfigurationInvalid(
            "\n".join(problems), hint="nothing was applied: repair the declaration and run again"
        )
    return found


def sort_by_inputs(declarations: Mapping[str, Declaration]) -> TopologicalSorter[str]:
    """Return a prepared sorter: each name comes after the names of the collections that it reads.

    Raises:
        ConfigurationInvalid: If collections read each other in a circle.
    """
    sorter = TopologicalSorter(
        {name: [read for read in found.inputs if read in declarations] for name, found in declarations.items()}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ConfigurationInvalid(f"collections read each other in a circle: {circle}") from error
    return sorter


def order_by_inputs(declarations: Mapping[str, Declaration]) -> list[str]:
    """Return the names in an order in which each name comes after the collections that it reads.

    Raises:
        ConfigurationInvalid: If collections read each other in a circle.
    """
    sorter, names = sort_by_inputs(declarations), list[str]()
    while sorter.is_active():
        ready = sorter.get_ready()
        names.extend(ready)
        sorter.done(*ready)
    return names


def _list_files(paths: Iterable[Path]) -> list[Path]:
    files: dict[Path, None] = {}
    for path in (given.expanduser().absolute() for given in paths):
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
            if not inside:
                raise InputMissing(f"{path} holds no YAML file", hint="declarations end in .yaml or .yml")
            files |= dict.fromkeys(inside)
        elif path.is_file():
            files[path] = None
        else:
            raise InputMissing(f"{path} does not exist", hint="give a declaration file, or a folder of them")
    return list(files)


def _read_file(path: Path, found: Declarations, problems: list[str]) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problems.append(f"{path}:{line}: not UTF-8 text")
        return
    document = parse_yaml(text, path)
    for name, values in _collections_of(document).items():
        place = document.place_of("collections", name)
        if name in found.by_name:
            problems.append(f"{place}: collection {name!r} is declared at {found.places[name]} already")
            continue
        if str(name).endswith(QUARANTINE_SUFFIX):  # evolving rejected rows to a declared schema would drop them
            problems.append(
                f"{place}: collection {name!r}: names that end in {QUARANTINE_SUFFIX!r} are kept for rows that do not "
                "parse: choose another name"
            )
            continue
        try:
            fields = {**values, "name": name} if isinstance(values, dict) else values
            found.by_name[name] = Declaration.model_validate(fields, context={"folder": str(path.parent)})
            found.places[name] = place
        except ValidationError as error:
            problems.extend(_describe(document, name, detail) for detail in error.errors(include_url=False))


def _collections_of(document: YamlDocument) -> dict[str, Any]:
    values = document.values
    if not isinstance(values, dict):
        raise ConfigurationInvalid(f"{document.path}:1: expected `version: 1` and `collections:` at the top")
    for name in values:
        if name not in {"version", "collections"}:
            raise ConfigurationInvalid(
                f"{document.place_of(name)}: unknown field {name!r} at the top: `version` and `collections` belong "
                "there"
            )
    if values.get("version") != DECLARATION_VERSION:
        where, given = document.place_of("version"), repr(values["version"]) if "version" in values else "none"
        raise ConfigurationInvalid(f"{where}: `version` must be {DECLARATION_VERSION}, got {given}")
    collections, where = values.get("collections"), document.place_of("collections")
    if not isinstance(collections, dict) or not collections:
        raise ConfigurationInvalid(f"{where}: `collections` must hold at least one collection under its name")
    for name, fields in collections.items():
        if isinstance(fields, dict) and "name" in fields:
            where = document.place_of("collections", name, "name")
            raise ConfigurationInvalid(f"{where}: collection {name!r}: unknown field 'name': the name stands above")
    return collections


def _describe(document: YamlDocument, name: str, error: ErrorDetails) -> str:
    location = _without_tags(error["loc"])
    where = f"{document.place_of('collections', name, *location)}: collection {name!r}"
    if error["type"] == "extra_forbidden":
        field_name = str(location[-1])
        parent = ".".join(map(str, location[:-1]))
        suggestion = _did_you_mean(field_name, _fields_at(location))
        return f"{where}: unknown field {field_name!r}{f' in {parent!r}' if parent else ''}{suggestion}"
    dotted = ".".join(map(str, location))
    prefix = f"{where}, field {dotted!r}" if dotted else where
    return f"{prefix}: {_sentence(error, dotted)}"


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _without_tags(location: Sequence[int | str]) -> list[int | str]:
    """Leave out the names of union branches, which pydantic adds after `source` and after the name of an input."""
    parts = list(location)
    if parts[:1] == ["source"]:
        if parts[2:3] == ["inputs"]:
            del parts[4:5]
        del parts[1:2]
    return parts


def _sentence(error: ErrorDetails, dotted: str) -> str:
    error_type, given = error["type"], error.get("input")
    if error_type == "value_error":
        return str(error["ctx"]["error"])
    if error_type == "missing":
        return "is missing"
    if error_type in {"model_type", "dict_type"}:
        return f"must be a mapping of fields, got {given!r}"
    if error_type == "string_pattern_mismatch" and dotted == "name":
        return f"{given!r} is no collection name: use lower-case letters, digits and underscores, a letter first"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{message}, got {given!r}" if isinstance(given, str | int | float | bool) else message


def _fields_at(location: Sequence[int | str]) -> list[str]:
    """Return the field names that are valid at the end of ``location``; for a source, those of all forms."""
    parents = [str(part) for part in location[:-1]]
    if not parents:
        models: tuple[type[Any], ...] = (Declaration,)
    elif parents[0] == "source":
        models = SOURCES
    else:
        annotation = Declaration.model_fields[parents[0]].annotation if parents[0] in Declaration.model_fields else None
        models = tuple(
            part for part in (annotation, *getattr(annotation, "__args__", ())) if hasattr(part, "model_fields")
        )
    return [info.alias or name for model in models for name, info in model.model_fields.items()]


def _check_inputs(found: Declarations, known: set[str]) -> list[str]:
    """Check that all inputs exist, and that collections do not read each other in a circle."""
    problems = list[str]()
    for name, declaration in found.by_name.items():
        unknown = [read for read in declaration.inputs if read not in found.by_name and read not in known]
        problems.extend(
            f"{found.places[name]}: collection {name!r} reads the collection {read!r}, which is not declared"
            + _did_you_mean(read, [*found.by_name, *known])
            for read in unknown
        )
    try:
        sort_by_inputs(found.by_name)
    except ConfigurationInvalid as error:
        first_file = min(found.places.values()).rpartition(":")[0]
        problems.append(f"{first_file}: {error}")
    return problems
