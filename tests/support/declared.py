"""Applies declarations in this process, without the command line and without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.apply.execute import Application
from tidemark.collections.apply.inspect_source import SourceInspector
from tidemark.collections.declarations.files import load_declarations
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings


def declare(settings: Settings, path: Path) -> None:
    """Apply the file; its columns must all be declared."""
    shards = Shards.connect(settings)
    registry = deployment_of(settings).registry
    Application(
        shards=shards,
        registry=registry,
        inspector=SourceInspector(shards, settings, _no_spark),
        generation=settings.generation,
    ).run(load_declarations([path], registry.read().declarations))


def _no_spark() -> NoReturn:
    raise AssertionError("declare the columns of the source: Spark is not to be asked")
