"""Stores are asked first, all at once, and named where they do not answer."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from tests.support.silent_server import silent_server
from tidemark.errors import ConfigurationInvalid, Unreachable
from tidemark.iceberg.stores import check_stores, check_warehouse
from tidemark.secrets.database_uri import DatabaseUri

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

CLOSED_PORT = 9


def catalog_at(port: int) -> DatabaseUri:
    return DatabaseUri.parse(f"postgresql://me:secret@127.0.0.1:{port}/c", variable="TIDEMARK_CATALOG_URI")


def test_stores_that_do_not_answer_are_named(home: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    warehouse = (tmp_path / "file" / "warehouse").as_uri()
    settings = replace(home, warehouse=warehouse, catalog_uri=catalog_at(CLOSED_PORT))
    with pytest.raises(Unreachable) as caught:
        check_stores(settings)
    assert "the catalog at 127.0.0.1" in str(caught.value)
    assert f"the warehouse {warehouse} cannot be written" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_store_that_is_silent_is_given_up_in_time(home: Settings) -> None:
    with silent_server() as server:
        settings = replace(home, catalog_uri=catalog_at(server.port), connect_timeout_s=0.1)
        began = time.monotonic()
        with pytest.raises(Unreachable, match="catalog"):
            check_stores(settings)
    assert time.monotonic() - began < 5


def test_a_warehouse_that_is_not_there_yet_will_be_made(tmp_path: Path) -> None:
    check_warehouse((tmp_path / "not" / "yet").as_uri())


def test_read_only_folder_is_enough_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)  # as on a disk that is mounted read-only
    with pytest.raises(Unreachable, match="cannot be written"):
        check_warehouse(tmp_path.as_uri())
    check_warehouse(tmp_path.as_uri(), writes=False)


def test_object_store_is_written_to_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        return fs.LocalFileSystem(), uri.replace("s3://lake", str(tmp_path))

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    check_warehouse("s3://lake")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Unreachable, match=r"s3://lake/none cannot be written"):
        check_warehouse("s3://lake/none")
    check_warehouse("s3://lake/none", writes=False)


def test_location_of_no_known_store_is_a_setting_to_repair() -> None:
    with pytest.raises(ConfigurationInvalid, match=r"nothing can be stored at ftp://host/lake"):
        check_warehouse("ftp://host/lake")
