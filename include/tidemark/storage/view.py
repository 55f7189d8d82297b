"""What the board says of workers and of the objects that they run, for people: in milliseconds, without pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.collections.deployment import Mode
from tidemark.interval import time_text
from tidemark.settings import Settings
from tidemark.storage.board import Entry, look_once
from tidemark.storage.sharing import WORKERS, choose_holder, find_live


def read_view(settings: Settings) -> dict[str, Any]:
    """Return ``workers`` and ``objects``, each a list of entries. Raises ``Unreachable`` as ``Board.read``."""
    entries, now_ms = look_once(settings, WORKERS)
    return view_of(entries, now_ms=now_ms)


def view_of(entries: Sequence[Entry], *, now_ms: int) -> dict[str, Any]:
    """Return the view of the entries of workers at ``now_ms``, both by the clock of the database."""
    live = find_live(entries, now_ms=now_ms)
    workers = [_worker(entry, is_live=entry in live.values(), now_ms=now_ms) for entry in entries]
    objects = [_object(id_, live) for id_ in {id_ for entry in live.values() for id_ in entry.value["dataflows"]}]
    return {"workers": workers, "objects": sorted(objects, key=lambda each: str(each["name"]))}


def _worker(entry: Entry, *, is_live: bool, now_ms: int) -> dict[str, Any]:
    silent_ms = max(0, now_ms - entry.written_ms)
    ended = entry.value["ended"]
    state = "running" if is_live else f"ended: {ended}" if ended else f"silent for {silent_ms // 1000} s"
    if is_live and entry.value["mode"] != Mode.READ_WRITE:
        state = "waits: the deployment is read-only"
    return {
        "worker": int(entry.place.removeprefix(WORKERS)),
        "state": state,
        "life": entry.life,
        "process": entry.value["writer"],
        "since": time_text(entry.value["began_ms"] // 1000 * 1000),
        "objects": len(entry.value["dataflows"]) if is_live else 0,
    }


def _object(id_: str, live: Mapping[int, Entry]) -> dict[str, Any]:
    """Return what the holder of an object says of the object, and the last error that any worker tells."""
    told = {index: entry.value["dataflows"][id_] for index, entry in live.items() if id_ in entry.value["dataflows"]}
    latest = max(each["started_at"] for each in told.values())
    running = [index for index, each in told.items() if each["started_at"] == latest]
    holder = choose_holder(id_, running)
    levels = ("name", "upper", "rounds", "rows", "held", "waiting", "lag_ms", "behind_ms")
    return {
        **{level: told[holder][level] for level in levels},
        "id": id_,
        "holder": holder,
        "workers": running,
        "error": max(told.values(), key=lambda each: (bool(each["error"]), each["error_ms"]))["error"],
    }
