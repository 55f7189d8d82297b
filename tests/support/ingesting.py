"""Collections that read a file buffer, in a home of their own, ingested in this process unless a test brings Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.support.clock import SteppedClock
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.mode import switch_mode
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest.ingest import Engine, choose_ingested, ingest_all
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.deployment import Mode
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import CollectionReport, Report
    from tidemark.settings import Settings

SCHEMA = "id bigint, name string"


class Ingesting:
    """A file buffer of ``sequencers``, and collections that read it."""

    def __init__(self, settings: Settings, folder: Path, sequencers: int = 2) -> None:
        self.settings, self.folder = settings, folder
        self.shards, self.clock = Shards.connect(settings), SteppedClock(1_000_000)
        self.buffer = open_folder(folder, sequencers=sequencers)
        self.written = 0

    @property
    def uri(self) -> str:
        return self.folder.as_uri()

    def write(self, sequencer_id: int, *payloads: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
        """Write messages as any producer may."""
        for payload in payloads:
            self.buffer.logs[sequencer_id].append(encode_message(Message(payload, headers, self.clock.now_ms())))

    def write_rows(self, sequencer_id: int, count: int) -> None:
        """Write as many messages of one row each, with ids that no other row has."""
        for _ in range(count):
            self.write(sequencer_id, json.dumps({"id": self.written, "name": f"s{sequencer_id}"}).encode())
            self.written += 1

    def declare(self, name: str = "events", **more: Any) -> Declaration:
        source = {"buffer": self.uri, **more.pop("source", {})}
        fields = {"name": name, "kind": "append-only", "schema": SCHEMA, "source": source, **more}
        declaration = Declaration.model_validate(fields)
        self.shards.create(
            name, schema=to_iceberg(parse_columns(declaration.columns_text or "")), kind=ShardKind.APPEND_ONLY
        )
        registry = deployment_of(self.settings).registry
        registry.replace([declaration], seen=registry.read())
        return declaration

    def run(self, *names: str, **engine: Any) -> Report:
        deployment = deployment_of(self.settings, clock=self.clock)
        chosen = choose_ingested(deployment, names)
        report, left = ingest_all(self.shards, deployment, chosen, clock=self.clock, engine=Engine(**engine), silent={})
        assert not left
        return report

    def ingest(self, name: str = "events", **engine: Any) -> CollectionReport:
        return self.run(name, **engine).collections[name]

    def switch(self, mode: Mode) -> None:
        switch_mode(self.shards, deployment_of(self.settings, clock=self.clock), mode, who="tests", why="a test")

    def of_generation(self, generation: int) -> Ingesting:
        other = object.__new__(Ingesting)
        other.__dict__ = {**self.__dict__, "settings": replace(self.settings, generation=generation)}
        return other

    def shard(self, name: str = "events") -> Shard:
        return self.shards.open(name)

    def rows(self, name: str = "events") -> list[dict[str, Any]]:
        """Return what any engine sees."""
        found: list[dict[str, Any]] = self.shard(name).load().table.scan().to_arrow().to_pylist()
        return found

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
