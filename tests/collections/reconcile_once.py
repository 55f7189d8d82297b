"""One reconcile of the declared collection ``c`` in a process that may die: ``python -m … small|large``."""

from __future__ import annotations

import os
import sys

from include.catalog.deployment import deployment_of
from include.collections import difference, large_corrections
from include.collections.run import reconcile_all
from include.settings import Settings
from include.spark import spark_session


def main(path: str) -> int:
    if path == "large":  # corrections of any size take the way of those that do not fit into the driver
        difference.candidates_fit_driver = lambda *_: False
        difference.fits_driver = large_corrections.fits_driver = lambda **_: False
    settings = Settings.load(os.environ)
    with spark_session(settings, app_name="dying", master="local[2]") as spark:
        return int(reconcile_all(spark, deployment_of(settings), ["c"]).exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
