"""What the runs of a deployment that stands by came to, object by object: whether it can take over is judged by that.

A deployment that is newer than the leading one runs all that the leader runs, and stages. It must change nothing that
the leader owns, so that it records neither statuses nor statistics: what it finds goes into a table of its own, beside
Iceberg's in the catalog's database, which no other deployment reads. A lost finding comes again with the next run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tidemark import __version__
from tidemark.collections.deployment import Applied, CatalogObject, Deployment
from tidemark.errors import Unreachable
from tidemark.frontier import frontier_json
from tidemark.iceberg.leases.statements import CatalogStatements
from tidemark.report import CollectionReport, Outcome
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

# The operations of a deployment that stands by which tell whether it could do the leader's work.
TELLING: Final = frozenset({"reconcile", "ingest"})

_TABLE = """
CREATE TABLE IF NOT EXISTS tidemark_findings (
    generation BIGINT NOT NULL, object TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (generation, object)
)
"""
_PUT = (
    "INSERT INTO tidemark_findings (generation, object, value) VALUES ({0}, {0}, {0}) "
    "ON CONFLICT (generation, object) DO UPDATE SET value = excluded.value"
)
_READ = "SELECT object, value FROM tidemark_findings WHERE generation = {0}"
_FORGET = "DELETE FROM tidemark_findings WHERE generation = {0} AND object = {0}"
_PROMOTION = ""  # in the place of an object: its name is never empty
_READ_NEWER = "SELECT generation, value FROM tidemark_findings WHERE generation > {0} AND object <> ''"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the last run over one object came to. Times are ms since the Unix epoch.

    ``object_id`` and ``definition`` tell whether it is about the object as it is applied now. ``upper`` is that of the
    collection as the run saw it; ``well_since_ms`` is the first of the runs that all went well, None after a failure,
    and never later than ``found_ms``.
    """

    object_id: int
    definition: str
    program: str  # the version that found it
    error: str = ""
    hint: str = ""
    upper: int | str | None = None
    found_ms: int
    well_since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedPromotion:
    """A promotion that has begun: what goes on with it after a death puts this on record."""

    who: str
    why: str


def definition_of(applied: Applied, name: str) -> str:
    """Return a text that changes with what is applied under a name."""
    return hashlib.sha256(applied.texts.get(name, "").encode()).hexdigest()[:32]


def note_findings(
    deployment: Deployment, operation: str, ran: Iterable[tuple[str, CatalogObject, CollectionReport]], *, now_ms: int
) -> None:
    """Store what a run came to. Raises ``Unreachable`` if the catalog's database cannot be written."""
    told = [each for each in ran if operation in TELLING and each[2].outcome is not Outcome.SKIPPED]
    if not told:
        return
    applied, before = deployment.registry.read(), read_findings(deployment.settings)
    found = {
        name: _find(known, result, definition_of(applied, name), before.get(name), now_ms=now_ms)
        for name, known, result in told
    }
    _execute(deployment.settings, _PUT, *((name, json.dumps(asdict(each))) for name, each in found.items()))


def read_findings(settings: Settings) -> Mapping[str, Finding]:
    """Return what the runs of this deployment found last, by object. Raises ``Unreachable``.

    What another version of the program found under this number says nothing of this one, and is left out.
    """
    return {
        name: Finding(**value)
        for name, value in _read(settings).items()
        if name != _PROMOTION and value.get("program") == __version__
    }


def forget_findings(settings: Settings, generation: int, names: Iterable[str]) -> None:
    """Forget what the runs of a deployment came to over these objects, as what they staged is discarded.

    The next runs find it anew. Raises ``Unreachable``.
    """
    _execute(replace(settings, generation=generation), _FORGET, *((name,) for name in names))


def note_promotion(settings: Settings, promotion: NotedPromotion) -> None:
    """Store that a promotion of this deployment begins, before the leader is fenced. Raises ``Unreachable``."""
    _execute(settings, _PUT, (_PROMOTION, json.dumps(asdict(promotion))))


def read_promotion(settings: Settings) -> NotedPromotion | None:
    """Return the promotion of this deployment that has begun, and not come to its end. Raises ``Unreachable``."""
    found = _read(settings).get(_PROMOTION)
    return None if found is None else NotedPromotion(**found)


def forget_promotion(settings: Settings) -> None:
    """Store that the promotion has come to its end. Raises ``Unreachable``."""
    _execute(settings, _FORGET, (_PROMOTION,))


def _read(settings: Settings) -> dict[str, dict[str, Any]]:
    with closing(_statements(settings)) as statements:
        return {name: json.loads(value) for name, value in statements.query(_READ, settings.generation)}


def _execute(settings: Settings, statement: str, *rows: tuple[str, ...]) -> None:
    """Execute the statement for each row of values, over one connection."""
    with closing(_statements(settings)) as statements:
        try:
            for values in rows:
                statements.execute(statement, settings.generation, *values)
        except statements.failures as error:
            raise Unreachable(
                f"what deployment {settings.generation} found cannot be stored: {first_line(error)}",
                hint="check TIDEMARK_CATALOG_URI, and whether its user may make tables",
            ) from error


def list_standing_by(settings: Settings, *, leader: int) -> Mapping[int, int]:
    """Return the deployments newer than the leading one that have run, each with the time of its last run in ms.

    Raises ``Unreachable``.
    """
    with closing(_statements(settings)) as statements:
        rows = statements.query(_READ_NEWER, leader)
    found: dict[int, int] = {}
    for generation, value in rows:
        found[generation] = max(found.get(generation, 0), json.loads(value)["found_ms"])
    return dict(sorted(found.items()))


def _find(
    known: CatalogObject, result: CollectionReport, definition: str, before: Finding | None, *, now_ms: int
) -> Finding:
    error = result.error
    same = before is not None and (before.object_id, before.definition) == (known.id, definition)
    well_since_ms = before.well_since_ms if same and before is not None else None
    if well_since_ms is None or well_since_ms > now_ms:  # later than now by another clock
        well_since_ms = now_ms
    return Finding(
        object_id=known.id,
        definition=definition,
        program=__version__,
        error=f"{error.kind}: {error.message}" if error else "",
        hint=error.hint if error else "",
        upper=None if result.lower is None else frontier_json(result.lower),
        found_ms=now_ms,
        well_since_ms=None if error else well_since_ms,
    )


def _statements(settings: Settings) -> CatalogStatements:
    return CatalogStatements(settings, table=_TABLE, application="tidemark-findings")
