"""Which collections the events of sources are about: those that read these sources, and those that read those."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.files import order_by_inputs
from tidemark.report import Report

TRIGGERED_BY: Final = "triggered_by"  # in the details of a report: the events, in words
MOST_BYTES: Final = 60_000  # of all events in one argument: Linux takes 128 KiB
MOST_TOLD = 20  # of events, in the details of one collection
LONGEST_TOLD = 250  # characters of one event: what Airflow takes for the name of a task, too


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event of an asset that says that a source has changed."""

    asset: str  # the name
    seen: str = ""  # what is known of the event, in words

    def __str__(self) -> str:
        text = f"{self.asset}: {self.seen}" if self.seen else self.asset
        return text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 1]}…"


def watch_asset(name: str) -> str:
    """Return the name of the asset whose events a watcher of the collection's files makes.

    The colon keeps it apart from the asset of any collection, which is ``tidemark_`` and a name of letters.
    """
    return f"tidemark_source:{name}"


def event_assets(declaration: Declaration) -> tuple[str, ...]:
    """Return the names of all assets whose events say that the source of a collection has changed."""
    watched = (watch_asset(declaration.name),) if declaration.watched_paths else ()
    return (*(asset.name for asset in declaration.assets), *watched)


def find_concerned(
    declarations: Mapping[str, Declaration], events: Iterable[SourceEvent]
) -> dict[str, tuple[SourceEvent, ...]]:
    """Return the differential collections that the events are about, inputs first, each with its events.

    These are the collections whose source names the asset of an event, or has its files watched by it; and all that
    read these, directly or through others.
    """
    by_asset: dict[str, list[SourceEvent]] = {}
    for event in dict.fromkeys(events):
        by_asset.setdefault(event.asset, []).append(event)
    found: dict[str, tuple[SourceEvent, ...]] = {}
    for name in order_by_inputs(declarations):
        declaration = declarations[name]
        if declaration.kind is not Kind.DIFFERENTIAL:
            continue
        own = [event for asset in event_assets(declaration) for event in by_asset.get(asset, ())]
        inherited = [event for read in declaration.inputs for event in found.get(read, ())]
        if concerning := tuple(dict.fromkeys([*own, *inherited])):
            found[name] = concerning
    return found


def tell_events(report: Report, concerned: Mapping[str, Sequence[SourceEvent]]) -> Report:
    """Return the report with the events that each collection was reconciled for in its details."""
    collections = {
        name: replace(found, details={**found.details, TRIGGERED_BY: [str(event) for event in events[:MOST_TOLD]]})
        if (events := concerned.get(name))
        else found
        for name, found in report.collections.items()
    }
    return replace(report, collections=collections)


def write_events(events: Iterable[SourceEvent]) -> str:
    """Return the events as an argument of an application, or the first of them that fit into one."""
    fitting, size = list[dict[str, str]](), 0
    for fields in map(asdict, events):
        size += len(json.dumps(fields)) + 2
        if size > MOST_BYTES:
            break
        fitting.append(fields)
    return json.dumps(fitting)


def parse_events(text: str) -> list[SourceEvent]:
    """Return the events in an argument. Raises ``ValueError``, or ``TypeError``, if there are none in it."""
    return [SourceEvent(**fields) for fields in json.loads(text)]
