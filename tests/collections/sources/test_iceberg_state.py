"""Names of snapshots: two snapshots with one name hold the same rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.support.homes import Home
from tests.support.object_store import ObjectStore, reachable_store
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.sources.iceberg_state import SourceSnapshot, changes_rows, name_rows, read_size, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.settings import Settings


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with reachable_store(monkeypatch) as store:
        yield store


@pytest.mark.parametrize(
    ("operation", "summary", "changes"),
    [
        ("append", {"added-data-files": "1", "changed-partition-count": "1"}, True),
        ("append", {}, True),  # whoever counts nothing tells nothing
        ("append", {"changed-partition-count": "0"}, False),
        ("overwrite", {"changed-partition-count": "0", "removed-delete-files": "1"}, True),
        ("replace", {"added-data-files": "1"}, False),
        ("append", {"tidemark.kind": "advance"}, False),
        ("append", {"tidemark.kind": "append"}, False),
        ("append", {"tidemark.kind": "append", "added-data-files": "1"}, True),
    ],
)
def test_what_changes_rows(operation: str, summary: dict[str, str], *, changes: bool) -> None:
    assert changes_rows(operation, summary) is changes


def test_a_snapshot_has_the_name_of_the_one_that_changed_rows_last() -> None:
    snapshots = {
        1: SourceSnapshot(changes_rows=True, parent=None, schema_id=0),
        2: SourceSnapshot(changes_rows=False, parent=1, schema_id=0),
        3: SourceSnapshot(changes_rows=False, parent=2, schema_id=1),
        4: SourceSnapshot(changes_rows=False, parent=9, schema_id=1),
        5: SourceSnapshot(changes_rows=False, parent=6, schema_id=1),
        6: SourceSnapshot(changes_rows=False, parent=5, schema_id=1),
    }
    names = [name_rows("u", number, snapshots.get) for number in snapshots]
    assert names == ["u@1/0", "u@1/0", "u@1/1", "u@4/1", "u@6/1", "u@5/1"]


def write_metadata(folder: Path, version: int, suffix: str = "metadata.json", **more: Any) -> None:
    (folder / "metadata").mkdir(exist_ok=True)
    metadata = {"table-uuid": "u", "current-schema-id": 7, **more}
    (folder / "metadata" / f"v{version}.{suffix}").write_text(json.dumps(metadata), encoding="utf-8")


def test_a_table_in_a_folder_is_named_by_the_newest_metadata_that_spark_finds(tmp_path: Path) -> None:
    def name() -> str | None:
        return read_state(settings_in(tmp_path / "home"), table=None, folder=str(tmp_path))

    assert name() is None
    write_metadata(tmp_path, 1)
    (tmp_path / "metadata" / "version-hint.text").write_text("1", encoding="utf-8")
    assert name() == "u@/7"
    write_metadata(tmp_path, 2, **{"current-schema-id": 8})
    assert name() == "u@/8", "the hint is written last"
    write_metadata(tmp_path, 3, "gz.metadata.json")
    assert name() is None, "a compressed one, which Python does not read"
    (tmp_path / "metadata" / "v3.gz.metadata.json").unlink()
    (tmp_path / "metadata" / "v1.metadata.json").unlink()
    assert name() is None, "Spark fails at a hint of a file that is gone"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_table_of_tidemarks_catalog_in_an_object_store_is_named_without_spark(
    home: Settings, tmp_path: Path, store: ObjectStore, scheme: str
) -> None:
    shards = Home(home, tmp_path).shards
    shards.iceberg.create_namespace("lake")
    local = shards.iceberg.create_table(("lake", "planes"), to_iceberg(parse_columns("k int"))).metadata_location
    names = [read_state(home, table="tidemark.lake.planes", folder=None)]
    with closing(sqlite3.connect(home.catalog_path)) as catalog, catalog:
        remote = f"{scheme}://lake/planes/00000.metadata.json"
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?", (remote, local))
    assert read_state(home, table="tidemark.lake.planes", folder=None) is None, "not there: Spark says so"
    store.put_content("lake", "planes/00000.metadata.json", Path(local.removeprefix("file://")).read_bytes())
    names.append(read_state(home, table="tidemark.lake.planes", folder=None))
    assert names[0] is not None
    assert names[0] == names[1]
    assert read_size(home, table="tidemark.lake.planes", folder=None) == 0


def test_a_table_in_a_folder_of_an_object_store_is_named_without_spark(tmp_path: Path, store: ObjectStore) -> None:
    def name(place: str) -> str | None:
        for path in (tmp_path / "metadata").iterdir():
            store.put_content("lake", f"t/metadata/{path.name}", path.read_bytes())
        return read_state(settings_in(tmp_path / "home"), table=None, folder=place)

    write_metadata(tmp_path, 1)
    (tmp_path / "metadata" / "version-hint.text").write_text("1", encoding="utf-8")
    assert name("s3a://lake/t") == "u@/7"
    write_metadata(tmp_path, 2, **{"current-schema-id": 8})
    assert name("s3://lake/t/") == "u@/8"
    assert name("hdfs://name/t") is None, "pyarrow would start a JVM"
    store.answers = False
    assert name("s3://lake/t") is None
