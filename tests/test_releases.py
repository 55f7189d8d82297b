"""What earlier releases wrote is read as they read it, and worked on; `python -m tools.keep_release` keeps it."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.orchestration.status_page.observed import Observer
from tidemark.settings import Settings
from tools.keep_release import EXPECTED, FOLDER, RELEASES, environment, read_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow  # the whole command line, command by command


@pytest.fixture(params=sorted(RELEASES.glob("*.tar.gz")), ids=lambda path: path.name.removesuffix(".tar.gz"))
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The home of a release; what that release read there."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    with tarfile.open(request.param) as archive:
        archive.extractall(FOLDER.parent, filter="data")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    yield json.loads((FOLDER / EXPECTED).read_text())
    shutil.rmtree(FOLDER)


@pytest.fixture
def tidemark(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        capsys.readouterr()
        code, said = app([*arguments]), capsys.readouterr()
        assert code == 0, said
        return said.out

    return run


def test_everything_is_read_as_that_release_read_it(kept: dict[str, Any], tidemark: Callable[..., str]) -> None:
    assert read_everything(tidemark) == kept


def test_the_page_shows_what_that_release_recorded(kept: dict[str, Any]) -> None:
    seen = Observer(Settings.load(os.environ), SystemClock()).look()
    shown = {name for (name, _), summary in seen.history.summaries.items() if summary.runs}
    assert shown
    assert shown <= {*seen.contents.objects}
    assert all(seen.history.runs((name, known.id)) for name, known in seen.contents.objects.items() if name in shown)


def test_everything_goes_on(kept: dict[str, Any], tidemark: Callable[..., str]) -> None:
    tidemark("mode", "read-write")
    tidemark("flush")
    assert ids(tidemark, "visits") == [1, 2, 3], "what was staged is there"
    rows = FOLDER / "rows.json"
    rows.write_text('{"id": 4, "name": "later"}\n')
    tidemark("append", "visits", "--producer", "desk", "--range", "3:4", str(rows))
    for table, row in (("arrivals", '{"id": 2, "amount": 1.25}'), ("latest", '{"id": 1, "name": "newest"}')):
        rows.write_text(f"{row}\n")
        tidemark("buffer", "write", "kept", str(rows), "--table", table, "--key", "id")
    tidemark("buffer", "ingest")
    tidemark("sink", "run")
    assert tidemark("apply", str(FOLDER / "declared.yaml")).startswith("unchanged: planes, visits, arrivals")
    tidemark("catalog", "migrate")
    assert (ids(tidemark, "visits"), ids(tidemark, "arrivals")) == ([1, 2, 3, 4], [1, 2])
    assert json.loads(tidemark("read", "latest", "--json"))["rows"] == [{"id": 1, "name": "newest"}]
    tidemark("doctor", "--deep")


def ids(tidemark: Callable[..., str], name: str) -> list[int]:
    return sorted(row["id"] for row in json.loads(tidemark("read", name, "--json"))["rows"])
