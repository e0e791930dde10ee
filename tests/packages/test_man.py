# SPDX-License-Identifier: Apache-2.0
"""The manual pages of the packages, as `man` shows them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from framework.chroot import Chroot

from kvgpu.host.cli import app

pytestmark = pytest.mark.timeout(900)  # the first one makes the roots

SHOW = "MANWIDTH=200 MAN_KEEP_FORMATTING= man --warnings=all"


def commands(group: typer.core.TyperGroup, name: str) -> Iterator[tuple[str, object]]:
    for verb, command in group.commands.items():
        yield f"{name} {verb}", command
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{name} {verb}")


def test_man_page_of_kvgpu_has_every_verb_and_option(host: Chroot) -> None:
    page = host.check(f"{SHOW} kvgpu")
    assert "warning:" not in page, page
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    found = dict(commands(group, "kvgpu"))
    assert "kvgpu vm xml" in found
    for name, command in found.items():
        chapter = page.partition(f"\n{name}\n")[2]
        assert chapter, f"no chapter {name}"
        for parameter in command.params:  # type: ignore[attr-defined]
            for option in parameter.opts:
                assert option in chapter, f"{name}: {option} is missing"


@pytest.mark.parametrize("page", ["kvgpu.1", "kvgpud.8"])
def test_man_knows_what_the_page_is_about(host: Chroot, page: str) -> None:
    name, section = page.split(".")
    assert f"{name} - " in host.check(f"{SHOW} {section} {name}")
    host.check(f"lexgrog /usr/share/man/man{section}/{page}.gz")


def test_man_pages_of_the_guest(ready: Chroot) -> None:
    ready.install("kvgpu-guest")
    for name, section, words in (
        ("kvgpu-check", 1, ["--json", "Exit status"]),
        ("kvgpu-smi", 1, ["--json", "Exit status"]),
        ("kvgpu-agentd", 8, ["--region", "--socket"]),
    ):
        page = ready.check(f"{SHOW} {section} {name}")
        assert f"{name} - " in page
        assert [word for word in words if word not in page] == []
