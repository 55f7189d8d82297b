"""The dataflow of an ingestion: in rounds, all workers read, decode and write their shares, and one publishes them.

The holder of the object leads a round: it mints what the round takes, shares that out on the board, writes its own
share, waits for the parts of the others, and appends all parts in one commit. A part that does not come is left out:
its numbers are in no ledger, so that the next round shares them out again. So a worker may be lost at any time, and two
workers may take themselves for the holder: the ledger of the collection lets each number in once.

Source: reference, collections_catalog_storage §5.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.isolation import NeedsSpark, skipped
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import FencedByEpoch, InputsGone, RangeOverlap, StaleState, TidemarkError
from tidemark.exit_codes import PASSING
from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import check_buffer_source
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.parts import (
    Engine,
    Held,
    Ingesting,
    Minted,
    Part,
    RowMemory,
    Share,
    append,
    cut_to_held,
    find_due,
    holds_rows,
    mint,
    open_ingesting,
    share_in_turn,
    share_out,
    write_part,
)
from tidemark.ingest.persist.persist import Engine as PersistEngine
from tidemark.ingest.persist.persist import persist
from tidemark.ingest.publish import name_attempt
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, Outcome
from tidemark.storage.commands import CreateIngestionDataflow
from tidemark.storage.dataflows.dataflow import HELD, LOOK_S, REST_S, UNDELIVERED, News, Surroundings
from tidemark.storage.dataflows.rounds import Rounds
from tidemark.storage.dataflows.upkeep import COMMITS, TIDY_S, tidy
from tidemark.storage.definitions import declaration_of
from tidemark.storage.sharing import round_place

log = logging.getLogger(__name__)

FAIL_POINTS: Final = ("round.minted", "round.shared", "round.written", "round.before-append", "round.appended")
MEASURE_S: Final = 30.0
PATIENCE_S: Final = 60.0  # with a worker that lives, and does not deliver
LEFT_OUT: Final = 8  # rounds that share nothing out to it afterwards
TOO_LARGE: Final = "too_large"  # in the place of a part: the share takes too much memory
_CONFLICTS: Final = 8  # with other commits in a row, before the round counts as failed


@dataclass(slots=True)
class IngestionDataflow:
    """The part of one worker in an ingestion."""

    around: Surroundings
    start: CreateIngestionDataflow
    started_at: int
    _declaration: Declaration = field(init=False)
    _source: BufferSource = field(init=False)
    _shards: Shards = field(init=False)
    _rounds: Rounds = field(init=False)
    _opened: ExitStack = field(default_factory=ExitStack)
    _run: Ingesting | None = None  # kept open between rounds
    _measured_s: float = 0.0
    _written: int = 0  # the last round of which this worker wrote its share, or tried to
    _conflicts: int = 0
    _commits: int = 0  # since the last upkeep
    _tidied_s: float = field(default_factory=time.monotonic)
    _left_out: dict[int, int] = field(default_factory=dict)  # workers that did not deliver: for so many rounds
    _number: int = 0  # of the last round that this worker led
    _memory: RowMemory | None = None  # of collections whose rows wait there
    _most: int = 0  # entries of one worker and round: fewer than declared where these take too much memory

    def __post_init__(self) -> None:
        self._declaration = declaration_of(self.start.description.definition)
        self._source = check_buffer_source(self._declaration)
        self._most = self._source.most_entries
        rules = PartitionRules.of(self._declaration)
        self._memory = RowMemory(rules.lifecycle) if rules is not None and holds_rows(rules) else None
        self._shards = self.around.shards.beside()
        name = self._declaration.name
        upper = min((point.upper for point in self.start.resume_points.values()), default=0)
        self._rounds = Rounds(
            self.around,
            self.start.id,
            self.started_at,
            operation="ingest",
            item=self._declaration,
            shard=name,
            every_s=(self._source.every_ms or 0) / 1000,
            news=News(upper=upper),
        )

    @property
    def news(self) -> News:
        return self._rounds.news

    def close(self) -> None:
        self._opened.close()
        self._rounds.close()

    def step(self) -> float:
        """Lead a round, if this worker holds the object and a round is due; else write this worker's share of one."""
        if not self._rounds.may_run:
            return REST_S
        if self._rounds.is_holder:
            return self._rounds.lead(self._ingest_latest if self._declaration.kind is Kind.LATEST else self._round)
        self._help()
        self._rounds.follow()
        return REST_S

    # As the holder

    def _ingest_latest(self) -> CollectionReport:
        """Ingest alone: a commit compares the changes with all stored rows, and decoding is the smaller part."""
        report = ingest_latest(
            self._shards,
            self._declaration,
            deployment=self._rounds.deployment,
            clock=self.around.clock,
            max_entries=self._source.most_entries,
        )
        lags = [each["sequence_number_lag"] for each in report.details.get("sequencers", {}).values()]
        self._tidy_after(report)
        return replace(report, details={**report.details, "waiting": sum(lags)})

    def _round(self) -> CollectionReport:
        """Take the steps of one round; if another commit was faster, the next round follows at once."""
        try:
            report = self._mint_and_append()
        except (RangeOverlap, StaleState, FencedByEpoch) as error:
            self._start_over()
            self._conflicts += 1
            if self._conflicts > _CONFLICTS:
                raise
            return _again(f"another commit was faster: {error}")
        except NeedsSpark:
            self._take_fewer()
            return _again("the entries of a round take too much memory: the next one takes fewer")
        except Exception:
            self._start_over()
            raise
        self._conflicts = 0
        self._tidy_after(report)
        return report

    def _tidy_after(self, report: CollectionReport) -> None:
        """Tidy the collection after every 64 commits, and after some minutes with fewer."""
        if report.inserted or report.retracted:
            self._commits += 1
        now_s = time.monotonic()
        if self._commits >= COMMITS or (self._commits and now_s - self._tidied_s >= TIDY_S):
            self._commits, self._tidied_s = 0, now_s
            self._most = self._source.most_entries
            tidy(self._shards.open(self._declaration.name), self._rounds.deployment, clock=self.around.clock)

    def _mint_and_append(self) -> CollectionReport:
        """Take a round; of a collection whose rows wait in memory most rounds hold them, and append nothing."""
        own = self.around.index
        self._left_out = {index: rounds - 1 for index, rounds in self._left_out.items() if rounds > 1}
        members = [own, *(index for index in self._rounds.members if index not in {own, *self._left_out})]
        run, memory = self._open(len(members)), self._memory
        if memory is not None:
            run.engine = replace(run.engine, max_entries=None)  # a worker reads on in what is minted, round by round
        now_s = time.monotonic()
        measures = now_s - self._measured_s >= MEASURE_S
        minted = mint(run, measures=measures)
        if memory is not None and isinstance(minted, Minted) and (minted.is_whole or minted.batches.batches):
            run, memory = self._open(len(members)), None  # what was appended as a batch is not held
            minted = mint(run, measures=measures)
        if isinstance(minted, CollectionReport):
            return self._persist(run, minted)
        fail_point("round.minted")
        shares = share_out(minted, members, own)
        if memory is not None:
            found = self._hold(run, minted, members)
            if isinstance(found, CollectionReport):
                return found
            minted, shares = found
        told = self._lead(run, minted, shares)
        if told is None:
            return _led_by_another()
        parts = {index: each for index, each in told.items() if isinstance(each, Part)}
        delivered = {index for index, part in parts.items() if not _passes(part)}
        undelivered = sorted(shares.keys() - delivered - {own})
        self._left_out |= dict.fromkeys(undelivered, LEFT_OUT)
        fail_point("round.before-append")
        report = append(run, minted, list(parts.values()), measures=measures)
        fail_point("round.appended")
        if measures:
            self._measured_s = now_s
        came = [part for part in parts.values() if part.error is None]
        arrived = {sequencer_id for part in came for sequencer_id in part.share.sequencers}
        left = sum(each.lag if each.sequencer_id in arrived else each.watermark - each.start for each in minted.planned)
        lacking = {UNDELIVERED: undelivered} if undelivered else {}
        return self._persist(run, replace(report, details={**report.details, **lacking, "waiting": left}))

    def _hold(
        self, run: Ingesting, minted: Minted, members: list[int]
    ) -> tuple[Minted, dict[int, Share]] | CollectionReport:
        """Let all workers read on; return what of it is to be accepted now, and by whom, or a report if nothing is."""
        told = self._lead(run, minted, share_in_turn(minted, members), holds=True)
        if told is None:
            return _led_by_another()
        held = {index: each for index, each in told.items() if isinstance(each, Held)}
        cut = cut_to_held(minted, held.values())
        if reason := find_due(run, cut, [*held.values()], clock=self.around.clock):
            log.info("%s: what is held is written now: %s", self._declaration.name, reason)
            ids = {planned.sequencer_id for planned in cut.planned}
            shares = {index: tuple(sorted(ids & each.ends.keys())) for index, each in held.items()}
            return cut, {index: Share(sequencers=share) for index, share in shares.items() if share}
        ends = {id_: end for each in held.values() for id_, end in each.ends.items()}
        errors = (each.error for each in told.values() if isinstance(each, Part) and not _passes(each))
        error = next((error for error in errors if error is not None), None)
        upper = run.head.state.upper
        details = {
            "buffer": run.reader.name,
            HELD: sum(each.rows for each in held.values()),
            "held_bytes": sum(each.size_bytes for each in held.values()),
            "waiting": sum(each.watermark - ends.get(each.sequencer_id, each.watermark) for each in minted.planned),
        }
        outcome = Outcome.UNCHANGED if error is None else Outcome.FAILED
        return CollectionReport(outcome=outcome, lower=upper, upper=upper, details=details, error=error)

    def _persist(self, run: Ingesting, report: CollectionReport) -> CollectionReport:
        """Persist what is due of a collection whose rows wait in memory; all others are left to scheduled passes.

        What fails is left to them, too: the rows are accepted.
        """
        is_written = report.outcome in {Outcome.APPENDED, Outcome.UNCHANGED}
        if self._memory is None or not is_written or not (report.inserted or run.head.open_rows):
            return report
        shard, deployment = run.target.shard, self._rounds.deployment
        try:
            done = persist(
                shard, self._declaration, deployment=deployment, clock=self.around.clock, engine=PersistEngine()
            )
        except (NeedsSpark, TidemarkError) as error:
            log.warning("what is due of %s is left to the next pass: %s", shard.name, error or "it is large")
            return report
        return replace(report, upper=done.upper, details={**report.details, "shown": done.inserted})

    def _lead(
        self, run: Ingesting, minted: Minted, shares: dict[int, Share], *, holds: bool = False
    ) -> dict[int, Part | Held] | None:
        """Share a round out and return what came of it; None if another worker leads the round."""
        entry = self.around.seen.board.get(round_place(self.start.id))
        last = entry.number if entry is not None and entry.life == self.started_at else 0
        self._number = max(self._number, last) + 1
        if [*shares] != [self.around.index]:
            told = {str(index): share.to_json() for index, share in shares.items()}
            value = {"minted": minted.to_json(), "shares": told, "holds": holds}
            place = round_place(self.start.id)
            if not self.around.board.put(place, value, life=self.started_at, number=self._number):
                return None
        fail_point("round.shared")
        return self._collect(run, minted, shares, holds=holds)

    def _collect(
        self, run: Ingesting, minted: Minted, shares: dict[int, Share], *, holds: bool
    ) -> dict[int, Part | Held]:
        """Do the own share, and return all parts once they have come, but for those of workers that are lost."""
        own, parts, until_s = self.around.index, dict[int, Part | Held](), time.monotonic() + PATIENCE_S
        waited_for = set(shares) - {own}
        if own in shares:
            try:
                parts[own] = self._do(run, minted, shares[own], holds=holds)
            except (StaleState, FencedByEpoch):  # the whole round may be void
                raise
            except TidemarkError as error:  # it does not keep the others from being appended
                parts[own] = Part.failed(minted, shares[own], error)
        while waited_for:
            if not self._rounds.may_run:  # the others wait, too, and so write nothing
                raise InputsGone("the deployment became read-only, or this worker is to end")
            for index in sorted(waited_for):
                entry = self.around.seen.board.get(round_place(self.start.id, index))
                if entry is not None and (entry.life, entry.number) == (self.started_at, self._number):
                    if TOO_LARGE in entry.value:
                        self._take_fewer()
                    else:
                        parts[index] = (
                            Held.from_json(entry.value) if "ends" in entry.value else Part.from_json(entry.value)
                        )
                elif index in self._rounds.members and time.monotonic() < until_s:
                    continue
                else:
                    log.warning("worker %s did not deliver its part of %s", index, self._declaration.name)
                waited_for.remove(index)
            time.sleep(LOOK_S / 2 if waited_for else 0)
        return parts

    # As one of those who write a share

    def _help(self) -> None:
        """Write this worker's share of the present round, if it has one and has not written it."""
        entry = self.around.seen.board.get(round_place(self.start.id))
        if entry is None or entry.life != self.started_at or entry.number <= self._written:
            return
        if (share := entry.value["shares"].get(str(self.around.index))) is not None:
            minted = Minted.from_json(entry.value["minted"])
            self._deliver(entry.number, minted, Share.from_json(share), holds=entry.value["holds"])
        self._written = entry.number

    def _do(self, run: Ingesting, minted: Minted, share: Share, *, holds: bool) -> Part | Held:
        """Read a share and hold it, or write it; what is held already is not read again."""
        if self._memory is None:
            return write_part(run, minted, share, branch=name_attempt(run.target))
        if holds:
            return self._memory.hold(run, minted, share, most_entries=self._most)
        held = self._memory.take(minted, share)
        return write_part(run, minted, share, branch=name_attempt(run.target), held=held)

    def _deliver(self, number: int, minted: Minted, share: Share, *, holds: bool) -> None:
        """Do a share, and put on the board what became of it: whoever leads the round waits for that."""
        failed: TidemarkError | None = None
        try:
            with self.around.shares, holding(self.around.settings, "ingest", [self._declaration.name]):
                told = self._do(self._open(1), minted, share, holds=holds).to_json()
        except NeedsSpark:
            told = {TOO_LARGE: True}
        except TidemarkError as error:
            self._start_over()
            failed, told = error, Part.failed(minted, share, error).to_json()
        fail_point("round.written")
        place = round_place(self.start.id, self.around.index)
        self.around.board.put(place, told, life=self.started_at, number=number)
        news = self._rounds.news
        self._rounds.news = replace(
            news,
            rounds=news.rounds + 1,
            error="" if failed is None else f"{failed.kind}: {failed}",
            error_ms=0 if failed is None else self.around.clock.now_ms(),
        )

    # What is kept open

    def _open(self, workers: int) -> Ingesting:
        """Return the ingest with an open reader; a round takes the most of one worker for each of ``workers``."""
        # Only one entry that is too large by itself is left to Spark: of several a round takes fewer.
        start_spark = self.around.start_spark if self._most == 1 else None
        engine = Engine(
            start_spark=start_spark, max_entries=self._most * workers, small_entries=self._source.most_entries
        )
        if self._run is None:
            opened = open_ingesting(
                self._shards,
                self._declaration,
                deployment=self._rounds.deployment,
                clock=self.around.clock,
                engine=engine,
            )
            self._run = self._opened.enter_context(opened)
        self._run.engine = engine
        return self._run

    def _take_fewer(self) -> None:
        self._most = max(1, self._most // 2)

    def _start_over(self) -> None:
        """Forget what a broker that was away, or another leader of the catalog, has made useless."""
        self._opened.close()
        self._run = None
        self._rounds.reconnect()


def _led_by_another() -> CollectionReport:
    return skipped("another worker leads this round")


def _passes(part: Part) -> bool:
    """Tell whether a part failed for a reason that passes by itself, and that the next mint settles."""
    return part.error is not None and part.error.exit_code in PASSING


def _again(why: str) -> CollectionReport:
    """Return the report of a round that came to nothing, and that the next one follows at once."""
    return replace(skipped(why), details={SKIPPED_BECAUSE: why, "waiting": 1})
