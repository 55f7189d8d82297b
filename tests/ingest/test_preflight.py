"""Stores and brokers are asked first, all at once, and named where they do not answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.silent_server import silent_server
from tidemark.errors import Unreachable
from tidemark.ingest.preflight import check_at_start, check_named
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


def test_stores_are_checked_too(home: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match="cannot be written"):
        check_at_start(replace(home, warehouse=(tmp_path / "file").as_uri()))
