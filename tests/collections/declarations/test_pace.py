"""How often storage workers run an object, as ingestions and sinks declare it."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import ConfigurationInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.declarations.files import Declarations


def load(folder: Path, source: str, sink: str = "") -> Declarations:
    path = folder / "d.yaml"
    text = f"""\
        version: 1
        collections:
          it: {{kind: append-only, schema: 'a int', source: {{buffer: b{source}}}}}
        sinks:
          out: {{from: it, mode: changes, to: {{path: out}}{sink}}}
        """
    path.write_text(dedent(text), encoding="utf-8")
    return load_declarations([path])


def source_of(declared: Declarations) -> BufferSource:
    source = declared.by_name["it"].source
    assert isinstance(source, BufferSource)
    return source


@pytest.mark.parametrize(("every", "ms"), [("1s", 1_000), ("60m", 3_600_000), ("3600s", 3_600_000), ("1h", 3_600_000)])
def test_a_pace_is_a_duration_up_to_an_hour(tmp_path: Path, every: str, ms: int) -> None:
    declared = load(tmp_path, f", every: {every}, most_entries: 7", f", every: {every}")
    assert (source_of(declared).every_ms, source_of(declared).most_entries) == (ms, 7)
    assert declared.sinks["out"].every_ms == ms
    assert Declaration.model_validate(declared.by_name["it"].to_json()) == declared.by_name["it"]
    assert SinkDeclaration.model_validate(declared.sinks["out"].to_json()) == declared.sinks["out"]


def test_without_a_pace_scheduled_dags_alone_run_an_object(tmp_path: Path) -> None:
    declared = load(tmp_path, "")
    assert (source_of(declared).every_ms, source_of(declared).most_entries) == (None, 50_000)
    assert declared.sinks["out"].every_ms is None


def test_what_was_stored_before_there_was_a_pace_reads_as_none(tmp_path: Path) -> None:
    declared = load(tmp_path, "")
    stored = declared.by_name["it"].to_json()
    del stored["source"]["most_entries"]
    assert Declaration.model_validate(stored) == declared.by_name["it"]


@pytest.mark.parametrize(
    ("source", "sink", "told"),
    [
        (", every: 5", "", "/d.yaml:3: collection 'it', field 'source.every': a duration is a whole number above 0"),
        (", every: 0s", "", "its unit, s, m, h or d, as in `5s`, got '0s'"),
        (", every: 500ms", "", "got '500ms'"),
        (", every: 2h", "", "run an object every 1s to 1h, got '2h': leave `every` out"),
        (", every: 1s, most_entries: 0", "", "'source.most_entries': input should be greater than or equal to 1"),
        (", every: 1s, most_entries: 1.5", "", "field 'source.most_entries'"),
        (", every: 1s, most_entries: yes", "", "field 'source.most_entries'"),
        (", most_entries: 9", "", "`most_entries` bounds a round of a storage worker"),
        (", evry: 5s", "", "unknown field 'evry' in 'source'; did you mean 'every'?"),
        ("", ", every: 61m", "/d.yaml:5: sink 'out', field 'every': storage workers run an object every 1s to 1h"),
        ("", ", every: true", "sink 'out', field 'every': a duration is a whole number above 0"),
        ("", ", every: 5s, most_entries: 5", "unknown field 'most_entries'"),
    ],
)
def test_what_cannot_be_a_pace_is_told_with_its_place(tmp_path: Path, source: str, sink: str, told: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        load(tmp_path, source, sink)
    assert told in str(caught.value).replace(str(tmp_path), "")


def test_a_collection_that_reads_no_buffer_has_no_pace(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text(
        "version: 1\ncollections:\n  it: {kind: differential, source: {format: csv, path: x, schema: 'a int', "
        "every: 5s}}\n"
    )
    with pytest.raises(ConfigurationInvalid, match="unknown field 'every' in 'source'"):
        load_declarations([path])
