# SPDX-License-Identifier: Apache-2.0
"""What the commands share: kvgpud's answers, tables, JSON, options."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgpu.host.client import ApiClient
from kvgpu.host.messages import Request

if TYPE_CHECKING:
    from kvgpu.host.check import Finding

RuntimeDir = Annotated[
    Path, typer.Option(envvar="KVGPU_RUNTIME_DIR", help="Where kvgpud's socket is.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Nothing is cut where a program reads: a pipe has no width. What names say is no markup.
console = Console(
    soft_wrap=True, highlight=False, markup=False, width=None if sys.stdout.isatty() else 400
)


def ask(runtime_dir: Path, request: Request) -> dict[str, Any]:
    """Return the fields of kvgpud's answer; DaemonError if there is none or it is an error."""
    with ApiClient(runtime_dir) as api:
        reply = api.ask(request)
    reply.pop("ok")
    return reply


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print rows under their columns' names; without rows, the names alone."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def print_fields(fields: dict[str, Any]) -> None:
    """Print one line for each field, its name and its value."""
    width = max(map(len, fields))
    for name, value in fields.items():
        console.print(f"{name:{width}}  {value}")


def print_findings(findings: Iterable[Finding], as_json: bool) -> None:
    """Print what was looked at, and what is to be done; Exit 1 where something failed."""
    found = list(findings)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        colours = {"ok": "green", "warning": "yellow", "failed": "red"}
        for finding in found:
            state = (f"{finding.state:8}", colours[finding.state])
            console.print(Text.assemble(state, f"{finding.what}: {finding.detail}"))
            if finding.to_do:
                console.print(f"        to do: {finding.to_do}")
    if any(finding.state == "failed" for finding in found):
        raise typer.Exit(1)
