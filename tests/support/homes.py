"""One home of a test: short ways to declare, write, run and read back, and to look past the catalog's code."""

from __future__ import annotations

import copy
import csv
import json
import shutil
import tempfile
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests.support.clock import SteppedClock
from tests.support.declared import Watched, csv_declaration
from tidemark.atomic_files import write_whole
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.items.kinds import SETTING, NamedKey, SettingValue
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import BackEnds, Direction, Opening, run_steps
from tidemark.catalog.opening.protocol import PROTOCOL
from tidemark.collections.apply.execute import Application, alter_columns, read_stored
from tidemark.collections.apply.inspect_source import SourceInspector
from tidemark.collections.apply.plan import NumberEntries
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.mode import set_mode
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest.parts.ingesting import Engine
from tidemark.ingest.progress import count_waiting_in
from tidemark.ingest.run import choose_ingested, ingest_all
from tidemark.settings import Settings
from tidemark.sinks.inspection import inspect_target
from tidemark.sinks.run import choose_sinks, run_sinks
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from tidemark.catalog.back_end import Handle
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.opening import Step
    from tidemark.collections.apply.plan import ApplyPlan
    from tidemark.collections.deployment import Deployment, Mode, Registry
    from tidemark.collections.reconcile.reconciliation import Reconciliation
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.interval import Interval
    from tidemark.report import CollectionReport, Report
    from tidemark.write_buffer.file.folder import FileFolder

MIGRATE, ROLLBACK, EMERGENCY = Direction.MIGRATE, Direction.ROLLBACK, Direction.EMERGENCY
READER_SCHEMA = "id bigint, name string"
ODD_NAMES = ("home", "my home", "ü", "a%20b", "100%")


def put(handle: Handle, *names: str) -> None:
    """Write rows: settings, by their names."""

    def change(transaction: Transaction) -> None:
        for name in names:
            transaction.put(SETTING, NamedKey(name=name), SettingValue(value="v"))

    handle.transact(change)


def names(handle: Handle) -> set[str]:
    """Read rows back."""
    return handle.transact(lambda transaction: {key.name for key, _ in transaction.items(SETTING)})


def make_odd_home(name: str) -> Settings:
    """Return the settings of an empty home of that name, in a folder where nothing else is."""
    home = Path(tempfile.mkdtemp(prefix="tidemark-odd-"), name)
    home.mkdir()
    return Settings.load({"TIDEMARK_HOME": str(home)})


def remove_odd_home(settings: Settings) -> None:
    """Remove the home, and assert that nothing was written beside it."""
    written = [each.name for each in settings.home.parent.iterdir()]
    shutil.rmtree(settings.home.parent)
    assert written == [settings.home.name]


class Home:
    """Settings, sources and declarations in ``folder``, collections, a file buffer, both back ends of the catalog.

    Nothing is opened before a test needs it. CSV sources have the columns ``schema``.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path | None = None,
        schema: str = "k int, v string",
        *,
        sequencers: int = 2,
        now_ms: int = 1_000,
        spark: SparkSession | None = None,
    ) -> None:
        self.settings, self.folder, self.schema = settings, folder or settings.home, schema
        self.sequencers, self.spark, self.clock = sequencers, spark, SteppedClock(now_ms)
        self.sent = 0

    @cached_property
    def shards(self) -> Shards:
        return Shards.connect(self.settings)

    @property
    def deployment(self) -> Deployment:
        return deployment_of(self.settings, clock=self.clock)

    @property
    def registry(self) -> Registry:
        return deployment_of(self.settings).registry

    def of_generation(self, number: int) -> Home:
        """The same home for a deployment of another generation."""
        other = copy.copy(self)
        other.settings = replace(self.settings, generation=number)
        for opened in ("shards", "catalog"):
            other.__dict__.pop(opened, None)
        return other

    # -- sources and declarations ----------------------------------------------------------------------------------

    def write_lines(self, name: str, *lines: str) -> None:
        """Write the source ``NAME.csv``, whole or not at all."""
        write_whole(self.folder / f"{name}.csv", "\n".join([*lines, ""]))

    def write_rows(self, name: str, rows: list[tuple[object, ...]]) -> None:
        """Write the source ``NAME.csv`` with the columns ``schema``."""
        path = self.folder / f"{name}.csv"
        path.unlink(missing_ok=True)  # another file, as a careful producer leaves it
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([[column.name for column in parse_columns(self.schema)], *rows])

    def write_json(self, name: str, *rows: dict[str, Any]) -> None:
        """Write the source ``NAME.json``, a line for each row."""
        path = self.folder / f"{name}.json"
        path.unlink(missing_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def declaration(self, name: str, **more: object) -> Declaration:
        """Return the declaration of a differential collection over ``NAME.csv``; ``apply`` stores it."""
        path = str(self.folder / f"{name}.csv")
        source = {"format": "csv", "path": path, "options": {"header": True}, "schema": self.schema}
        return csv_declaration(name, **{"source": source} | more)

    def apply(self, *declarations: Declaration) -> None:
        """Create the collections, all with the columns ``schema``, and register them."""
        for declaration in declarations:
            self.shards.create(declaration.name, schema=to_iceberg(parse_columns(self.schema)), key=declaration.key)
        self.registry.replace(declarations, seen=self.registry.read())

    @property
    def declarations(self) -> Path:
        return self.folder / "collections.yaml"

    def application(self) -> Application:
        return Application(
            shards=self.shards,
            deployment=self.deployment,
            inspector=SourceInspector(
                self.shards, self.settings, lambda: self.spark or _no_spark(), self.deployment.buffers
            ),
            count_waiting=partial(count_waiting_in, self.settings),
            inspect_sink=partial(inspect_target, self.settings),
            clock=self.clock,
        )

    def declare(self, text: str | None = None) -> ApplyPlan:
        """Apply the file ``declarations``; ``text`` first goes into it."""
        if text is not None:
            self.declarations.write_text(text, encoding="utf-8")
        applied = self.registry.read()
        return self.application().run(load_declarations([self.declarations], applied.declarations, applied.sinks))

    # -- what is stored --------------------------------------------------------------------------------------------

    def shard(self, name: str = "events") -> Shard:
        return self.shards.open(name)

    def upper(self, name: str) -> int:
        upper = self.shard(name).load().state.upper
        assert isinstance(upper, int)
        return upper

    def rows(self, name: str = "events") -> list[dict[str, Any]]:
        """Return the contents as pyiceberg reads them, which knows nothing of Tidemark or Spark."""
        found: list[dict[str, Any]] = (
            self.shards.iceberg.load_table(("collections", name)).scan().to_arrow().to_pylist()
        )
        return found

    def user_rows(self, name: str) -> list[dict[str, Any]]:
        """Return the contents without Tidemark's own columns, in the order of their texts."""
        own = {"_time", "_diff", "_producer", "_batch", "_entry"}
        return sorted(({k: v for k, v in row.items() if k not in own} for row in self.rows(name)), key=repr)

    def tuples(self, name: str) -> list[tuple[Any, ...]]:
        """Return the contents without Tidemark's own columns, sorted."""
        return sorted(tuple(row.values()) for row in self.user_rows(name))

    def ids(self, name: str = "events") -> list[int]:
        return sorted(row["id"] for row in self.rows(name))

    def bad(self, name: str = "events") -> list[tuple[int, int, str, bytes | None]]:
        """Return partition, offset, reason and bytes of what is in the quarantine, sorted."""
        if not self.shards.exists(f"{name}_quarantine"):
            return []
        return sorted(
            (row["partition"], row["offset"], row["reason"], row["raw"]) for row in self.rows(f"{name}_quarantine")
        )

    def ledgers(self, name: str = "events") -> dict[str, str]:
        """Return the ledgers by the sequencer that they are of."""
        ledgers = self.shard(name).load().state.ledgers
        return {producer.rsplit(".", 1)[1]: str(ledger) for producer, ledger in ledgers.items()}

    def branches(self) -> set[str]:
        """Return what lies on staging branches of any collection."""
        return {branch for name in self.shards.names() for branch in self.shard(name).load().staged_branches}

    # -- runs ------------------------------------------------------------------------------------------------------

    def switch(self, mode: Mode) -> None:
        set_mode(self.shards, self.deployment, mode, who="tests", why="a test")

    def reconciliation(
        self,
        spark: SparkSession,
        declaration: Declaration,
        *,
        opened: Callable[[OpenedSource], OpenedSource] = lambda source: source,
        interval: Interval | None = None,
        overrides: Overrides | None = None,
    ) -> Reconciliation:
        """Return a run; ``opened`` sees, and may replace, the source each time that it is opened."""
        from tidemark.collections.reconcile.reconciliation import Reconciliation  # imports Spark

        self.clock.step(10)
        source = Watched(source=declaration.source, opened=opened)
        return Reconciliation(
            spark=spark,
            settings=self.settings,
            shards=self.shards,
            shard=self.shard(declaration.name),
            declaration=declaration.model_copy(update={"source": source}),
            data_interval=interval,
            overrides=overrides or Overrides(),
            clock=self.clock,
        )

    def reconcile(
        self, spark: SparkSession, declaration: Declaration, *, writer: Writer | None = None, **more: Any
    ) -> CollectionReport:
        run = self.reconciliation(spark, declaration, **more)
        return run.run(writer or Writer.join(self.shard(declaration.name), 1))

    # -- a file buffer, and collections that read it ---------------------------------------------------------------

    @property
    def buffer_folder(self) -> Path:
        return self.folder / "buffer"

    @cached_property
    def buffer(self) -> FileFolder:
        return open_folder(self.buffer_folder, sequencers=self.sequencers)

    def make_buffer_anew(self) -> None:
        """Put another, empty buffer into its place."""
        shutil.rmtree(self.buffer_folder)
        del self.buffer
        assert self.buffer.logs, "made now: a run may come before the first message"

    def send(self, sequencer_id: int, *payloads: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        """Write messages to the buffer as any producer may."""
        for payload in payloads:
            self.buffer.logs[sequencer_id].append(encode_message(Message(payload, headers, self.clock.now_ms())))

    def send_rows(self, sequencer_id: int, count: int) -> None:
        """Write as many messages of one row each, with ids that no other row has."""
        for _ in range(count):
            self.send(sequencer_id, json.dumps({"id": self.sent, "name": f"s{sequencer_id}"}).encode())
            self.sent += 1

    def declare_reader(self, name: str = "events", **more: Any) -> Declaration:
        """Declare and create an append-only collection that reads the buffer, unless ``source`` names another."""
        return self._declare(name, source={"buffer": self.buffer_folder.as_uri(), **more.pop("source", {})}, **more)

    def declare_latest(self, name: str = "events", **more: Any) -> Declaration:
        """Declare and create a collection that keeps the latest row of each ``id`` that arrives in the buffer."""
        source = {"buffer": self.buffer_folder.as_uri(), **more.pop("source", {})}
        fields = {"name": name, "kind": "latest", "schema": READER_SCHEMA, "key": ["id"], "source": source, **more}
        declaration = Declaration.model_validate(fields)
        self.shards.create(
            name, schema=to_iceberg(declaration.known_columns or ()), key=declaration.key, of_buffer=True
        )
        self.registry.replace([declaration], seen=self.registry.read())
        return declaration

    def declare_writer(self, name: str = "gate", **more: Any) -> Declaration:
        """Declare and create an append-only collection whose appends go into the buffer."""
        return self._declare(name, **{"writes_to": self.buffer_folder.as_uri(), **more})

    def _declare(self, name: str, **more: Any) -> Declaration:
        fields = {"name": name, "kind": "append-only", "schema": READER_SCHEMA, **more}
        declaration = Declaration.model_validate(fields)
        numbers = declaration.event_time is not None
        shard = self.shards.create(
            name,
            schema=to_iceberg(parse_columns(declaration.columns_text or "")),
            layout=ShardKind.APPEND_ONLY,
            of_buffer=numbers,
        )
        if numbers and not read_stored(shard.load().table).numbers_entries:
            alter_columns(shard, [NumberEntries(name)])
        self.registry.replace([declaration], seen=self.registry.read())
        return declaration

    def ingest_all(self, *names: str, **engine: Any) -> Report:
        """Ingest in this process, unless ``engine`` brings Spark."""
        deployment, engine_ = self.deployment, Engine(**engine)
        chosen = choose_ingested(deployment, names)
        report, left = ingest_all(self.shards, deployment, chosen, clock=self.clock, engine=engine_, silent={})
        assert not left
        return report

    def ingest(self, name: str = "events", **engine: Any) -> CollectionReport:
        return self.ingest_all(name, **engine).collections[name]

    # -- sinks -----------------------------------------------------------------------------------------------------

    def declare_sink(self, name: str = "copies", collection: str = "events", **more: Any) -> SinkDeclaration:
        """Register a sink of a collection that is there; ``to`` is its target."""
        fields = {"name": name, "from": collection, "mode": "mirror", **more}
        sink = SinkDeclaration.model_validate(fields).resolve(self.registry.get(collection))
        self.registry.replace([], seen=self.registry.read(), sinks=[sink])
        return sink

    def run_sink(self, name: str = "copies", spark: SparkSession | None = None) -> CollectionReport:
        deployment = replace(self.deployment, asked_for=frozenset({name}))  # also what was killed again and again
        chosen = choose_sinks(deployment, [name])
        start = None if spark is None else lambda: spark
        return run_sinks(self.shards, deployment, chosen, clock=self.clock, start_spark=start).collections[name]

    # -- the catalog: both back ends below one folder, or in one database each -----------------------------------------

    @cached_property
    def catalog(self) -> Catalog:
        """One for all openers: what they share is a pool of connections, and most of the time an open takes."""
        return Catalog.of(self.settings, clock=self.clock, who="a test")

    @property
    def ends(self) -> BackEnds:
        return self.catalog.ends

    def open(self, direction: Direction | None = None, *, add: Iterable[str] = (), is_forced: bool = False) -> int:
        """Open, write rows as the leader, close; the leader's epoch."""
        opening = self.catalog.open(direction, is_forced=is_forced)
        try:
            if added := list(add):
                put(opening.truth, *added)
            return opening.truth.epoch
        finally:
            opening.close()

    def open_stash(self, *, add: Iterable[str] = ()) -> int:
        """Open the stash alone."""
        with self.ends.stash.open(OpenMode.WRITABLE, generation=self.settings.generation, clock=self.clock) as handle:
            if added := list(add):
                put(handle, *added)
            return handle.epoch

    def run_steps(self, steps: Sequence[Step], opening: Opening) -> Opening:
        """Take some steps of an open, which then stops there, as if it had died."""
        return run_steps(self.ends, opening, steps)

    def die_after(self, direction: Direction, step: Step) -> None:
        """Begin an open and never go on after ``step``."""
        steps = PROTOCOL[direction]
        self.run_steps(steps[: steps.index(step) + 1], Opening(direction=direction)).close()

    def setting_names(self) -> set[str]:
        """The names of the settings in the truth, as a task sees them."""
        with self.catalog.join() as handle:
            return names(handle)

    def setting_names_of(self, name: str) -> set[str]:
        """The names of the settings in one back end, whichever is the truth."""
        with self.look_at(name) as handle:
            return names(handle)

    def counts_of(self, name: str) -> dict[str, int]:
        """The items of one back end by kind, whichever is the truth."""
        with self.look_at(name) as handle:
            return handle.snapshot().counts()

    def look_at(self, name: str) -> Handle:
        end = self.ends.stash if name == "stash" else self.ends.persist
        return end.open(OpenMode.READ_ONLY, generation=self.settings.generation, clock=self.clock)

    def truth(self) -> str:
        return self.catalog.truth().name

    def epochs(self) -> tuple[int | None, int | None]:
        return self.ends.stash.head().epoch, self.ends.persist.head().epoch

    def dumps(self) -> tuple[list[str], list[str]]:
        """Every durable record of both."""
        return list(self.ends.stash.dump()), list(self.ends.persist.dump())


def _no_spark() -> NoReturn:
    raise AssertionError("declare the columns of the source: Spark is not to be asked")
