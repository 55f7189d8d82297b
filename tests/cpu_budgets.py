"""How many CPU seconds the tests of a folder may take: 1.5 times what they took when last measured, and 5 more.

Two levels below ``tests``, in a whole run (`make test`). A folder that grows beyond its budget fails the run: make its
tests cheaper, or raise the number here, where everybody sees it. Where nothing else runs,
`PYTEST_ADDOPTS=--write-cpu-budgets make test` measures anew and writes this table.
"""

from __future__ import annotations

UNMARKED_TEST_S = 1.0
YARDSTICK_S = 0.016  # what `yardstick_s()` took there: all limits grow on a machine that is slower

BUDGETS_S: dict[str, int] = {}
