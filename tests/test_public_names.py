"""What `import tidemark` gives a program: every public name, and nothing heavy before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import tidemark
from tidemark.settings import PROJECT_ROOT
from tidemark.write_buffer.registry import open_reader

HEAVY = ("pyspark", "pyarrow", "pyiceberg", "pydantic", "sqlalchemy", "airflow", "pandas", "numpy", "pendulum")


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh Python has loaded after ``code``."""
    shown = f"{code}\nimport sys; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", shown], text=True).split())


def test_importing_the_library_loads_nothing_else() -> None:
    # What .pth files of the environment load at the start of every Python is not ours.
    loaded = loaded_after("import tidemark; tidemark.__version__; dir(tidemark)") - loaded_after("")
    assert not [name for name in loaded if name.startswith(HEAVY)]
    assert {name for name in loaded if name.startswith("tidemark")} == {"tidemark"}


def test_settings_and_errors_stay_light() -> None:
    loaded = loaded_after("from tidemark import Settings, TidemarkError, errors") - loaded_after("")
    assert not [name for name in loaded if name.startswith(HEAVY)]


@pytest.fixture(scope="module")
def public() -> dict[str, object]:
    """Every public name with what it stands for; the first look loads Arrow and pyiceberg, for all tests together."""
    return {name: getattr(tidemark, name) for name in tidemark.__all__}


@pytest.mark.parametrize("name", tidemark.__all__)
def test_every_public_name_is_there_and_documented(name: str, public: dict[str, object]) -> None:
    assert public[name] is not None
    assert f"`{name}`" in (PROJECT_ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def test_a_public_name_is_the_very_object_of_its_module() -> None:
    assert tidemark.open_reader is open_reader
    assert set(dir(tidemark)) == set(tidemark.__all__)


def test_a_type_checker_sees_the_same_names() -> None:
    source = (PROJECT_ROOT / "include" / "tidemark" / "__init__.py").read_text(encoding="utf-8")
    (block,) = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    declared = {
        (node.module, alias.asname) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert declared == {("tidemark", "errors"), *((module, name) for name, module in tidemark._MODULE_OF.items())}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no public name 'Manager'"):
        _ = tidemark.Manager
