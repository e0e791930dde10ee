# SPDX-License-Identifier: Apache-2.0
"""Each verb of the command `kvgpu`, tried beside a VM that computes; the table is printed (-s)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import typer.main
from framework.host_services import environment, python_module, virsh
from framework.linger import sessions, start_linger
from framework.vm import Vm

from kvgpu.host.cli import app

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]
Check = Callable[[Any], bool]


class Try(NamedTuple):
    """A call, what its JSON has to say, and what it prints for people."""

    verb: str
    arguments: list[str]
    says: str
    holds: Check | None = None  # None: it has no JSON


def verbs(command: Any, name: str = "") -> Iterator[str]:
    """Yield the names of all commands below `command`."""
    commands = getattr(command, "commands", None)
    if commands is None:
        yield name
    else:
        for child, below in commands.items():
            yield from verbs(below, f"{name} {child}".strip())


def tries(vm: Vm, session: int) -> list[Try]:
    uuid, number = vm.uuid(), str(session)
    slices = ["--memory=1GiB", "--pinned=256MiB"]
    return [
        Try("check", [], "one tenant's trust", lambda found: len(found) > 8),
        Try("host status", [], "1 VM(s), 1 session(s)", lambda s: s["n_sessions"] == 1),
        Try("gpu list", [], "kvgpu software GPU", lambda gpus: len(gpus) == 1),
        Try("run", ["--", "printenv", "KVGPU_SOCKET"], "/run/kvgpu"),
        Try("vm list", ["--all"], vm.name, lambda vms: uuid in [v["uuid"] for v in vms]),
        Try("vm show", [vm.name], uuid, lambda shown: shown["n_sessions"] == 1),
        Try("vm xml", ["new", *slices], "<domain type=", lambda made: "<domain " in made["xml"]),
        Try(
            "vm xml",
            ["new", *slices, "--dry-run"],
            "name: new is free",
            lambda found: [f["state"] for f in found if f["what"] == "XML"] == ["ok"],
        ),
        Try(
            "vm attach",
            [vm.name, *slices, "--dry-run"],
            "",
            lambda done: done["is_running"] and done["dry_run"],
        ),
        Try(
            "vm detach",
            [vm.name, "--dry-run"],
            "-    <channel type=",
            lambda done: any("org.kvgpu.0" in line for line in done["difference"]),
        ),
        Try("session list", [], "linger", lambda s: [i["session"] for i in s] == [session]),
        Try("session show", [number], "worker_pid", lambda info: info["vm"] == vm.name),
        Try("session logs", [number], "", lambda log: log["session"] == session),
        # the last one: what the others need is gone after it
        Try("session kill", [number], "", lambda done: done["killed"] == [session]),
    ]


def call(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        python_module("kvgpu.host.cli", *words),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_verb(vm: Vm) -> None:
    start_linger(vm, "tried")
    (info,) = sessions()
    before = virsh("dumpxml", "--inactive", vm.name)
    rows = []
    for verb, arguments, says, holds in tries(vm, info["session"]):
        words = [*verb.split(), *arguments]
        if verb == "session kill":  # it can be done once: by JSON
            people = ""
        else:
            done = call(words)
            assert done.returncode == 0 or verb == "check", done.stderr
            assert says in done.stdout, f"{words}: {done.stdout}"
            people = done.stdout
        if holds:
            as_json = call([*words, "--json"])
            assert holds(json.loads(as_json.stdout)), f"{words}: {as_json.stdout}"
        first = next(iter(people.splitlines()), "")[:60]
        rows.append(f"| `kvgpu {' '.join(words)}` | {'yes' if holds else 'none'} | {first} |")
    assert not sessions(), "session kill"
    assert virsh("dumpxml", "--inactive", vm.name) == before  # --dry-run
    assert {one.verb for one in tries(vm, 0)} == set(verbs(typer.main.get_command(app)))
    print("\n| tried | JSON | first line |\n|---|---|---|", *rows, sep="\n")
