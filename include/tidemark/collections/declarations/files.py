"""Reads and checks declarations in YAML files; every message names file, line, collection and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from tidemark.collections.declarations.collection import DECLARATION_VERSION, QUARANTINE_SUFFIX, Declaration
from tidemark.collections.sources.formats.sql import SOURCES
from tidemark.errors import ConfigurationInvalid, InputMissing
from tidemark.secrets.redaction import find_secrets, is_secret_name, redact

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SUFFIXES = (".yaml", ".yml")
_NOTHING_GOES = "nothing was applied, and what was applied before stays: collections cannot be removed yet"
_LOOK_BEFORE = "look at brackets, quotes, colons and indentation there, and on the line before"
_ENUM_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")
_QUOTED_WORD = re.compile(r"\b(alias|tag|anchor) '[^']*'")  # a password that begins with * or ! is one for YAML


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations by name, in the order of the files, and their places (file and line), for messages."""

    by_name: dict[str, Declaration] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def load_declarations(paths: Iterable[Path | str], known: Iterable[str] = ()) -> Declarations:
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

    Raises ``ConfigurationInvalid`` if collections read each other in a circle.
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

    Raises ``ConfigurationInvalid`` if collections read each other in a circle.
    """
    sorter, names = sort_by_inputs(declarations), list[str]()
    while sorter.is_active():
        ready = sorter.get_ready()
        names.extend(ready)
        sorter.done(*ready)
    return names


def _list_files(paths: Iterable[Path | str]) -> list[Path]:
    files: dict[Path, None] = {}
    for path in (Path(given).expanduser().absolute() for given in paths):
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
    document = _parse(text, path)
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


@dataclass(frozen=True, slots=True)
class _Document:
    """One parsed file, with ``values`` as plain Python."""

    path: Path
    values: Any
    root: yaml.Node | None

    def place_of(self, *location: int | str) -> str:
        """Return the file and the line, from 1, of the deepest part of ``location`` that is in the file.

        Parts that are not in the file are skipped: validators add parts to a location (the branch of a union), and a
        missing field gets the line of its parent.
        """
        node, line = self.root, 1
        for part in location:
            if (found := _child(node, part)) is not None:
                line, node = found
        return f"{self.path}:{line}"


def _parse(text: str, path: Path) -> _Document:
    """Parse the ``text`` of the file ``path``.

    Raises ``ConfigurationInvalid`` if the text is not YAML, or a mapping names a key twice; with the line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_duplicate_keys(root, path)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        problem = _QUOTED_WORD.sub(r"\1", problem)
        raise ConfigurationInvalid(f"{where}: not valid YAML: {problem}", hint=_LOOK_BEFORE) from error
    except yaml.YAMLError as error:  # characters that YAML does not allow: the only error without a mark
        raise ConfigurationInvalid(
            f"{path}: not valid YAML: {error}", hint="remove that character, and save the file as UTF-8"
        ) from error
    except ValueError as error:  # a scalar such as 2013-02-31 that looks like a date but is not one
        raise ConfigurationInvalid(f"{path}: not valid YAML: {error}", hint="put the value into quotes") from error
    return _Document(path, values, root)


def _child(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _refuse_duplicate_keys(node: yaml.Node | None, path: Path) -> None:
    """Refuse what the parser of YAML accepts: it keeps the last of two equal keys, so a collection would vanish."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicate_keys(item, path)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode) and key.value in lines:
            first = lines[key.value]
            raise ConfigurationInvalid(f"{path}:{line}: {key.value!r} stands twice, first on line {first}")
        if isinstance(key, yaml.ScalarNode):
            lines[key.value] = line
        _refuse_duplicate_keys(value, path)


def _collections_of(document: _Document) -> dict[str, Any]:
    values = document.values
    if not isinstance(values, dict):
        raise ConfigurationInvalid(
            f"{document.path}:1: expected `version: 1` and `collections:` at the top", hint=_NOTHING_GOES
        )
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
        raise ConfigurationInvalid(
            f"{where}: `collections` must hold at least one collection under its name", hint=_NOTHING_GOES
        )
    for name, fields in collections.items():
        if isinstance(fields, dict) and "name" in fields:
            where = document.place_of("collections", name, "name")
            raise ConfigurationInvalid(f"{where}: collection {name!r}: unknown field 'name': the name stands above")
    return collections


def _describe(document: _Document, name: str, error: ErrorDetails) -> str:
    location = _without_tags(error["loc"])
    where = f"{document.place_of('collections', name, *location)}: collection {name!r}"
    if error["type"] == "extra_forbidden":
        field_name = str(location[-1])
        parent = ".".join(map(str, location[:-1]))
        suggestion = _say_owners(field_name, location) or _did_you_mean(field_name, _fields_at(location))
        return f"{where}: unknown field {field_name!r}{f' in {parent!r}' if parent else ''}{suggestion}"
    dotted = ".".join(map(str, location))
    prefix = f"{where}, field {dotted!r}" if dotted else where
    return f"{prefix}: {_sentence(error, dotted)}"


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, {*known} - {name}, n=1)  # which another form of source has
    return f"; did you mean {near[0]!r}?" if near else ""


def _say_owners(name: str, location: Sequence[int | str]) -> str:
    """Return which other fields have a field of that name; empty if there is none."""
    owners = [owner for owner in Declaration.model_fields if owner != location[0] and name in _fields_at((owner, name))]
    return f"; it belongs in {' or '.join(map(repr, owners))}" if owners else ""


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


def _fields_at(location: Sequence[int | str]) -> list[str]:
    """Return the field names that are valid at the end of ``location``; for a source, the names of all forms."""
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
