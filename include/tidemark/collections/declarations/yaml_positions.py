"""Parses YAML text into plain values, and finds the line of every field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tidemark.errors import ConfigurationInvalid


@dataclass(frozen=True, slots=True)
class YamlDocument:
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
            found = _child(node, part)
            if found is not None:
                line, node = found
        return f"{self.path}:{line}"


def parse_yaml(text: str, path: Path) -> YamlDocument:
    """Parse the ``text`` of the file ``path``.

    Raises:
        ConfigurationInvalid: If the text is not YAML, or a mapping names a key twice; with the line.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_duplicate_keys(root, path)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        raise ConfigurationInvalid(f"{where}: not valid YAML: {problem}") from error
    except yaml.YAMLError as error:  # characters that YAML does not allow: the only error without a mark
        raise ConfigurationInvalid(f"{path}: not valid YAML: {error}") from error
    except ValueError as error:  # a scalar such as 2013-02-31 that looks like a date but is not one
        raise ConfigurationInvalid(f"{path}: not valid YAML: {error}", hint="put the value into quotes") from error
    return YamlDocument(path, values, root)


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
