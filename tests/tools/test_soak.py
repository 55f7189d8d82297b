from __future__ import annotations

import pytest

from tests.support.exploration import is_soak
from tools import soak


def test_modules_that_draw_are_found() -> None:
    modules = soak.exploring_modules()
    assert "tests/iceberg/commit/test_writer_stateful.py" in modules
    assert "tests/catalog/migration/test_real_schedules.py" in modules
    assert "tests/tools/test_settings.py" not in modules


def test_a_failure_ends_it_and_says_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, int]] = []

    def run(module: str, seed: int, _until: float) -> int:
        ran.append((module, seed))
        return 1 if len(ran) == 3 else 0

    monkeypatch.setattr(soak, "run_module", run)
    assert soak.soak(60, ["tests/a.py", "tests/b.py"]) == 1
    assert [module for module, _ in ran] == ["tests/a.py", "tests/b.py", "tests/a.py"]
    first, again, seed = (seed for _, seed in ran)
    assert first == again != seed
    repeat = f"SOAK_SEED={seed} python -m pytest -q -x --hypothesis-profile=soak --hypothesis-seed={seed}"
    assert f'{repeat} -m "not live" tests/a.py' in capsys.readouterr().out


@pytest.mark.slow
def test_the_end_of_the_time_is_no_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["0.05", "tests/test_interval.py"]) == 0
    assert "passed in 0.05 minutes" in capfd.readouterr().out


def test_an_ordinary_run_is_not_a_soak() -> None:
    assert not is_soak()
