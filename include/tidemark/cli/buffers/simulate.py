"""`tidemark buffer simulate`: try rules of a lifecycle before they are declared."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.console import print_json, print_line
from tidemark.cli.options import AsJson
from tidemark.lifecycle.simulator import Pattern, Simulation, parse_rules
from tidemark.lifecycle.simulator import simulate as run

Arrivals = Annotated[Pattern, typer.Option("--pattern", help="How rows arrive.")]
Rules = Annotated[
    list[str] | None, typer.Option("--rule", metavar="NAME=VALUE", help="A rule as in `lifecycle`; may be given again.")
]
Days = Annotated[int, typer.Option(min=1, metavar="N", help="For so many days.")]
Seed = Annotated[int, typer.Option(metavar="N", help="The same one gives the same days.")]


def simulate(
    *, pattern: Arrivals = Pattern.STEADY, rule: Rules = None, days: Days = 3, seed: Seed = 1, as_json: AsJson = False
) -> None:
    """Show what would be persisted when, and why, of rows that are made up; nothing is read or written.

    They have partitions of an hour and no size, so that limits count rows. Rules that are not given have defaults.
    """
    simulation = Simulation(parse_rules(rule or []))
    events = []
    for event in run(simulation, pattern, days=days, seed=seed):
        if as_json:
            events.append(event)
        else:
            print_line(event)
    totals = {name: getattr(simulation, name) for name in ("arrived", "persisted", "files", "most_open", "reopened")}
    if as_json:
        print_json({"events": events, **totals})
    else:
        print_line(
            f"{simulation.arrived:,} rows arrived, {simulation.persisted:,} are persisted in {simulation.files:,} "
            f"files; at most {simulation.most_open:,} were open at once, and late rows reopened "
            f"{simulation.reopened:,} partitions"
        )
