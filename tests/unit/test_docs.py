# SPDX-License-Identifier: Apache-2.0
"""What the documentation says kvgpu prints and takes: messages, commands and their options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kvgpu.host import errors
from kvgpu.host.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
# Raised for peers and programmers, not for people who can do something about it.
SILENT = {"ProtocolError"}
# What they say becomes part of a message that has a hint, or nobody can do anything.
PARTS = {"allocator.py", "inventory.py", "range_freer.py"}


@pytest.fixture(scope="module")
def sources() -> str:
    """All text that the programs could print, without quotes, so that split literals join."""
    files = [p for d in ("host", "guest") for p in (ROOT / d).rglob("*") if p.is_file()]
    texts = [p.read_text(errors="replace") for p in files if p.suffix in (".py", ".cpp", ".h", "")]
    return re.sub(r'"\s*(f?")?', "", "\n".join(texts))


def quoted_messages() -> list[str]:
    lines = (ROOT / "docs/troubleshooting.md").read_text().splitlines()
    return [m[1] for line in lines if (m := re.match(r"\| `(.+?)`(?: …)? \|", line))]


@pytest.mark.parametrize("message", quoted_messages())
def test_message_that_is_explained_exists(message: str, sources: str) -> None:
    for piece in filter(None, (piece.strip() for piece in message.split("…"))):
        assert piece in sources, f"{piece!r} is in no source file"


def test_messages_are_explained() -> None:
    assert len(quoted_messages()) > 25


def raised_errors() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "host").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield f"{path.name}:{node.lineno}", node.exc


def test_every_error_for_people_says_what_to_do() -> None:
    silent = []
    for place, call in raised_errors():
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        is_silent = name in SILENT or place.split(":")[0] in PARTS
        if not hasattr(errors, name) or is_silent:
            continue
        passes_on = any(isinstance(argument, ast.Starred) for argument in call.args)
        if not passes_on and not any(keyword.arg == "hint" for keyword in call.keywords):
            silent.append(place)
    assert silent == []


def documented_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = re.sub(r"\\\n\s*", "", page.read_text())
        blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`(kvgpu [a-z][^`]*)`", text)
        for line in lines:
            for command in re.split(r"\s[|#&]\s?", line.removeprefix("sudo ")):
                if re.match(r"\s*kvgpu (?!software GPU)[a-z]+(\s|$)", command):
                    yield page.name, command.strip()


@pytest.mark.parametrize(("page", "line"), sorted(set(documented_commands())))
def test_command_is_one_of_kvgpus(page: str, line: str) -> None:
    words = line.split()[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        if "|" in words[0]:  # attach|detach
            words[:1] = [words[0].split("|")[0]]
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    for word in words:
        if word == "--":
            break
        if word.startswith("--"):
            assert word.split("=")[0] in known, line


USERS_PAGES = [page for page in PAGES if page.name != "architecture.md"]


@pytest.mark.parametrize("page", USERS_PAGES, ids=lambda page: str(page.name))
def test_virsh_is_asked_for_the_hosts_vms(page: Path) -> None:
    """A user's own libvirt, qemu:///session, runs no hook."""
    text = page.read_text()
    code = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", text)
    assert [
        part for part in code if re.search(r"(?<!sudo )virsh (?!-c qemu:///system)", part)
    ] == []
