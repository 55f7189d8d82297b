"""Declarations of sinks: what they mean, and what is refused, with its place."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.declarations.sink import (
    BufferTopic,
    DatabaseTable,
    FileFolder,
    IcebergTable,
    SinkDeclaration,
    SinkMode,
)
from tidemark.errors import ConfigurationInvalid, UsageError

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = """\
version: 1
collections:
  planes: {kind: differential, key: [tailnum], source: {format: json, path: p.json}, schema: "tailnum string"}
sinks:
  seats: {from: planes, to: {connection: pg, table: public.seats}, mode: mirror, key: [tailnum], warn_after: 2d}
  delays: {from: planes, to: {buffer: out}, mode: changes}
  copies: {from: planes, to: {path: out/planes, partition: [tailnum]}, mode: mirror}
  lake: {from: planes, to: {catalog: lake, table: analytics.planes, existing: replace}, mode: mirror}
"""


def load(folder: Path, text: str, **known: Any) -> dict[str, SinkDeclaration]:
    path = folder / "d.yaml"
    path.write_text(dedent(text), encoding="utf-8")
    return load_declarations([path], **known).sinks


def message(folder: Path, text: str, **known: Any) -> str:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(folder, text, **known)
    return str(caught.value).replace(str(folder), "")


def sink(fields: str) -> str:
    return f"version: 1\nsinks:\n  it: {{from: planes, mode: changes, {fields}}}\n"


def test_every_form_of_target(tmp_path: Path) -> None:
    found = load(tmp_path, EXAMPLE)
    assert found["seats"].to == DatabaseTable(connection="pg", table="public.seats")
    assert found["delays"].to == BufferTopic(buffer="out")
    assert found["copies"].to == FileFolder(path=str(tmp_path / "out/planes"), partition=("tailnum",))
    assert found["lake"].to == IcebergTable(catalog="lake", table="analytics.planes", existing="replace")
    assert found["seats"].warn_after_ms == 2 * 86_400_000
    assert found["delays"].warn_after_ms == 86_400_000


def test_what_is_stored_is_read_back(tmp_path: Path) -> None:
    for declared in load(tmp_path, EXAMPLE).values():
        assert SinkDeclaration.model_validate(declared.to_json()) == declared


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (sink("too: {buffer: x}"), "/d.yaml:3: sink 'it': unknown field 'too'; did you mean 'to'?"),
        (sink("to: {buffer: x, exsting: refuse}"), "unknown field 'exsting' in 'to'; did you mean 'existing'?"),
        (sink("to: {connection: pg}"), "/d.yaml:3: sink 'it', field 'to.table': is missing"),
        (sink("to: {connection: pg, table: a.b.c}"), "neither `TABLE` nor `SCHEMA.TABLE`"),
        (sink("to: {catalog: lake, table: planes}"), "field 'to.table'"),
        (sink("to: {buffer: x}, warn_after: soon"), "field 'warn_after'"),
        ("version: 1\nsinks: {}\n", "/d.yaml:2: `sinks` must hold at least one sink under its name"),
        ("version: 1\nsink: {}\n", "unknown field 'sink' at the top"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    assert told in message(tmp_path, text, known=["planes"])


def test_a_sink_of_nothing_is_told_with_near_names(tmp_path: Path) -> None:
    told = message(tmp_path, sink("to: {buffer: x}"), known=["plans"])
    assert "carries the collection 'planes', which is not declared; did you mean 'plans'?" in told


def test_names_are_given_once(tmp_path: Path) -> None:
    both = EXAMPLE.replace("  seats:", "  planes:")
    assert "/d.yaml:5: sink 'planes' is declared at /d.yaml:3 already" in message(tmp_path, both)
    applied = message(tmp_path, sink("to: {buffer: x}"), known=["planes", "it"])
    assert "a collection 'it' is applied already" in applied
    assert "a sink 'planes' is applied already" in message(tmp_path, EXAMPLE, known_sinks=["planes"])


def declared(**fields: Any) -> SinkDeclaration:
    return SinkDeclaration.model_validate({"name": "it", "from": "planes", "to": {"buffer": "x"}, **fields})


def collection(**fields: Any) -> Declaration:
    source = {"format": "json", "path": "/p.json"}
    return Declaration.model_validate(
        {"name": "planes", "kind": "differential", "schema": "tailnum string", "source": source, **fields}
    )


def test_the_key_is_that_of_the_collection_unless_the_sink_has_one() -> None:
    keyed = collection(key=["tailnum"])
    assert declared(mode="mirror").resolve(keyed).key == ("tailnum",)
    assert declared(mode="mirror", key=["other"]).resolve(keyed).key == ("other",)
    assert declared(mode="changes").resolve(collection()).key == ()


def test_a_mirror_without_a_key_says_what_to_do() -> None:
    with pytest.raises(UsageError) as caught:
        declared(mode="mirror").resolve(collection())
    assert "mode: changes" in caught.value.hint
    assert declared(mode="mirror", key=["tailnum"]).resolve(collection()).mode is SinkMode.MIRROR


def test_an_append_only_collection_is_not_mirrored() -> None:
    events = Declaration.model_validate({"name": "planes", "kind": "append-only", "schema": "tailnum string"})
    with pytest.raises(UsageError, match="append-only"):
        declared(mode="mirror", key=["tailnum"]).resolve(events)
    assert declared(mode="changes").resolve(events).key == ()
