"""Names of snapshots: two snapshots with one name hold the same rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tidemark.collections.sources.iceberg_state import SourceSnapshot, changes_rows, name_rows, read_state

if TYPE_CHECKING:
    from pathlib import Path


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
