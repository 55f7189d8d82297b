"""Sources that say when they have changed: what is declared, what is stored of it, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.collections.declarations.test_collection import message, one
from tidemark.collections.declarations.collection import NOTHING_ABOUT_ROWS, Declaration

if TYPE_CHECKING:
    from pathlib import Path

FILES = "format: csv, path: in, schema: a int"
HEAD = "version: 1\ncollections:\n  it:\n    kind: {}\n"


def declared(path: Path, source: str) -> Declaration:
    return one(path, f"kind: differential\nsource: {source}")


def refused(path: Path, source: str, *, kind: str = "differential", more: str = "") -> str:
    return message(path, f"{HEAD.format(kind)}    source: {source}\n{more}")


def test_a_source_names_its_asset_as_airflow_does(tmp_path: Path) -> None:
    by_text = declared(tmp_path, f"{{{FILES}, asset: orders_files}}")
    assert [(asset.name, asset.uri) for asset in by_text.assets] == [("orders_files", "orders_files")]
    by_both = declared(tmp_path, "{format: jdbc, connection: shop, dbtable: t, asset: {name: n, uri: s3://b/x}}")
    assert [(asset.name, asset.uri) for asset in by_both.assets] == [("n", "s3://b/x")]
    for declaration in (by_text, by_both):
        assert Declaration.model_validate(declaration.to_json()) == declaration


def test_each_input_of_a_query_may_have_events_of_its_own(tmp_path: Path) -> None:
    inputs = f"f: {{{FILES}, watch: 1m}}, g: {{format: json, path: /g, watch: 20s, asset: z}}, h: {{{FILES}, asset: y}}"
    declaration = declared(tmp_path, f"{{inputs: {{{inputs}}}, sql: SELECT 1}}")
    assert [asset.name for asset in declaration.assets] == ["y", "z"]
    assert declaration.watched_paths == ("/g", str(tmp_path / "in"))
    assert declaration.watch_ms == 20_000


def test_nothing_of_events_is_stored_without_them_and_they_decide_nothing_about_rows(tmp_path: Path) -> None:
    plain, with_events = (declared(tmp_path, f"{{{FILES}{more}}}") for more in ("", ", watch: 5s, asset: x"))
    assert not {"asset", "watch"} & plain.to_json()["source"].keys(), "an older program reads it"
    assert plain.model_dump_json(exclude=NOTHING_ABOUT_ROWS) == with_events.model_dump_json(exclude=NOTHING_ABOUT_ROWS)
    assert plain.watch_ms is None


@pytest.mark.parametrize(
    ("asset", "said"),
    [
        ("''", "1 to 1500 ASCII characters"),
        ("ä", "1 to 1500 ASCII characters"),
        ("airflow://x", "Airflow keeps"),
        ("'AIRFLOW:x'", "Airflow keeps"),
        ("{name: x, uri: 'kafka://[::1'}", "is no URI"),
        ('"a\\nb"', "without control characters"),
        ("tidemark_changed", "an event of Tidemark's own"),
        ("{name: x, uri: 'x-tidemark://changed'}", "an event of Tidemark's own"),
        ("s3://me:word@bucket/x", "must not hold a user or a password"),
        ("{name: x}", "field 'source.asset.uri': is missing"),
        ("{name: x, uri: y, group: z}", "unknown field 'group' in 'source.asset'"),
        ("7", "must be a mapping of fields, got 7"),
    ],
)
def test_what_is_no_asset_of_a_producer_is_refused(tmp_path: Path, asset: str, said: str) -> None:
    text = refused(tmp_path, f"{{{FILES}, asset: {asset}}}")
    assert said in text
    assert "word" not in text.replace("password", "")


@pytest.mark.parametrize("watch", ["500ms", "0s", "2h", "true", "always"])
def test_a_watcher_looks_every_second_to_every_hour(tmp_path: Path, watch: str) -> None:
    assert "field 'source.watch': a" in refused(tmp_path, f"{{{FILES}, watch: {watch}}}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{format: iceberg, table: c.s.t, watch: 5s}", "`watch` looks at files and folders: name an `asset`"),
        ("{format: jdbc, connection: c, dbtable: t, watch: 5s}", "`watch` looks at files and folders: name an `asset`"),
        (f"{{inputs: {{f: {{{FILES}}}}}, sql: SELECT 1, watch: 5s}}", "`watch` belongs to the input that changes"),
        ("{collection: other, asset: x}", "`asset` is not needed: what reads a collection is reconciled with it"),
        (f"{{{FILES}, watch: 5s, where: 'a > {{start}}'}}", "`source.watch` is of no use: a run that events start has"),
        ("{format: csv, path: 's3a://b/{2024/01,c}/*', watch: 5s}", "a watcher reads no pattern"),
        ("{format: csv, path: 's3a://b/a{b,c{x,y}}', watch: 5s}", "a watcher reads no pattern"),
        (f"{{{FILES}, wach: 5s}}", "unknown field 'wach' in 'source'; did you mean 'watch'?"),
    ],
)
def test_events_where_they_make_no_sense_are_refused_with_the_way_out(tmp_path: Path, source: str, said: str) -> None:
    scope = "    key: [a]\n    scope: {column: a, every: day}\n"
    assert said in refused(tmp_path, source, more=scope)


def test_events_are_for_differential_collections(tmp_path: Path) -> None:
    text = refused(tmp_path, f"{{{FILES}, asset: x}}", kind="append-only")
    assert "`source.asset` is of no use: events start `reconcile_collections`" in text
    text = refused(tmp_path, "{buffer: b, asset: x}", kind="append-only", more="    schema: a int\n")
    assert "`asset` is for sources of differential collections" in text
    text = refused(tmp_path, "{buffer: b, watch: 5s}", kind="latest", more="    schema: a int\n    key: [a]\n")
    assert "`watch` is for sources of differential collections" in text
