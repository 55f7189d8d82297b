"""`python -m tidemark` is `tidemark`."""

from __future__ import annotations

import sys

from tidemark.cli.app import app

if __name__ == "__main__":
    sys.exit(app())
