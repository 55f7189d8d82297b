from __future__ import annotations

import pytest

from tests.support.storage import ingestion, sink
from tidemark.errors import CorruptState
from tidemark.frontier import EMPTY
from tidemark.storage.commands import (
    KINDS,
    AllowCompaction,
    AllowWrites,
    Command,
    CreateIngestionDataflow,
    DropDataflow,
    InitializationComplete,
    ResumePoint,
    RunIngestion,
    RunSink,
    RunSinkDataflow,
    SuspendAndRestart,
    UpdateConfiguration,
    command_json,
    kind_of,
    parse_command,
)

POINTS = {"a": ResumePoint(7, {"0": 12, "1": 0}), "b": ResumePoint(EMPTY)}
COMMANDS: list[Command] = [
    RunIngestion("a", ingestion(1, "a", "b")),
    RunSink("s", sink(), 5),
    AllowCompaction("a", 9),
    AllowCompaction("a", EMPTY),
    InitializationComplete(),
    AllowWrites(),
    UpdateConfiguration({"every": "5s"}),
    CreateIngestionDataflow("a", ingestion(1, "a", "b"), 3, POINTS),
    RunSinkDataflow("s", sink(), EMPTY),
    DropDataflow(("a", "s")),
    SuspendAndRestart("a", "Unreachable: the broker", 4),
]


def test_each_command_is_the_same_after_a_way_through_json() -> None:
    assert [parse_command(kind_of(each), command_json(each)) for each in COMMANDS] == COMMANDS
    assert {kind_of(each) for each in COMMANDS} == {*KINDS}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("run-dance", "{}", "no command of the kind 'run-dance'"),
        ("allow-compaction", '{"id": "a"}', "since: Field required"),
        ("allow-compaction", '{"id": "a", "since": -1}', "-1 is no frontier"),
        ("allow-compaction", '{"id": "a", "since": true}', "True is no frontier"),
        ("allow-compaction", '{"id": 1, "since": 1}', "id: Input should be a valid string"),
        ("allow-writes", '{"until": 1}', "until"),
        ("allow-writes", "{", "Invalid JSON"),
        ("run-sink", '{"id": "s", "as_of": 1, "description": {"definition": "", "collection": "c", "x": 1}}', "x"),
    ],
)
def test_what_is_no_command_is_refused_with_the_reason(kind: str, text: str, message: str) -> None:
    with pytest.raises(CorruptState, match=message) as refusal:
        parse_command(kind, text)
    assert "newer Tidemark" in refusal.value.hint
