# SPDX-License-Identifier: Apache-2.0
"""The pictures of the quick start: real commands, run here, what they print written as SVG.

`make screenshots` runs them with the software GPU and a VM of this machine. Not part of any test:
what a command prints is tested elsewhere, this only draws it.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from framework.demo import BUILT_PROGRAM
from framework.guest_image import guest_image
from framework.host_services import (
    REPOSITORY,
    environment,
    kvgpud,
    libvirt,
    python_module,
    virsh,
)
from framework.packages import built_repo, use_repo_command
from framework.vm import AS_NOBODY, Vm
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURES = REPOSITORY / "docs" / "screenshots"
LOGS = REPOSITORY / "build" / "screenshots"
COLUMNS = 100
# What runs here is what was built; shown are the places where the package has it.
INSTALLED = {
    str(REPOSITORY / "build/release/host/worker"): "/usr/libexec/kvgpu",
    str(REPOSITORY / "build/release/host/software_gpu"): "/usr/libexec/kvgpu/software_gpu",
}
NAME = "alice"
# No fonts from elsewhere: the reader's own will do.
CODE_FORMAT = """<svg viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
{styles}
</style>
<defs>
{lines}
</defs>
<rect fill="#1d1f21" width="{width}" height="{height}" rx="8"/>
<g transform="translate(8, 8)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Screen:
    """One picture: prompts, commands, and what they print."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(
            record=True, width=COLUMNS, file=Path(os.devnull).open("w"), force_terminal=True
        )

    def host(self, shown: str, command: list[str]) -> None:
        """Run `command` on a terminal of its own; it is shown as `shown`."""
        self._prompt("admin@host", shown)
        text = _on_a_terminal(command)
        for built, installed in INSTALLED.items():
            text = text.replace(built, installed)
        self._console.print(Text.from_ansi(text))

    def kvgpu(self, *arguments: str) -> None:
        shown = " ".join(("kvgpu", *arguments))
        self.host(shown, python_module("kvgpu.host.cli", *arguments))

    def guest(self, vm: Vm, shown: str, command: str = "") -> None:
        self._prompt(f"user@{NAME}", shown)
        output = vm.run(f"cd /tmp; {{ {command or shown}; }} 2>&1", timeout_s=240)
        progress = re.compile(r"[^\n]*\r(?!\n)")  # a terminal would have written over it
        self._console.print(Text(progress.sub("", output.stdout).rstrip("\n")))

    def save(self) -> None:
        PICTURES.mkdir(exist_ok=True)
        svg = self._console.export_svg(
            title="", theme=MONOKAI, code_format=CODE_FORMAT, unique_id=self._name
        )
        (PICTURES / f"{self._name}.svg").write_text(re.sub(r" +$", "", svg, flags=re.MULTILINE))

    def _prompt(self, who: str, command: str) -> None:
        self._console.print(Text.assemble((f"{who}:~$ ", "bold green"), (command, "bold")))


def _on_a_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment() | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"},
    )
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
        while piece := os.read(ours, 65536):
            text += piece
    os.close(ours)
    process.wait()
    return text.decode().replace("\r\n", "\n").rstrip("\n")


@contextlib.contextmanager
def _screen(name: str) -> Iterator[Screen]:
    screen = Screen(name)
    yield screen
    screen.save()
    print(f"screenshots: {name}.svg")


def _host() -> None:
    with _screen("host") as screen:
        screen.kvgpu("check")
        screen.kvgpu("host", "status")
        screen.kvgpu("gpu", "list")
    with _screen("run") as screen:
        arguments = ("run", "--", str(BUILT_PROGRAM))
        screen.host("kvgpu run -- ./demo", python_module("kvgpu.host.cli", *arguments))


def _vm() -> None:
    vm = Vm(NAME, guest_image(), [built_repo(), BUILT_PROGRAM])
    with vm:
        with _screen("define") as screen:
            arguments = ("--memory=1GiB", "--compute=25", "--ram=1GiB", "--dry-run")
            screen.kvgpu("vm", "xml", "bob", *arguments)
            screen.host(f"sudo virsh start {NAME}", ["virsh", "start", NAME])
            vm.wait_for_boot()
        with _screen("guest") as screen:
            vm.check(use_repo_command("/payload/repo"))
            install = "DEBIAN_FRONTEND=noninteractive apt-get install -y kvgpu-guest"
            screen.guest(vm, "sudo apt install kvgpu-guest", install)
            screen.guest(vm, "kvgpu-check")
            screen.guest(vm, "./demo", f"{AS_NOBODY} /payload/demo")
        running = vm.spawn(f"{AS_NOBODY} /payload/demo; {AS_NOBODY} /payload/demo")
        with _screen("sessions") as screen:
            screen.kvgpu("vm", "list")
            screen.kvgpu("session", "list")
        vm.wait(running, timeout_s=240)


def main() -> None:
    """Draw all pictures anew."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with libvirt(LOGS), kvgpud(LOGS):
        virsh("uri")
        _host()
        _vm()


if __name__ == "__main__":
    main()
