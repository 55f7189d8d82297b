"""What reads what: sources, collections and sinks as nodes, and an edge from each to whoever reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Applied
from tidemark.collections.sources.formats.source import Source
from tidemark.secrets.redaction import redact

_PLACES = ("buffer", "table", "path", "connection", "query", "url")  # the first that a source has names it


def show_lineage(applied: Applied) -> dict[str, Any]:
    """Return ``nodes`` (``id``, ``kind``, ``name``), and ``edges`` as pairs of ids, along the flow of rows."""
    nodes: dict[str, dict[str, str]] = {}
    edges: list[tuple[str, str]] = []

    def add(kind: str, name: str) -> str:
        id_ = f"{kind}:{name}"
        nodes.setdefault(id_, {"id": id_, "kind": kind, "name": name})
        return id_

    for name, declaration in applied.declarations.items():
        own = add("collection", name)
        edges += [(add(kind, place), own) for kind, place in _inputs_of(declaration)]
        if declaration.writes_to is not None:
            edges.append((own, add("buffer", declaration.writes_to)))
    for name, sink in applied.sinks.items():
        own = add("sink", name)
        edges += [(add("collection", sink.collection), own), (own, add("target", redact(str(sink.declaration.to))))]
    return {"nodes": list(nodes.values()), "edges": sorted(set(edges))}


def neighbours(lineage: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the rows of a collection or sink come from, and what they go to, directly or not."""
    start = {f"{kind}:{name}" for kind in ("collection", "sink")} & {node["id"] for node in lineage["nodes"]}
    pairs = lineage["edges"]
    kept = _reached(start, pairs) | _reached(start, [(to, from_) for from_, to in pairs])
    return {
        "nodes": [node for node in lineage["nodes"] if node["id"] in kept],
        "edges": [edge for edge in pairs if {*edge} <= kept],
    }


def _reached(start: set[str], pairs: list[tuple[str, str]]) -> set[str]:
    found, waiting = set(start), list(start)
    following: dict[str, list[str]] = {}
    for from_, to in pairs:
        following.setdefault(from_, []).append(to)
    while waiting:
        for to in following.get(waiting.pop(), ()):
            if to not in found:
                found.add(to)
                waiting.append(to)
    return found


def _inputs_of(declaration: Declaration) -> Iterator[tuple[str, str]]:
    for source in declaration.source.inputs_read if declaration.source else ():
        if source.collection_name is not None:
            yield "collection", source.collection_name
        else:
            yield ("buffer" if declaration.reads_buffer else "source"), place_of(source)


def place_of(source: Source) -> str:
    """Return where a source is, for people."""
    places = (getattr(source, field, None) for field in _PLACES)
    return redact(next((str(place) for place in places if place), source.form))
