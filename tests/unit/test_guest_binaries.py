# SPDX-License-Identifier: Apache-2.0
"""What guests install needs libc alone, of 2012 or later, and exports the driver's names only."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUEST = ROOT / "build/release/guest"
OLDEST_GLIBC = (2, 17)  # CentOS 7
LIBC = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"),
    "ld-linux-x86-64.so.2",
}
LIBCUDA, AGENT = "libcuda/libcuda.so.1", "agent/kvgpu-agentd"


def binaries() -> list[str]:
    """Return the ELF files of guest/*/, the two that must be there in any case."""
    found = {LIBCUDA, AGENT}
    for path in GUEST.glob("*/*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            found.add(str(path.relative_to(GUEST)))
    return sorted(found)


@cache
def objdump(option: str, binary: str) -> str:
    command = ["objdump", option, str(GUEST / binary)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbol_versions(binary: str) -> set[str]:
    """Return the versions of all symbols that the binary wants from others."""
    wanted = objdump("-p", binary).partition("Version References:")[2]
    return set(re.findall(r" ([A-Z]+_[A-Za-z0-9.]+)$", wanted, re.MULTILINE))


@pytest.mark.parametrize("binary", binaries())
def test_needs_libc_only(binary: str) -> None:
    needed = set(re.findall(r"^\s+NEEDED\s+(\S+)$", objdump("-p", binary), re.MULTILINE))
    assert "libc.so.6" in needed
    assert needed <= LIBC


@pytest.mark.parametrize("binary", binaries())
def test_wants_no_symbol_newer_than_glibc_2_17(binary: str) -> None:
    versions = symbol_versions(binary)
    assert "GLIBC_2.2.5" in versions, "the oldest of x86-64: objdump was understood"
    for version in versions:
        family, _, number = version.partition("_")
        assert family == "GLIBC", version
        assert tuple(int(part) for part in number.split(".")) <= OLDEST_GLIBC, version


def test_undefined_symbols_without_version_are_weak() -> None:
    """An old glibc may lack such a symbol: the loader must be content without it."""
    for binary in binaries():
        for line in objdump("-T", binary).splitlines():
            if "*UND*" in line and "GLIBC_" not in line:
                assert line.split()[1] == "w", line


def test_exports_exactly_the_driver_s_names() -> None:
    exported = {
        line.split()[-1]
        for line in objdump("-T", LIBCUDA).splitlines()
        if re.match(r"[0-9a-f]{16} ", line) and "*UND*" not in line
    }
    assert exported == set((ROOT / "tests/data/names-cuda13.txt").read_text().split())


def test_agent_exports_nothing() -> None:
    lines = objdump("-T", AGENT).splitlines()
    # An executable defines what libc wants to find in it, such as stdout's copy.
    functions = [line for line in lines if " DF " in line and "*UND*" not in line]
    assert functions == []


def test_library_stays_once_it_is_loaded() -> None:
    """A cudart closes it at exit, while threads of ours may run."""
    flags = re.findall(r"FLAGS_1\s+0x([0-9a-f]+)", objdump("-p", LIBCUDA))
    df_1_nodelete = 0x8  # <elf.h>
    assert int(flags[0], 16) & df_1_nodelete
