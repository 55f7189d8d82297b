"""Stores and brokers are asked first, all at once, and named where they do not answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.silent_server import silent_server
from tidemark.errors import Unreachable
from tidemark.ingest.preflight import check_at_start, check_named, check_warehouse
from tidemark.secrets.database_uri import DatabaseUri
from tools.kafka_broker import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


@pytest.mark.slow  # waits for brokers that are not there
def test_all_are_asked_at_once(home: Settings, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with silent_server() as server:
        connections = {
            "TIDEMARK_BUFFER_DOWN": f"kafka://127.0.0.1:{port}/t",
            "TIDEMARK_BUFFER_SILENT": f"kafka://127.0.0.1:{server.port}/t",
            "TIDEMARK_BUFFER_MISSING": f"file://{tmp_path}/none",
            "TIDEMARK_BUFFER_WRONG": "rabbit://x",
        }
        settings = replace(home, connections=connections, connect_timeout_s=1.5)
        began = time.monotonic()
        found = check_at_start(settings)
        assert time.monotonic() - began < 4
    assert sorted(found) == ["DOWN", "SILENT"], "what is wrong with others is their collections' own"
    assert check_named(["missing"], settings) == {}


def test_stores_that_do_not_answer_are_named(home: Settings, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "file").touch()
    warehouse = (tmp_path / "file" / "warehouse").as_uri()
    uri = DatabaseUri.parse(f"postgresql://me:secret@127.0.0.1:{port}/c", variable="a test")
    settings = replace(home, warehouse=warehouse, catalog_uri=uri)
    with pytest.raises(Unreachable) as caught:
        check_at_start(settings)
    assert "the catalog at 127.0.0.1" in str(caught.value)
    assert f"the warehouse {warehouse} cannot be written" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_warehouse_that_is_not_there_yet_will_be_made(tmp_path: Path) -> None:
    check_warehouse((tmp_path / "not" / "yet").as_uri())
