"""Who does what: which workers live, and which of them leads the rounds of an object. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from tidemark.storage.board import Entry

SILENT_MS: Final = 5_000  # a worker that has written nothing for so long counts as lost
LONGER_MS: Final = 30_000  # by which a worker ends later that is left at work
WORKERS: Final = "worker/"
ROUNDS: Final = "round/"


def find_live(entries: Iterable[Entry], *, now_ms: int) -> dict[int, Entry]:
    """Return what the workers that live at ``now_ms`` say, by index; times are of the clock of the database.

    Whoever is wrong about that does no harm: what two holders commit, the ledger of the collection tells apart.
    """
    said = {int(entry.place.removeprefix(WORKERS)): entry for entry in entries if entry.place.startswith(WORKERS)}
    return {
        index: entry
        for index, entry in sorted(said.items())
        if not entry.value.get("ended") and now_ms - entry.written_ms <= SILENT_MS
    }


def outlives(worker: Entry, until_ms: int | None) -> bool:
    """Tell whether a worker says that it is at work for long after ``until_ms``; None: without end.

    One that died, and whose word is still fresh, would have ended at about the time at which the one ends that is
    started in its place: each counts from when it had loaded.
    """
    present = worker.value.get("until_ms", 0)  # one that says nothing is an older program, and is replaced
    return until_ms is not None and (present is None or present > until_ms + LONGER_MS)


def choose_holder(id_: str, live: Sequence[int]) -> int:
    """Return the worker that leads the rounds of an object: of the live ones the one whose draw is the highest.

    When a worker comes or goes, only its own objects change hands. ``live`` is not empty.
    """
    return max(live, key=lambda index: blake2b(f"{id_}/{index}".encode(), digest_size=8).digest())


def place_of(index: int) -> str:
    """Return the place of a worker on the board."""
    return f"{WORKERS}{index}"


def round_place(id_: str, part: int | None = None) -> str:
    """Return the place of the present round of an ingestion, or of what worker ``part`` wrote for the round."""
    return f"{ROUNDS}{id_}/mint" if part is None else f"{ROUNDS}{id_}/part/{part}"


def object_of(place: str) -> str | None:
    """Return the object of whose round ``place`` is; None for other places."""
    return place.split("/")[1] if place.startswith(ROUNDS) else None


def started_at_on(worker: Entry | None, id_: str) -> int | None:
    """Return the index of the command that started the dataflow that a worker says it runs; None: it does not."""
    dataflow = None if worker is None else worker.value.get("dataflows", {}).get(id_)
    return None if dataflow is None else dataflow["started_at"]
