"""Load ``airflow_settings.yaml`` without the Astro CLI: into the environment of a process, or into a live Airflow.

python -m tools.local_airflow.settings env             # lines for a shell or an .env file
python -m tools.local_airflow.settings load [--url …]  # create or update, over REST
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from tidemark.entry_points import UsageParser, exit_code_of
from tidemark.errors import ConfigurationInvalid, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.local_airflow.client import AirflowClient

SETTINGS_FILE = PROJECT_ROOT / "airflow_settings.yaml"
_CONNECTION_FIELDS = {  # the name in the file: the name in Airflow's REST interface
    "conn_type": "conn_type",
    "conn_host": "host",
    "conn_schema": "schema",
    "conn_login": "login",
    "conn_password": "password",
    "conn_port": "port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowSettings:
    """Connections, pools and variables, in the shape of Airflow's REST interface."""

    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = SETTINGS_FILE) -> AirflowSettings:
        """Read the file; entries without a name are skipped, as the Astro CLI does.

        Raises:
            ConfigurationInvalid: If the file is missing or malformed; the message names it.
        """
        try:
            return cls._parse(yaml.safe_load(path.read_text(encoding="utf-8"))["airflow"], path)
        except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise ConfigurationInvalid(f"{path} cannot be read as Airflow settings: {error!r}") from error

    @classmethod
    def _parse(cls, content: dict[str, Any], path: Path) -> AirflowSettings:
        return cls(
            connections={
                entry["conn_id"]: _connection(entry, path)
                for entry in content.get("connections") or []
                if entry.get("conn_id")
            },
            pools={
                entry["pool_name"]: {
                    "name": entry["pool_name"],
                    "slots": int(entry["pool_slot"]),
                    "description": entry.get("pool_description") or "",
                    "include_deferred": False,  # the file's format cannot say it, and REST asks for it
                }
                for entry in content.get("pools") or []
                if entry.get("pool_name")
            },
            variables={
                entry["variable_name"]: str(entry["variable_value"])
                for entry in content.get("variables") or []
                if entry.get("variable_name")
            },
        )

    def environment(self) -> dict[str, str]:
        """Return ``AIRFLOW_CONN_…`` and ``AIRFLOW_VAR_…``; pools have no such form."""
        connections = {
            f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(
                {name: value for name, value in connection.items() if name != "connection_id" and value is not None}
            )
            for conn_id, connection in self.connections.items()
        }
        return connections | {f"AIRFLOW_VAR_{key.upper()}": value for key, value in self.variables.items()}

    def load_into(self, client: AirflowClient) -> None:
        """Create or update everything in a live Airflow."""
        for conn_id, connection in self.connections.items():
            client.upsert(f"connections/{conn_id}", collection="connections", body=connection)
        for name, pool in self.pools.items():
            client.upsert(f"pools/{name}", collection="pools", body=pool)
        for key, value in self.variables.items():
            client.upsert(f"variables/{key}", collection="variables", body={"key": key, "value": value})


def _connection(entry: dict[str, Any], path: Path) -> dict[str, Any]:
    if not entry.get("conn_type"):
        raise ConfigurationInvalid(f"{path}: connection {entry['conn_id']!r} has no conn_type")
    extra = entry.get("conn_extra") or {}
    return {
        "connection_id": entry["conn_id"],
        **{theirs: entry.get(ours) for ours, theirs in _CONNECTION_FIELDS.items()},
        "extra": extra if isinstance(extra, str) else json.dumps(extra),
    }


def main(argv: Sequence[str]) -> int:
    """Run one of the two commands; see the module."""
    from tools.local_airflow.client import AirflowClient  # noqa: PLC0415 -- `env` needs no HTTP client

    parser = UsageParser(prog="airflow_settings", description=__doc__)
    parser.add_argument("command", choices=["env", "load"])
    parser.add_argument("--url", default=os.environ.get("AIRFLOW__API__BASE_URL", "http://localhost:8080"))
    arguments = parser.parse_args(argv)
    try:
        settings = AirflowSettings.read()
        if arguments.command == "env":
            for name, value in settings.environment().items():
                sys.stdout.write(f"{name}={shlex.quote(value)}\n")
            return ExitCode.OK
        # User and password come from the environment: arguments are public.
        with AirflowClient.login(
            arguments.url, user=os.environ.get("AIRFLOW_USER", ""), password=os.environ.get("AIRFLOW_PASSWORD", "")
        ) as client:
            settings.load_into(client)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code
    sys.stderr.write(f"loaded {len(settings.connections)} connections and {len(settings.pools)} pools\n")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
