"""What the board says of workers and of the objects that they run, for people: in milliseconds, without pyiceberg."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemark.clock import Clock
from tidemark.collections.deployment import Mode, StatusKind
from tidemark.collections.objects.standing import Standing
from tidemark.errors import TidemarkError
from tidemark.interval import time_text
from tidemark.settings import Settings
from tidemark.storage.board import Entry, look_once
from tidemark.storage.sharing import WORKERS, choose_holder, find_live

log = logging.getLogger(__name__)

LEVELS: Final = ("upper", "rounds", "rows", "held", "waiting", "lag_ms", "behind_ms")  # of what a worker runs
RUNNING: Final = "running"
WAITING: Final = "waits: the deployment is read-only"


def read_view(settings: Settings) -> dict[str, Any]:
    """Return ``workers`` and ``objects``, each a list of entries, and why objects are ``stalled``, by id.

    Raises ``Unreachable`` as ``Board.read``.
    """
    entries, now_ms = look_once(settings, WORKERS)
    return view_of(entries, now_ms=now_ms)


def read_whole_view(settings: Settings, *, clock: Clock) -> dict[str, Any]:
    """Return the view with all objects that declare ``every``, whether a worker runs them or not; raise as before."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - it loads more than the board
    from tidemark.storage.definitions import object_id  # noqa: PLC0415

    view = read_view(settings)
    try:
        deployment = deployment_of(settings)
        applied, known, standings = deployment.registry.read(), deployment.registry.objects(), deployment.objects.read()
    except TidemarkError as error:  # a deployment that stands by still shows the workers
        log.warning("what declares `every`, and no worker runs, is not shown: %s", error)
        return with_declared(view, {}, {}, now_ms=clock.now_ms())
    paced = {name: object_id(known[name]) if name in known else None for name in applied.paced}
    return with_declared(view, paced, standings, now_ms=clock.now_ms())


def with_declared(
    view: Mapping[str, Any], paced: Mapping[str, str | None], standings: Mapping[str, Standing], *, now_ms: int
) -> dict[str, Any]:
    """Return the view with the objects ``paced``, by name, that no worker runs, and with the ``state`` of each."""
    told = {each["name"]: each for each in view["objects"]}
    states = {each["state"] for each in view["workers"]}
    unrun = _why_unrun(states)
    nothing: dict[str, Any] = {**dict.fromkeys((*LEVELS, "id", "holder")), "workers": [], "error": ""}
    objects = []
    for name in sorted({*paced, *told}):
        state, standing = RUNNING if name in told and RUNNING in states else unrun, standings.get(name)
        if name not in told and (why := view["stalled"].get(paced[name])):
            state = f"not run: {why}"
        if standing is not None and standing.rests_at(now_ms):
            state = str(standing)
        objects.append({**nothing, "name": name, **told.get(name, {}), "state": state})
    return {"workers": view["workers"], "objects": objects}


def _why_unrun(states: set[str]) -> str:
    if RUNNING in states:
        return "not run yet"
    return "not run: the deployment is read-only" if WAITING in states else "not run: no worker"


def view_of(entries: Sequence[Entry], *, now_ms: int) -> dict[str, Any]:
    """Return the view of the entries of workers at ``now_ms``, both by the clock of the database."""
    live = find_live(entries, now_ms=now_ms)
    workers = [_worker(entry, is_live=entry in live.values(), now_ms=now_ms) for entry in entries]
    objects = [_object(id_, live) for id_ in {id_ for entry in live.values() for id_ in entry.value["dataflows"]}]
    stalled = {id_: why for entry in live.values() for id_, why in entry.value.get("stalled", {}).items()}
    return {"workers": workers, "objects": sorted(objects, key=lambda each: str(each["name"])), "stalled": stalled}


def _worker(entry: Entry, *, is_live: bool, now_ms: int) -> dict[str, Any]:
    silent_ms = max(0, now_ms - entry.written_ms)
    ended = entry.value["ended"]
    state = RUNNING if is_live else f"ended: {ended}" if ended else f"silent for {silent_ms // 1000} s"
    if is_live and entry.value["mode"] != Mode.READ_WRITE:
        state = WAITING
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
    return {
        **{level: told[holder].get(level) for level in ("name", *LEVELS)},
        "id": id_,
        "holder": holder,
        "workers": [holder] if id_.startswith(f"{StatusKind.SINK}-") else running,  # one alone carries a sink
        "error": max(told.values(), key=lambda each: (bool(each["error"]), each["error_ms"]))["error"],
    }
