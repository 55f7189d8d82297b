"""Changes of the collection `events`, by a file buffer that is ingested at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.homes import Home


def change(home: Home, *, put: dict[int, str | None] | None = None, delete: tuple[int, ...] = ()) -> None:
    """Commit rows by id, and retractions, in one ingest."""
    home.clock.step(1_000)
    for id_, name in (put or {}).items():
        home.send(0, json.dumps({"id": id_, "name": name}).encode())
    for id_ in delete:
        home.send(0, json.dumps({"id": id_, "op": "d"}).encode())
    report = home.ingest()
    assert report.error is None, report.error
