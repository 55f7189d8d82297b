"""The demo of buffers as a person runs it: a broker of its own, killed and restarted in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.kafka_demo import run_demo

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.kafka


def test_weather_comes_through_the_broker_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_demo(tmp_path / "demo")  # raises if an observation is missing or there twice
    shown = capfd.readouterr().out
    assert "exit code 69" in shown
    assert "26,115 rows in all" in shown
    assert "'warm' is no double" in shown
