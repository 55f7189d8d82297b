"""Reads and checks declarations in YAML files; every message names file, line, collection and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from tidemark.collections.declarations.collection import DECLARATION_VERSION, QUARANTINE_SUFFIX, Declaration
from tidemark.collections.declarations.messages import describe, did_you_mean
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.errors import ConfigurationInvalid, InputMissing
from tidemark.iceberg.shard.state_reader import SYSTEM_PREFIX

_SUFFIXES = (".yaml", ".yml")
COLLECTIONS, SINKS = "collections", "sinks"
_NOUNS = {COLLECTIONS: "collection", SINKS: "sink"}
_MODELS: dict[str, type[BaseModel]] = {COLLECTIONS: Declaration, SINKS: SinkDeclaration}
_NOTHING_GOES = "nothing was applied, and what was applied before stays: `tidemark drop NAME` removes a collection"
_LOOK_BEFORE = "look at brackets, quotes, colons and indentation there, and on the line before"
_QUOTED_WORD = re.compile(r"\b(alias|tag|anchor) '[^']*'")  # a password that begins with * or ! is one for YAML


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations by name, in the order of the files, and their places (file and line), for messages.

    Collections and sinks share one space of names.
    """

    by_name: dict[str, Declaration] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    sinks: dict[str, SinkDeclaration] = field(default_factory=dict)


def load_declarations(
    paths: Iterable[Path | str], known: Iterable[str] = (), known_sinks: Iterable[str] = ()
) -> Declarations:
    """Read the YAML files in ``paths``, files and folders; files of one folder in the order of their names.

    ``known`` are the names of applied collections, which inputs and sinks may name, too; ``known_sinks`` those of
    applied sinks.

    Raises:
        InputMissing: If a path does not exist, or a folder holds no YAML file.
        ConfigurationInvalid: With all errors.
    """
    found, problems = Declarations(), list[str]()
    for path in _list_files(paths):
        _read_file(path, found, problems)
    if not problems:
        problems = [*_check_inputs(found, set(known)), *_check_sinks(found, set(known), set(known_sinks))]
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
    for part, name, values in _declared_in(document):
        place, noun = document.place_of(part, name), _NOUNS[part]
        if name in found.places:
            problems.append(f"{place}: {noun} {name!r} is declared at {found.places[name]} already")
            continue
        if str(name).endswith(QUARANTINE_SUFFIX):  # evolving rejected rows to a declared schema would drop them
            problems.append(
                f"{place}: {noun} {name!r}: names that end in {QUARANTINE_SUFFIX!r} are kept for rows that do not "
                "parse: choose another name"
            )
            continue
        if str(name).startswith(SYSTEM_PREFIX):
            problems.append(
                f"{place}: {noun} {name!r}: names that begin with {SYSTEM_PREFIX!r} are kept for what Tidemark "
                "writes about itself: choose another name"
            )
            continue
        try:
            fields = {**values, "name": name} if isinstance(values, dict) else values
            declared = _MODELS[part].model_validate(fields, context={"folder": str(path.parent)})
        except ValidationError as error:
            where = partial(_where, document, part, name)
            details = error.errors(include_url=False)
            problems.extend(describe(detail, _MODELS[part], where=where) for detail in details)
            continue
        found.places[name] = place
        if isinstance(declared, SinkDeclaration):
            found.sinks[name] = declared
        elif isinstance(declared, Declaration):
            found.by_name[name] = declared


def _where(document: _Document, part: str, name: str, *location: int | str) -> str:
    return f"{document.place_of(part, name, *location)}: {_NOUNS[part]} {name!r}"


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


def _declared_in(document: _Document) -> list[tuple[str, str, Any]]:
    """Return part, name and fields of all that the file declares under ``collections``, ``sinks``, or both."""
    values = document.values
    if not isinstance(values, dict):
        raise ConfigurationInvalid(
            f"{document.path}:1: expected `version: 1`, and `collections:` or `sinks:`, at the top", hint=_NOTHING_GOES
        )
    for name in values:
        if name not in {"version", COLLECTIONS, SINKS}:
            raise ConfigurationInvalid(
                f"{document.place_of(name)}: unknown field {name!r} at the top: `version`, `collections` and `sinks` "
                "belong there" + did_you_mean(str(name), ("version", COLLECTIONS, SINKS))
            )
    if values.get("version") != DECLARATION_VERSION:
        where, given = document.place_of("version"), repr(values["version"]) if "version" in values else "none"
        raise ConfigurationInvalid(
            f"{where}: `version` must be {DECLARATION_VERSION}, got {given}",
            hint=f"let the file begin with the line `version: {DECLARATION_VERSION}`",
        )
    expected = [part for part in (COLLECTIONS, SINKS) if part in values] or [COLLECTIONS]
    for part in expected:
        _check_part(document, part, values.get(part))
    return [(part, name, fields) for part in expected for name, fields in values[part].items()]


def _check_part(document: _Document, part: str, declared: Any) -> None:
    where = document.place_of(part)
    if not isinstance(declared, dict) or not declared:
        raise ConfigurationInvalid(
            f"{where}: `{part}` must hold at least one {_NOUNS[part]} under its name", hint=_NOTHING_GOES
        )
    for name, fields in declared.items():
        if isinstance(fields, dict) and "name" in fields:
            where = document.place_of(part, name, "name")
            raise ConfigurationInvalid(f"{where}: {_NOUNS[part]} {name!r}: unknown field 'name': the name stands above")


def _check_inputs(found: Declarations, known: set[str]) -> list[str]:
    """Check that all inputs exist, and that collections do not read each other in a circle."""
    problems = list[str]()
    for name, declaration in found.by_name.items():
        unknown = [read for read in declaration.inputs if read not in found.by_name and read not in known]
        problems.extend(
            f"{found.places[name]}: collection {name!r} reads the collection {read!r}, which is not declared"
            + did_you_mean(read, [*found.by_name, *known])
            for read in unknown
        )
    try:
        sort_by_inputs(found.by_name)
    except ConfigurationInvalid as error:
        first_file = min(found.places.values()).rpartition(":")[0]
        problems.append(f"{first_file}: {error}")
    return problems


def _check_sinks(found: Declarations, known: set[str], known_sinks: set[str]) -> list[str]:
    """Check that sinks carry collections that exist, and that no name is that of an applied object of another kind."""
    problems = [
        f"{found.places[name]}: sink {name!r} carries the collection {sink.collection!r}, which is not declared"
        + did_you_mean(sink.collection, [*found.by_name, *known])
        for name, sink in found.sinks.items()
        if sink.collection not in found.by_name and sink.collection not in known
    ]
    for noun, names in (("collection", known & found.sinks.keys()), ("sink", known_sinks & found.by_name.keys())):
        problems.extend(
            f"{found.places[name]}: a {noun} {name!r} is applied already, and names are given once: choose another one"
            for name in sorted(names)
        )
    return problems
