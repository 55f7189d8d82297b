"""Reads the state of every collection and the last report of every DAG, without a JVM, and makes a page of them."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import Clock, SystemClock
from tidemark.collections.holds import list_holds, may_be_of_sink, moment_text, read_sink_holds
from tidemark.errors import CorruptState, TidemarkError
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state_reader import ShardSummary, read_states
from tidemark.interval import duration_text, time_text
from tidemark.report import ErrorReport
from tidemark.settings import Settings

_PAGE = """<!doctype html><meta charset="utf-8"><title>Tidemark</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em }} table {{ border-collapse: collapse; margin-bottom: 2em }}
td, th {{ border-bottom: 1px solid #ccc; padding: .3em 1em; text-align: left }} .failed {{ color: #b00020 }}
</style><h1>Collections</h1>{collections}<h1>Paused and suspended</h1>{resting}
<h1>Storage workers</h1>{workers}{objects}<h1>Holds</h1>{holds}
<h1>Last reports</h1>{reports}"""

log = logging.getLogger(__name__)


def collections_status(settings: Settings, *, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return one entry per collection, in order of name; an unreadable collection has only its name and ``error``.

    Raises ``Unreachable`` if the catalog does not answer.
    """
    states = read_states(settings)
    sink_holds = _read_sink_holds(settings, states)
    now_ms = (clock or SystemClock()).now_ms()
    return [
        {"name": name, "error": ErrorReport.of(seen).to_json()}
        if isinstance(seen, CorruptState)
        else {
            "name": name,
            "kind": seen.state.layout.value,
            "upper": frontier_json(seen.state.upper),
            "since": frontier_json(seen.state.since),
            "generation": seen.state.token.generation,
            "epoch": seen.state.token.epoch,
            "rows": seen.rows,
            "staged": list(seen.staged),
            "stale": list(seen.stale),
            "holds": [
                held.to_json()
                for held in list_holds(name, seen.state, seen.oldest_ms, now_ms=now_ms, sink_holds=sink_holds)
            ],
            "error": None,
        }
        for name, seen in states.items()
    ]


def resting_objects(settings: Settings) -> dict[str, str]:
    """Return the objects that runs leave out, with since when and why; none while the catalog cannot be asked."""
    try:
        return {name: str(standing) for name, standing in deployment_of(settings).objects.read().items()}
    except TidemarkError as error:  # a deployment that stands by still shows the collections
        log.warning("what is paused or suspended is not shown: %s", error)
        return {}


def _read_sink_holds(
    settings: Settings, states: Mapping[str, ShardSummary | CorruptState]
) -> Mapping[tuple[str, str], int]:
    """Return what ``read_sink_holds`` says; nothing while the catalog cannot be read, for example as it is moved."""
    readable = (seen for seen in states.values() if not isinstance(seen, CorruptState))
    if not any(may_be_of_sink(reader) for seen in readable for reader in seen.state.holds):
        return {}
    try:
        return read_sink_holds(deployment_of(settings).registry)
    except TidemarkError:
        return {}


def last_reports(settings: Settings) -> dict[str, Any]:
    """Return the last report of every DAG whose tasks ran on this machine."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(settings.reports.glob("[!.]*.json"))
    }


def status_page(
    collections: list[dict[str, Any]],
    reports: Mapping[str, Any],
    resting: Mapping[str, str] | None = None,
    storage: Mapping[str, Any] | None = None,
) -> str:
    """Return the page; escape every value, because users choose the names and cause the messages."""
    rows = [
        [collection["name"], "failed", "", "", "", "", "", _message(collection)]
        if collection["error"]
        else [
            collection["name"], collection["kind"], f"{collection['rows']:,}", _time(collection["upper"]),
            _time(collection["since"]), f"{collection['generation']}.{collection['epoch']}",
            _count_staged(collection["staged"], collection["stale"]), "",
        ]
        for collection in collections
    ]  # fmt: skip
    holds = [
        [
            held["collection"], held["reader"], moment_text(held["since"]), _expiry(held),
            duration_text(held["age_ms"]), "overdue" if held["overdue"] else "", held.get("hint", ""),
        ]
        for collection in collections
        for held in collection.get("holds", ())
    ]  # fmt: skip
    results = [
        [dag_id, name, result["outcome"], result["inserted"], result["retracted"], _message(result)]
        for dag_id, report in reports.items()
        for name, result in report["collections"].items()
    ]  # fmt: skip
    results += [
        [dag_id, "the whole run", report["outcome"], "", "", _message(report)]
        for dag_id, report in reports.items()
        if report.get("error")
    ]
    workers = [
        [each[column] for column in ("worker", "state", "life", "process", "since", "objects")]
        for each in (storage or {}).get("workers", ())
    ]
    objects = [
        [
            each["name"], _known(each["holder"]), ", ".join(map(str, each["workers"])),
            "" if each["upper"] is None else _time(each["upper"]),
            *(_known(each[level]) for level in ("rounds", "rows", "held", "waiting")),
            *("" if each[time] is None else duration_text(each[time]) for time in ("lag_ms", "behind_ms")),
            "failed" if each["error"] else each["state"], each["error"],
        ]
        for each in (storage or {}).get("objects", ())
    ]  # fmt: skip
    return _PAGE.format(
        collections=_table(["name", "kind", "rows", "upper", "since", "token", "staged batches", "error"], rows),
        resting=_table(["name", "why"], [[name, why] for name, why in (resting or {}).items()]),
        workers=_table(["worker", "state", "life", "process", "since", "objects"], workers),
        objects=_table(
            [
                "name",
                "holder",
                "workers",
                "upper",
                "rounds",
                "rows",
                "held",
                "waiting",
                "lag",
                "behind",
                "state",
                "error",
            ],
            objects,
        )
        if objects
        else "",
        holds=_table(["collection", "reader", "first kept time", "expires", "keeps", "state", "what to do"], holds),
        reports=_table(["DAG", "collection", "outcome", "inserted", "retracted", "error"], results),
    )


def _count_staged(branches: list[str], stale: list[str]) -> str:
    """Return how many batches each deployment has staged: ``staged/GENERATION/…`` is the name of a branch."""
    counted = Counter(branch.split("/")[1] for branch in branches)
    told = [f"{count} by deployment {generation}" for generation, count in sorted(counted.items())]
    return ", ".join([*told, f"{len(stale)} stale: the next flush reconciles them"] if stale else told)


def _expiry(held: Mapping[str, Any]) -> str:
    return "never" if held["expires_at"] is None else moment_text(held["expires_at"])


def _known(value: object) -> object:
    return "" if value is None else value


def _message(result: Mapping[str, Any]) -> str:
    return str(result["error"]["message"]) if result["error"] else ""


def _time(frontier: int | str) -> str:
    if frontier == "empty":
        return "empty (sealed)"
    return time_text(int(frontier)) if frontier else "0"


def _table(titles: list[str], rows: list[list[Any]]) -> str:
    if not rows:
        return "<p>none yet</p>"
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr{_class(row)}>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _class(row: list[Any]) -> str:
    return ' class="failed"' if {"failed", "refused", "overdue"} & {str(cell) for cell in row} else ""
