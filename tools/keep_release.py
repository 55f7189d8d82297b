"""Keep what this release writes, so that every later one is tested with it: `python -m tools.keep_release`.

Everything is written by the command line, below one folder of a fixed path, because Iceberg's files name each other by
their whole paths. Beside it lies what the release itself reads there. Run it once for each release, before it is out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER: Final = Path("/var/tmp/tidemark-kept")  # noqa: S108 - the same one wherever it is read
RELEASES: Final = Path(__file__).parents[1] / "tests" / "releases"
EXPECTED: Final = "expected.json"
COLLECTIONS: Final = ("planes", "visits", "arrivals", "latest")
_DECLARED = f"""
version: 1
collections:
  planes:
    kind: differential
    key: [tailnum]
    source: {{format: csv, path: {FOLDER}/planes.csv, schema: "tailnum string, seats int", options: {{header: true}}}}
  visits: {{kind: append-only, schema: "id bigint, name string"}}
  arrivals: {{kind: append-only, schema: "id bigint, amount decimal(9,2)", source: {{buffer: kept, table: arrivals}}}}
  latest: {{kind: latest, key: [id], schema: "id bigint, name string", source: {{buffer: kept, table: latest}}}}
sinks:
  copies: {{from: arrivals, to: {{path: {FOLDER}/copies}}, mode: changes}}
"""


def main() -> int:
    """Write the archive of this release."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    _write("planes.csv", "tailnum,seats", "N1,100", "N2,200")
    _write("visits.json", '{"id": 1, "name": "ada"}', '{"id": 2, "name": null}')
    _write("declared.yaml", _DECLARED)
    _tidemark("buffer", "create", "kept", "--sequencers", "2")
    _tidemark("apply", str(FOLDER / "declared.yaml"))
    _tidemark("reconcile", "planes")
    _write("planes.csv", "tailnum,seats", "N1,101", "N3,300")
    _tidemark("reconcile", "planes")
    _tidemark("append", "visits", "--producer", "desk", "--range", "0:2", str(FOLDER / "visits.json"))
    for table, lines in (
        ("arrivals", ('{"id": 1, "amount": 9.5}', '{"id": "no number"}')),
        ("latest", ('{"id": 1, "name": "old"}', '{"id": 1, "name": "new"}')),
    ):
        _write("rows.json", *lines)
        _tidemark("buffer", "write", "kept", str(FOLDER / "rows.json"), "--table", table, "--key", "id")
    _tidemark("buffer", "ingest")
    _tidemark("sink", "run")
    _tidemark("hold", "take", "planes", "reader")
    _tidemark("mode", "read-only")
    _write("visits.json", '{"id": 3, "name": "staged"}')
    _tidemark("append", "visits", "--producer", "desk", "--range", "2:3", str(FOLDER / "visits.json"))
    (FOLDER / EXPECTED).write_text(json.dumps(read_everything(_tidemark), indent=1) + "\n")
    RELEASES.mkdir(exist_ok=True)
    with tarfile.open(RELEASES / f"tidemark-{__version__}.tar.gz", "w:gz") as archive:
        archive.add(FOLDER, arcname=FOLDER.name)
    shutil.rmtree(FOLDER)
    return 0


def read_everything(tidemark: Callable[..., str]) -> dict[str, Any]:
    """Return the contents and the history of every collection; ``tidemark`` runs a command and returns its output."""

    def rows(*arguments: str) -> list[Any]:
        return sorted(json.loads(tidemark(*arguments, "--json"))["rows"], key=repr)

    found: dict[str, Any] = {}
    for name in COLLECTIONS:
        shown: dict[str, Any] = json.loads(tidemark("show", name, "--json"))
        found[name] = {
            "rows": rows("read", name, "--with-time"),
            "shown": {field: shown[field] for field in ("kind", "upper", "since", "rows", "holds", "ledger")},
        }
        if shown["kind"] != "append-only":
            found[name]["changes"] = rows("changes", name, "--from", "0", "--until", str(shown["upper"]))
    return found


def environment() -> dict[str, str]:
    """Return the settings of the kept home."""
    return {"TIDEMARK_HOME": str(FOLDER / "home"), "TIDEMARK_BUFFER_KEPT": (FOLDER / "buffer").as_uri()}


def _write(name: str, *lines: str) -> None:
    (FOLDER / name).unlink(missing_ok=True)
    (FOLDER / name).write_text("\n".join([*lines, ""]))


def _tidemark(*arguments: str) -> str:
    command = [sys.executable, "-m", "tidemark", *arguments]
    done = subprocess.run(command, env=os.environ | environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
