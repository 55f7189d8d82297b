"""Data frames that a program hands over: declared like other sources, but never opened by a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NoReturn

from tidemark.collections.sources.formats.source import Source
from tidemark.errors import UsageError

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import Opening
    from tidemark.collections.sources.pins import Looking

BY_A_PROGRAM: Final = "a program hands its rows over, by `reconcile_frame` or `apply_changes`"


class FrameSource(Source):
    """The rows of ``reconcile_frame`` and ``apply_changes``; between two calls they are nowhere else than stored."""

    form = "frame"
    takes_no_events = "is of no use: the program that hands the rows over knows when they change; leave it out"

    format: Literal["frame"]

    @property
    def inputs_read(self) -> tuple[Source, ...]:
        return ()

    def find_state(self, looking: Looking, where: str) -> None:  # noqa: ARG002 - the signature of Source
        return None

    def open(self, opening: Opening, where: str) -> NoReturn:  # noqa: ARG002 - the signature of Source
        raise UsageError(f"{where} is no place to read: {BY_A_PROGRAM}", hint="call one of them: docs/library.md")
