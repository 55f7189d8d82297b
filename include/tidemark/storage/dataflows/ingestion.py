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
from typing import Any, Final, NamedTuple

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.isolation import NeedsSpark, skipped
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import AppliedMeanwhile, FencedByEpoch, RangeOverlap, StaleState, TidemarkError
from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import check_buffer_source
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.order.beginnings import remember_beginnings
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
    find_error,
    holds_rows,
    mint,
    open_ingesting,
    share_in_turn,
    share_out,
    write_part,
)
from tidemark.ingest.persist.persist import Engine as PersistEngine
from tidemark.ingest.persist.persist import persist
from tidemark.ingest.progress import measure
from tidemark.ingest.publish import name_attempt
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Outcome
from tidemark.storage.commands import CreateIngestionDataflow
from tidemark.storage.dataflows.dataflow import HELD, REST_S, STALE, UNDELIVERED, News, Surroundings
from tidemark.storage.dataflows.round_board import RoundBoard, Told
from tidemark.storage.dataflows.rounds import Rounds
from tidemark.storage.dataflows.upkeep import COMMITS, TIDY_S, tidy
from tidemark.storage.definitions import declaration_of

log = logging.getLogger(__name__)

FAIL_POINTS: Final = ("round.minted", "round.shared", "round.written", "round.before-append", "round.appended")
MEASURE_S: Final = 30.0
_CONFLICTS: Final = 8  # with other commits in a row, before the round counts as failed
_LED_BY_ANOTHER: Final = "another worker leads this round"


class _Due(NamedTuple):
    """What is accepted now of the rows in memory, and by whom; and the error of what cannot be read."""

    minted: Minted
    shares: dict[int, Share]
    error: ErrorReport | None


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
    _board: RoundBoard = field(init=False)
    _opened: ExitStack = field(default_factory=ExitStack)
    _run: Ingesting | None = None  # kept open between rounds
    _measured_s: float = 0.0
    _conflicts: int = 0
    _commits: int = 0  # since the last upkeep
    _tidied_s: float = field(default_factory=time.monotonic)
    _memory: RowMemory | None = None  # of collections whose rows wait there
    _most: int = 0  # entries of one worker and round: fewer than declared where these take too much memory

    def __post_init__(self) -> None:
        self._declaration = declaration_of(self.start.description.definition)
        self._source = check_buffer_source(self._declaration)
        self._most = self._source.most_entries
        if holds_rows(PartitionRules.of(self._declaration)):
            self._memory = RowMemory(self._declaration.name, self.around.memory)
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
        self._board = RoundBoard(self.around, self.start.id, self.started_at, self._rounds)

    @property
    def news(self) -> News:
        return self._rounds.news

    def close(self) -> None:
        if self._memory is not None:
            self._memory.forget()
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
        try:
            report = ingest_latest(
                self._shards,
                self._declaration,
                deployment=self._rounds.deployment,
                clock=self.around.clock,
                max_entries=self._source.most_entries,
            )
        except AppliedMeanwhile as error:
            return _rest(error)
        lags = [each["sequence_number_lag"] for each in report.details.get("sequencers", {}).values()]
        self._tidy_after(report)
        return replace(report, details={**report.details, "waiting": sum(lags)})

    def _round(self) -> CollectionReport:
        """Take the steps of one round; if another commit was faster, the next round follows at once."""
        try:
            report = self._mint_and_append()
        except AppliedMeanwhile as error:
            self._start_over()
            return _rest(error)
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
        workers, now_s = self._board.choose_workers(), time.monotonic()
        measures = now_s - self._measured_s >= MEASURE_S
        run, minted, holds = self._mint(len(workers), measures=measures)
        if isinstance(minted, CollectionReport):
            return self._persist(run, minted)
        fail_point("round.minted")
        shares, error = share_out(minted, workers, self.around.index), None
        if holds:
            found = self._hold(run, minted, share_in_turn(minted, workers), measures=measures)
            if isinstance(found, CollectionReport):
                return self._persist(run, found)
            minted, shares, error = found
        told = self._collect(run, minted, shares, holds=False)
        if told is None:
            return skipped(_LED_BY_ANOTHER)
        lacking = self._board.leave_out(shares, told)
        parts = [part for part in told.values() if isinstance(part, Part)]
        fail_point("round.before-append")
        report = append(run, minted, parts, measures=measures)
        fail_point("round.appended")
        if measures:
            self._measured_s = now_s
        came = [id_ for part in parts if part.error is None for id_ in part.share.sequencers]
        left = sum(each.lag if each.sequencer_id in came else each.watermark - each.start for each in minted.planned)
        details = {**report.details, **_name_lacking(lacking), "waiting": left}
        return self._persist(run, replace(report, details=details, error=report.error or error))

    def _mint(self, workers: int, *, measures: bool) -> tuple[Ingesting, Minted | CollectionReport, bool]:
        """Return what comes next, and whether its rows are to be held: those of appended batches never are."""
        run = self._open(workers)
        if self._memory is None:
            return run, mint(run, measures=measures), False
        run.engine = replace(run.engine, max_entries=None)  # a worker reads on in what is minted, round by round
        minted = mint(run, measures=measures)
        if isinstance(minted, Minted) and (minted.is_whole or minted.batches.batches):
            run = self._open(workers)
            return run, mint(run, measures=measures), False
        return run, minted, True

    def _hold(
        self, run: Ingesting, minted: Minted, shares: dict[int, Share], *, measures: bool
    ) -> CollectionReport | _Due:
        """Let all workers read on; return what of it is to be accepted now, and by whom, or a report if nothing is."""
        remember_beginnings(run.target, minted, run.head)
        told = self._collect(run, minted, shares, holds=True)
        if told is None:
            return skipped(_LED_BY_ANOTHER)
        lacking = self._board.leave_out(shares, told)
        held = {index: each for index, each in told.items() if isinstance(each, Held)}
        error = find_error(part for part in told.values() if isinstance(part, Part))
        cut = cut_to_held(minted, held.values())
        if reason := find_due(run, cut, [*held.values()]):
            log.info("%s: what is held is written now: %s", self._declaration.name, reason)
            ids = {planned.sequencer_id for planned in cut.planned}
            found = {index: tuple(sorted(ids & each.ends.keys())) for index, each in held.items()}
            return _Due(cut, {index: Share(sequencers=share) for index, share in found.items() if share}, error)
        ends = {id_: end for each in held.values() for id_, end in each.ends.items()}
        unread = [(each, ends.get(each.sequencer_id, each.start)) for each in minted.planned]
        upper = run.head.state.upper
        details = {
            "buffer": run.reader.name,
            HELD: sum(each.rows for each in held.values()),
            "held_bytes": sum(each.size_bytes for each in held.values()),
            **_name_lacking(lacking),
            "waiting": sum(each.end - end for each, end in unread),
        }
        if measures:
            rest = [replace(each, first=end, end=end) for each, end in unread]
            details["sequencers"] = measure(run.reader, rest, {}, now_ms=self.around.clock.now_ms())
            self._measured_s = time.monotonic()
        outcome = Outcome.UNCHANGED if error is None else Outcome.FAILED
        return CollectionReport(outcome=outcome, lower=upper, upper=upper, details=details, error=error)

    def _persist(self, run: Ingesting, report: CollectionReport) -> CollectionReport:
        """Persist what is due of a collection whose rows wait in memory; all others are left to scheduled passes.

        What fails is left to them, too: the rows are accepted. A collection at its hard limit so gets room again.
        """
        is_any = report.inserted or run.head.open_rows
        if self._memory is None or report.outcome is Outcome.SKIPPED or not is_any:
            return report
        shard, deployment = run.target.shard, self._rounds.deployment
        engine = PersistEngine(start_spark=self.around.start_spark)
        try:
            done = persist(shard, self._declaration, deployment=deployment, clock=self.around.clock, engine=engine)
        except (NeedsSpark, TidemarkError) as error:
            log.warning("what is due of %s is left to the next pass: %s", shard.name, error or "it is large")
            return report
        except Exception:  # as of Spark: no error of the round, whose rows are accepted
            log.exception("what is due of %s is left to the next pass", shard.name)
            return report
        return replace(report, upper=done.upper, details={**report.details, "shown": done.inserted})

    def _collect(
        self, run: Ingesting, minted: Minted, shares: dict[int, Share], *, holds: bool
    ) -> dict[int, Told] | None:
        """Share a round out, do the own share, and return what became of all; None if another worker leads."""
        if not self._board.hand_out(minted, shares, holds=holds):
            return None
        fail_point("round.shared")
        own, told = self.around.index, dict[int, Told]()
        if own in shares:
            try:
                told[own] = self._do(run, minted, shares[own], holds=holds)
            except (StaleState, FencedByEpoch):  # the whole round may be void
                raise
            except TidemarkError as error:  # it does not keep the others from being appended
                told[own] = Part.failed(minted, shares[own], error)
        elif self._memory is not None:
            self._memory.forget()
        told |= self._board.collect(shares.keys() - {own})
        if None in told.values():
            self._take_fewer()
        return told

    # As one of those who write a share

    def _help(self) -> None:
        """Do this worker's share of the present round, if it has one and has not done it."""
        if (task := self._board.find_task()) is None:
            return
        if task.share is None:
            if self._memory is not None:  # others hold it now
                self._memory.forget()
            self._board.hand_back(task, None)
            return
        failed: TidemarkError | None = None
        told: Told = None
        try:
            with self.around.shares, holding(self.around.settings, "ingest", [self._declaration.name]):
                told = self._do(self._open(1), task.minted, task.share, holds=task.holds)
        except NeedsSpark:
            log.info("the share of %s takes too much memory", self._declaration.name)
        except TidemarkError as error:
            self._start_over()
            failed, told = error, Part.failed(task.minted, task.share, error)
        fail_point("round.written")
        self._board.hand_back(task, told)
        news = self._rounds.news
        self._rounds.news = replace(
            news,
            rounds=news.rounds + 1,
            error="" if failed is None else f"{failed.kind}: {failed}",
            error_ms=0 if failed is None else self.around.clock.now_ms(),
        )

    def _do(self, run: Ingesting, minted: Minted, share: Share, *, holds: bool) -> Part | Held:
        """Read a share and hold it, or write it; what is held already is not read again."""
        held = None
        if self._memory is not None:
            if holds:
                return self._memory.hold(run, minted, share, most_entries=self._most)
            held = self._memory.take(minted, share)
        return write_part(run, minted, share, branch=name_attempt(run.target), held=held)

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


def _name_lacking(workers: list[int]) -> dict[str, Any]:
    return {UNDELIVERED: workers} if workers else {}


def _rest(error: AppliedMeanwhile) -> CollectionReport:
    """Return the report of a round of a dataflow that the controller starts anew in a moment, if worker 0 is there."""
    return replace(skipped(str(error)), details={SKIPPED_BECAUSE: str(error), STALE: str(error)})


def _again(why: str) -> CollectionReport:
    """Return the report of a round that came to nothing, and that the next one follows at once."""
    return replace(skipped(why), details={SKIPPED_BECAUSE: why, "waiting": 1})
