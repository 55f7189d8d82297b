from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.support.airflow_runs import Dags
from tests.support.warm_driver.start import warm_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.warm_driver.start import WarmSpark
    from tidemark.settings import Settings


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmSpark]:
    """What stands in for `spark-submit`."""
    with warm_spark(Path(tempfile.mkdtemp(prefix="warm-", dir=ROOT))) as warm:
        yield warm


@pytest.fixture
def dags(home: Settings, tmp_path: Path, warm: WarmSpark, monkeypatch: pytest.MonkeyPatch) -> Dags:
    """The project's DAGs, with a home of the test's own."""
    return Dags(home, tmp_path, warm, monkeypatch)
