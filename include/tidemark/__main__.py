"""`python -m tidemark` is `tidemark`."""

from __future__ import annotations

import sys

from tidemark.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
