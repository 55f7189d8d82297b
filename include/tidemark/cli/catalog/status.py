"""`tidemark catalog status` and `diff`: the contents of the catalog's two back ends, even if one is damaged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.cli.catalog.items import TITLES, load_catalog
from tidemark.cli.console import print_json, print_line, print_table
from tidemark.cli.options import AsJson
from tidemark.errors import CorruptState, IncompatibleDataVersion, NotPossible, NotWritable, Unreachable
from tidemark.exit_codes import ExitCode
from tidemark.interval import time_text
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.catalog.back_end import Head
    from tidemark.catalog.items.data_versions import DataMigration
    from tidemark.catalog.opening.catalog import Catalog
    from tidemark.catalog.opening.side_contents import SideContents
    from tidemark.catalog.opening.truth import TruthHead

SHOWN = 50  # lines for people, unless they say how many


def status(*, as_json: AsJson = False) -> int:
    """Show which back end is the truth, both epochs, who leads, who is at work, and the number of items of each kind.

    At work is who holds a lease. A live one is renewed every few seconds; one that is not renewed for its length (by
    the clock of the catalog's database) is of a process that is stopped, dead or cut off.

    Works while one of the back ends does not answer; what is then not known is shown as such, and the exit code is 69.
    What is there and cannot be read is told in words, with what to do.
    """
    from tidemark.catalog.opening.truth import persist_loss  # noqa: PLC0415

    catalog = load_catalog()
    stash = catalog.ends.stash.head()
    unreachable, notes = "", []
    persist: Head | None = None
    try:
        persist = catalog.ends.persist.head()
    except Unreachable as error:
        unreachable = str(error)
    except CorruptState as error:
        notes.append(_with_hint(error))
    if persist is not None and (loss := persist_loss(persist, tombstone=stash.tombstone)) is not None:
        notes.append(_with_hint(loss))
    truth = catalog.truth() if persist is not None or not stash.tombstone else None
    notes += format_notes({"stash": stash, **({"persist": persist} if persist else {})})
    counts, damage = count_items(catalog, truth) if truth is not None else ({}, [])
    notes += [note for note in damage if note not in notes]
    answer = {
        "truth": "persist" if stash.tombstone else "stash",
        "tombstone": stash.tombstone,
        "stash_epoch": stash.epoch,
        "persist_epoch": persist.epoch if persist else None,
        "generation": _generation(truth),
        "leader": f"epoch {truth.epoch} of generation {_generation(truth)}" if truth and truth.is_led else None,
        "counts": counts,
    }
    leases = [] if unreachable else _leases()
    if as_json:
        more = {"leases": leases, "unreachable": unreachable, "notes": notes}
        print_json({**answer, **{name: value for name, value in more.items() if value}})
    else:
        _print_status(answer, notes, stash, persist)
        _print_leases(leases)
        if unreachable:
            print_line(f"the persist catalog does not answer: {unreachable}")
    return ExitCode.UNREACHABLE if unreachable else ExitCode.OK


def diff(*, as_json: AsJson = False) -> None:
    """Compare the items of both back ends: what a migration or rollback would have to write, in full."""
    from tidemark.catalog.back_end import OpenMode  # noqa: PLC0415
    from tidemark.catalog.items.item import Change  # noqa: PLC0415
    from tidemark.catalog.opening.side_contents import SideContents  # noqa: PLC0415

    catalog = load_catalog()
    sides, notes = [], []
    truth = catalog.truth().name
    for end in (catalog.ends.stash, catalog.ends.persist):
        head = end.head()
        if not head.is_initialized:
            raise NotWritable.uninitialized(TITLES[end.name])
        generation = head.deployment_generation(TITLES[end.name])
        with end.open(OpenMode.READ_ONLY, generation=generation, clock=catalog.ends.clock) as handle:
            sides.append(SideContents.of(handle).carried())
            notes += [] if handle.fence_damage is None else [_with_hint(handle.fence_damage)]
    stash, persist = sides
    changes = stash.changes_to(persist)
    inconsistent = {
        "stash": stash.count_inconsistent(changes),
        "persist": persist.count_inconsistent([Change(item, -diff) for item, diff in changes]),
    }
    for name, side in (("stash", stash), ("persist", persist)):
        notes += _damage_notes(name, side, inconsistent[name], is_truth=name == truth)
    if as_json:
        rows = [{"only_in": _only_in(change.diff), **change.item._asdict()} for change in changes]
        digests = {"stash_digest": stash.digest(), "persist_digest": persist.digest()}
        noted = {"notes": notes} if notes else {}
        print_json({"equal": not rows, **digests, "inconsistent": inconsistent, **noted, "items": rows})
        return
    for note in notes:
        print_line(note)
    if not changes:
        print_line("both sides hold the same: nothing to copy")
        return
    print_table(
        ["only in", "kind", "key", "value"], [(_only_in(change.diff), *change.item) for change in changes[:SHOWN]]
    )
    if len(changes) > SHOWN:
        print_line(f"… and {len(changes) - SHOWN} more; --json shows all")


def format_notes(heads: Mapping[str, Head], migrations: Sequence[DataMigration] | None = None) -> list[str]:
    """Return a note on every side whose items have another data version than this program's, with what to do.

    ``heads`` are by the names of the sides; ``migrations`` are the known ones, None: this program's.
    """
    from tidemark.catalog.items.data_versions import MIGRATIONS, check_data_version, written_version  # noqa: PLC0415
    from tidemark.catalog.items.kinds import DATA_VERSION_KEY  # noqa: PLC0415

    known, notes = MIGRATIONS if migrations is None else migrations, []
    for name, head in heads.items():
        stored = head.config.get(DATA_VERSION_KEY)
        if stored is None:
            continue
        try:
            if check_data_version(stored, where=TITLES[name], migrations=known):
                notes.append(
                    f"{TITLES[name]} has data version {stored}, this program works with {written_version(known)}: "
                    "`tidemark catalog open` brings it up to date"
                )
        except IncompatibleDataVersion as error:
            notes.append(_with_hint(error))
    return notes


def count_items(catalog: Catalog, truth: TruthHead) -> tuple[dict[str, int], list[str]]:
    """Return the number of the truth's items by kind, whoever leads, and notes on damaged items or a damaged fence.

    Items of an older data version are counted in a copy that is brought up to date; items of an unknown data version
    are not counted.
    """
    from tidemark.catalog.back_end import OpenMode  # noqa: PLC0415
    from tidemark.catalog.opening.side_contents import SideContents  # noqa: PLC0415

    if not truth.is_initialized:
        return {}, []
    end = catalog.ends.persist if truth.tombstone else catalog.ends.stash
    for mode in (OpenMode.READ_ONLY, OpenMode.SAVEPOINT):
        try:
            with end.open(mode, generation=truth.deployment_generation, clock=catalog.ends.clock) as handle:
                side, fence_damage = SideContents.of(handle), handle.fence_damage
        except NotWritable:
            continue
        except NotPossible as error:
            return {}, [_with_hint(error)]
        notes = _damage_notes(end.name, side, side.count_inconsistent([]), is_truth=True)
        if fence_damage is not None:
            notes.append(f"nobody can join: {_with_hint(fence_damage)}")
        return side.counts(), notes
    return {}, []


def _damage_notes(name: str, side: SideContents, count: int, *, is_truth: bool) -> list[str]:
    """Return notes on a damaged side: the truth is refused until it is repaired, the other side will be replaced.

    ``count`` is the number of its inconsistent rows; there may be damage without such rows.
    """
    if is_truth and side.damage is not None:
        return [f"{TITLES[name]}, which is the truth, is damaged and refused: {_with_hint(side.damage)}"]
    if count and is_truth:
        return [f"{count:,} rows of {TITLES[name]}, which is the truth, cannot be read: restore it"]
    if count:
        return [f"{count:,} rows of {TITLES[name]} say nothing consistent: a copy to it replaces all of them"]
    return [] if side.damage is None else [f"{side.damage}: a copy to {TITLES[name]} replaces all of it"]


def _print_status(answer: Mapping[str, Any], notes: Sequence[str], stash: Head, persist: Head | None) -> None:
    for name, value in answer.items():
        if name != "counts":
            print_line(f"{name.replace('_', ' ')}: {_value_text(name, value)}")
    if answer["leader"] is None:
        print_line(_why_nobody_leads(stash, persist))
    for note in notes:
        print_line(note)
    print_table(["kind", "items"], list(answer["counts"].items()))


def _print_leases(leases: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            lease["operation"],
            ", ".join(lease["collections"]),
            lease["generation"],
            lease["writer"],
            time_text(lease["since"] // 1000 * 1000),
            f"{lease['renewed_s_ago']:.0f} s ago" + (" (ran out)" if lease["renewed_s_ago"] > lease["lease_s"] else ""),
        )
        for lease in leases
    ]
    if rows:
        print_table(["at work", "on", "generation", "writer", "since", "renewed"], rows)


def _leases() -> list[dict[str, Any]]:
    """Return who is at work, the longest first; nobody if the database of the leases does not answer."""
    from tidemark.iceberg.leases.table import read_leases  # noqa: PLC0415

    try:
        leases, now_ms = read_leases(Settings.load(os.environ))
    except Unreachable:
        return []
    return [lease.to_json(now_ms=now_ms) for lease in leases]


def _value_text(name: str, value: object) -> str:
    if name == "tombstone":
        return "unset" if value is None else str(value).lower()
    return "-" if value is None else str(value)


def _with_hint(error: NotPossible) -> str:
    return f"{error}: {error.hint}" if error.hint else str(error)


def _why_nobody_leads(stash: Head, persist: Head | None) -> str:
    if stash.tombstone and (persist is None or not persist.is_initialized):
        return "nobody is known to lead: the persist catalog, which is the truth, is not there or cannot be read"
    if stash.epoch is None and persist is not None and persist.epoch is not None:
        return (
            "nobody leads: there is a persist side, and this stash was never opened: check TIDEMARK_STASH_URI; "
            "only if the stash is lost: tidemark catalog open"
        )
    return "nobody leads: an open is under way, or died, or there was none yet (tidemark catalog open)"


def _generation(truth: TruthHead | None) -> int | None:
    return truth.deployment_generation if truth is not None and truth.is_initialized else None


def _only_in(diff: int) -> str:
    return "persist" if diff > 0 else "stash"
