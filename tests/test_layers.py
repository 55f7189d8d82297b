"""How the library hangs together: imports go down only and never in a circle, folders stay small, one name for all.

Every edge that goes up is named, and so is every way from a DAG file to Spark.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUNDATION = [
    "tidemark.settings",
    "tidemark.errors",
    "tidemark.exit_codes",
    "tidemark.locations",
    "tidemark.secrets",
    "tidemark.secrets.redaction",
    "tidemark.secrets.database_uri",
    "tidemark.frontier",
    "tidemark.clock",
    "tidemark.retry",
    "tidemark.atomic_files",
    "tidemark.report",
    "tidemark.fail_points",
    "tidemark.interval",
    "tidemark.spark.toolchain",
    "tidemark.spark.class_archive",
    "tidemark.spark.conf",
    "tidemark.spark.quoting",
    "tidemark.spark.jars",
]
# Lowest first. A prefix stands for the module of that name and for everything inside it.
LAYERS = (
    FOUNDATION,
    ["tidemark.iceberg"],
    ["tidemark.collections"],
    ["tidemark.catalog", "tidemark.write_buffer", "tidemark.lifecycle"],
    ["tidemark.ingest", "tidemark.sinks"],
    ["tidemark.storage"],
    ["tidemark.deployment"],
    ["tidemark.spark", "tidemark.entry_points"],  # the start of a process: nothing below may open a session
    ["tidemark.__init__"],  # what a program may import
    ["tidemark.orchestration"],
    ["tidemark.cli", "tidemark.__main__", "dags", "plugins", "spark_apps"],
    ["examples", "bench", "tools"],
)
UPWARD_ON_PURPOSE = {
    # In annotations alone: an error names the tokens that it tells apart.
    ("tidemark.errors", "tidemark.iceberg.shard.token"),
    # The version alone, which stands there for everybody to find.
    ("tidemark.collections.system.findings", "tidemark"),
}
PURE = [
    *FOUNDATION,
    "tidemark.entry_points",
    "tidemark.iceberg.shard.token",
    "tidemark.iceberg.shard.ledger",
    "tidemark.iceberg.shard.state",
    "tidemark.iceberg.shard.state_reader",
    "tidemark.iceberg.leases.holding",
    "tidemark.iceberg.leases.watching",
    "tidemark.iceberg.leases.protection",
    "tidemark.collections.mode",
    "tidemark.collections.holds",
    "tidemark.collections.deployment",
    "tidemark.collections.schema.types",
    "tidemark.collections.schema.ddl",
    "tidemark.collections.declarations.collection",
    "tidemark.collections.declarations.files",
    "tidemark.collections.declarations.lifecycle",
    "tidemark.collections.append.ways_in",
    "tidemark.collections.system.declarations",
    "tidemark.collections.system.rules",
    "tidemark.ingest.buffer_log",
    "tidemark.ingest.partitions.arrivals",
    "tidemark.ingest.partitions.state",
    "tidemark.ingest.plan",
    "tidemark.write_buffer.address",
    "tidemark.write_buffer.formats.decode",
    "tidemark.write_buffer.formats.entry",
    "tidemark.write_buffer.split_files",
    "tidemark.write_buffer.memory",
    "tidemark.write_buffer.reader",
    "tidemark.catalog.items.item",
    "tidemark.catalog.items.kinds",
    "tidemark.catalog.items.contents",
    "tidemark.catalog.items.transaction",
    "tidemark.catalog.items.data_versions",
    "tidemark.catalog.back_end",
    "tidemark.catalog.items.replace_all",
    "tidemark.catalog.stash.stash",  # sensors read its head
    "tidemark.catalog.persist.persist",  # and its
    "tidemark.catalog.persist.records",
    "tidemark.catalog.opening.opening",
    "tidemark.catalog.opening.protocol",
    "tidemark.catalog.opening.catalog",
    "tidemark.catalog.opening.truth",
    "tidemark.catalog.deployment.membership",
    "tidemark.catalog.deployment.modes",
    "tidemark.catalog.deployment.registry",
    "tidemark.catalog.deployment.deployment",
    "tidemark.catalog.opening.dry_run",
    "tidemark.storage.board",
    "tidemark.storage.commands",
    "tidemark.storage.definitions",
    "tidemark.storage.effects",
    "tidemark.storage.order",
    "tidemark.storage.history",
    "tidemark.storage.reconciliation",
    "tidemark.storage.processes.supervision",
    "tidemark.storage.running",
    "tidemark.storage.sharing",
    "tidemark.storage.view",
    "tidemark.storage.worker",
    "tidemark.storage.controller",
]
PURE_FOLDERS = ("tidemark.collections.sources.formats.", "tidemark.lifecycle.")
HEAVY = {"pyspark", "pyiceberg", "pyarrow", "pandas", "py4j"}
CLOCKLESS = (
    "tidemark.iceberg",
    "tidemark.collections",
    "tidemark.write_buffer",
    "tidemark.ingest",
    "tidemark.lifecycle",
    "tidemark.sinks",
)
FOLDERS = ("include", "dags", "plugins", "spark_apps", "examples", "bench", "tools")
MOST_MODULES = 14  # of a folder that a reader still takes in at a glance
# `include/` is on the path: under a second name every class would exist twice, and no `isinstance` would match.
SECOND_NAME = re.compile(r"(?:\bfrom|\bimport|(?<!\S)-m)\s+include\b|\binclude\.tidemark\b")


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    line: int
    at_import: bool  # executed when the module is imported: not in a function, not for the type checker alone


@cache
def modules() -> dict[str, str]:
    """Every module of the project, with its path relative to the root."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((PROJECT_ROOT / folder).rglob("*.py")):
            relative = path.relative_to(PROJECT_ROOT)
            parts = relative.with_suffix("").parts[folder == "include" :]  # `include` is on the path, not a package
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = str(relative)
    return found


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    tree = ast.parse((PROJECT_ROOT / modules()[module]).read_text(encoding="utf-8"))
    return tuple(walk(tree, at_import=True))


def walk(node: ast.AST, *, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, "imports are absolute, so that they can be read and searched"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"  # `from tidemark import spark` names a module, too
                yield Import(inner if inner in modules() else str(child.module), child.lineno, at_import)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from walk(ast.Module(body=child.body, type_ignores=[]), at_import=False)
            yield from walk(ast.Module(body=child.orelse, type_ignores=[]), at_import=at_import)
        else:
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, at_import=at_import and not lazy)


def reachable_from(module: str) -> set[str]:
    """Every module that ``module`` needs, also for the type checker alone; not what stands above on purpose."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for target in targets_of(waiting.pop()) - found:
            found.add(target)
            waiting.append(target)
    return found


@cache
def targets_of(module: str) -> frozenset[str]:
    targets = {edge.target for edge in imports_of(module) if edge.target in modules()}
    return frozenset(each for each in targets - {module} if (module, each) not in UPWARD_ON_PURPOSE)


def circles() -> set[frozenset[str]]:
    """Groups of modules of which each one needs all others."""
    needs = {module: reachable_from(module) for module in modules()}
    in_a_circle = [module for module in needs if module in needs[module]]
    return {
        frozenset(other for other in in_a_circle if other in needs[module] and module in needs[other])
        for module in in_a_circle
    }


def layer_of(module: str) -> int | None:
    module = "tidemark.__init__" if module == "tidemark" else module
    for layer, prefixes in enumerate(LAYERS):
        if any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes):
            return layer
    return None


def way_to_heavy(module: str) -> list[str] | None:
    """The shortest chain of imports from ``module`` to a heavy package that importing it runs through."""
    ways, seen = deque([[module]]), {module}  # each module is looked at once, however many import it
    while ways:
        way = ways.popleft()
        for target in dict.fromkeys(edge.target for edge in imports_of(way[-1]) if edge.at_import):
            if target.split(".")[0] in HEAVY:
                return [*way, target]
            if target in modules() and target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return None


@pytest.fixture(scope="module", autouse=True)
def _all_imports() -> None:
    """Parse every module once, for all tests of this file."""
    for module in modules():
        imports_of(module)


def test_every_module_has_a_layer() -> None:
    homeless = [path for module, path in modules().items() if layer_of(module) is None]
    assert not homeless, "say in LAYERS where they belong"


def test_imports_go_down_only() -> None:
    upward = [
        f"{path}:{edge.line} {module} imports {edge.target}"
        for module, path in modules().items()
        for edge in imports_of(module)
        if edge.target in modules()
        and (layer_of(edge.target) or 0) > (layer_of(module) or 0)
        and (module, edge.target) not in UPWARD_ON_PURPOSE
    ]
    assert not upward


def test_no_circle_of_files() -> None:
    """Imports for the type checker count: what names another's type cannot be understood without it."""
    assert not [sorted(circle) for circle in circles()]


def test_no_folder_is_too_large_to_take_in() -> None:
    sizes: dict[str, int] = {}
    for path in (PROJECT_ROOT / "include").rglob("*.py"):
        folder = str(path.parent.relative_to(PROJECT_ROOT))
        sizes[folder] = sizes.get(folder, 0) + (path.name != "__init__.py")
    large = {folder: size for folder, size in sizes.items() if size > MOST_MODULES}
    assert not large, "find the noun that a part of them has in common"


def test_the_library_has_one_name() -> None:
    files = [
        path for folder in (*FOLDERS, "tests", "docs", ".ci") for path in sorted((PROJECT_ROOT / folder).rglob("*"))
    ]
    twice = [
        f"{path.relative_to(PROJECT_ROOT)}: {found[0]}"
        for path in [*files, *PROJECT_ROOT.glob("*")]
        if path.is_file() and path.suffix in {"", ".py", ".md", ".toml", ".yaml"}  # scripts have no suffix
        for found in SECOND_NAME.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not twice, "import it as `tidemark`"


@pytest.mark.parametrize("use", ["from {} import x", "import {}", "python -m {}", "-m {}.tidemark", "{}.tidemark.cli"])
def test_a_second_name_is_noticed_in_every_form(use: str) -> None:
    assert SECOND_NAME.search(use.format("include"))


@pytest.mark.parametrize("text", ["include/tidemark", "-m includes", "a column to include", "--m include"])
def test_other_uses_of_the_word_are_fine(text: str) -> None:
    assert not SECOND_NAME.search(text)


def test_only_orchestration_and_what_stands_above_knows_airflow() -> None:
    allowed = layer_of("tidemark.orchestration")
    assert allowed is not None
    knowing = [
        f"{path}:{edge.line} imports {edge.target}"
        for module, path in modules().items()
        for edge in imports_of(module)
        if edge.target.split(".")[0] == "airflow"
        and ((layer_of(module) or 0) < allowed or module.startswith(("spark_apps", "tidemark.cli")))
    ]
    assert not knowing


@pytest.mark.parametrize("module", [name for name in modules() if name.startswith(("dags.", "plugins."))])
def test_a_dag_file_loads_nothing_heavy(module: str) -> None:
    assert way_to_heavy(module) is None


@pytest.mark.parametrize("module", [*PURE, *(name for name in modules() if name.startswith(PURE_FOLDERS))])
def test_pure_modules_import_neither_spark_nor_iceberg(module: str) -> None:
    assert way_to_heavy(module) is None
    never = {"pyspark", "pyiceberg", "airflow"}  # not inside a function either
    assert not [edge for edge in imports_of(module) if edge.target.split(".")[0] in never]


def test_only_the_clock_reads_the_time() -> None:
    """Time comes in as an argument, so that a test can step it; ``time.monotonic`` measures, and is welcome."""
    readers = []
    for module, path in modules().items():
        if module == "tidemark.clock" or not module.startswith(CLOCKLESS):
            continue
        for node in ast.walk(ast.parse((PROJECT_ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.time", "time.time_ns", "datetime.now"}:
                readers.append(f"{path}:{node.lineno}")  # noqa: PERF401 -- a condition in two steps reads better
    assert not readers
