"""Reconcile against what a user would otherwise use, and against the limit: one hashing scan of the source."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F

from bench.figures import Figure
from bench.tables import ALL_STAY, KEY, Mirrors, write_sources
from bench.timing import alternate
from tidemark.collections.digest.row_layout import NEW
from tidemark.collections.reconcile.pinned_snapshot import pin_snapshot
from tidemark.collections.reconcile.spark_corrections import LargeCorrections
from tidemark.collections.reconcile.spark_diff import keyed_changes
from tidemark.collections.sources.scratch_folder import scratch_folder
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tidemark.settings import Settings

SHARES = {"0.1%": 0.001, "1%": 0.01, f"1%{ALL_STAY}": 0.01, "50%": 0.5}


def measure_reconciling(
    spark: SparkSession,
    settings: Settings,
    folder: Path,
    *,
    rows: int,
    runs: int,
    shares: dict[str, float],
    with_others: bool,
) -> Iterator[Figure]:
    """Yield the figures of one size, the smallest first; all sides of a ratio alternate in this one session.

    Without the others there is neither MERGE INTO nor a plain join: it is seen how the time grows with the size.
    """
    label = f"{rows / 1_000_000:g} M rows"
    if not with_others:  # one share tells how the time grows, and 50 % are compared with a plain join alone
        shares = dict(list(shares.items())[:1])
    paths = write_sources(spark, folder, rows, shares)
    mirrors = Mirrors(spark, settings, Shards.connect(settings), paths, with_merge=with_others)
    mirrors.create()
    loaded = mirrors.save()

    sides: dict[str, Callable[[], object]] = {
        "hashing scan": lambda: hashing_scan(mirrors),
        "tidemark": lambda: mirrors.reconcile("base", is_full=True),  # else the files say that nothing changed
        **({"merge": lambda: mirrors.merge("base")} if with_others else {}),
    }
    times = alternate(sides, runs, before=lambda: mirrors.restore(loaded), check=checking(mirrors, "base"))
    yield from plain(f"nothing changed, {label}", times)
    yield ratio(f"nothing changed, {label}: tidemark / hashing scan", times, "tidemark", "hashing scan", at_most=1.6)
    if with_others:
        yield ratio(f"nothing changed, {label}: merge / tidemark", times, "merge", "tidemark", at_least=4)

    for name, least in (("0.1%", 2.2), ("1%", 1.8), (f"1%{ALL_STAY}", 2.2)):
        if name not in shares:
            continue
        mirrors.restore(loaded)
        for step in (name, "base"):  # a history of that change rate, for both: what a collection looks like in use
            mirrors.reconcile(step)
            if with_others:
                mirrors.merge(step)
        used = mirrors.save()
        merge = {"merge": partial(mirrors.merge, name)} if with_others else {}
        sides = {"tidemark": partial(mirrors.reconcile, name), **merge}
        before = partial(mirrors.restore, used)
        times = alternate(sides, runs, warm_ups=2, before=before, check=checking(mirrors, name))
        yield from plain(f"{name} changed, {label}", times)
        if with_others:
            yield ratio(f"{name} changed, {label}: merge / tidemark", times, "merge", "tidemark", at_least=least)

    if "50%" in shares and with_others:
        sides = {"tidemark": lambda: mirrors.reconcile("50%"), "plain join": lambda: plain_join(mirrors, "50%")}
        times = alternate(sides, runs, before=lambda: mirrors.restore(loaded), check=checking(mirrors, "50%"))
        yield from plain(f"50% changed, {label}", times)
        yield ratio(f"50% changed, {label}: tidemark / plain join", times, "tidemark", "plain join", at_most=1.2)


def hashing_scan(mirrors: Mirrors) -> None:
    """Read every column of the source and hash it: nothing that looks at all rows can be faster."""
    mirrors.read("base").select(F.xxhash64("*").alias("hash")).agg(F.bit_xor("hash")).collect()


def plain_join(mirrors: Mirrors, name: str) -> None:
    """Join source and collection on the key, and write and publish what differs: a reconcile without a digest."""
    shard = mirrors.shards.open("mirror")
    writer = Writer.join(shard, mirrors.settings.generation)
    pinned = pin_snapshot(mirrors.spark, shard, shard.load(), (KEY,))
    desired, stored = pinned.shape.number(mirrors.read(name), NEW), pinned.read()
    with scratch_folder(mirrors.spark, mirrors.settings) as scratch:
        corrections = LargeCorrections.of(keyed_changes(desired, stored, pinned.shape), pinned.shape, scratch=scratch)
        batch = corrections.write(writer, pinned, pinned.upper)
        writer.publish(batch, lower=pinned.upper, new_upper=pinned.upper + 1, commit_id=str(uuid4()))


def checking(mirrors: Mirrors, source: str) -> Callable[[str], None]:
    """Return what checks that a side did the whole work: the table it wrote holds the rows of ``source``."""
    wanted = fingerprint(mirrors.read(source))
    written = {"tidemark": mirrors.mirror, "plain join": mirrors.mirror, "merge": mirrors.merged}

    def check(side: str) -> None:
        if side in written:
            found = fingerprint(mirrors.spark.table(written[side]))
            assert found == wanted, f"{side} left other rows than those of {source}"

    return check


def fingerprint(rows: DataFrame) -> Row:
    """Return the count and a hash of the rows, whatever their order, without the columns of Tidemark's own."""
    hashes = rows.drop(TIME, DIFF).select(F.xxhash64("*").alias("hash"))
    return hashes.agg(F.count("hash"), F.sum(F.col("hash").cast("decimal(38,0)"))).collect()[0]


def plain(name: str, times: dict[str, list[float]]) -> Iterator[Figure]:
    for side, runs in times.items():
        yield Figure(f"{name}: {side}", "s", tuple(runs))


def ratio(name: str, times: dict[str, list[float]], top: str, bottom: str, **bounds: float) -> Figure:
    return Figure.ratio(name, numerator=(top, times[top]), denominator=(bottom, times[bottom]), **bounds)
