# SPDX-License-Identifier: Apache-2.0
"""Rules that hold for every tracked file."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LICENCE_LINE = "SPDX-License-Identifier: Apache-2.0"
SOURCE_SUFFIXES = {".py", ".h", ".cpp", ".c", ".cu", ".sh"}
LICENCE_WITHIN_LINES = 5
MAX_LINES = 500  # past ~400 lines a file has a seam; tables and generated files are exempt

# Spelt so that this file does not match itself.
OUTSIDE_THE_PROJECT = re.compile(
    r"\.\./" + r"shared\b|/wo" + r"rk/(?!lib)|/root/\.py" + r"env|/opt/py" + r"pi"
)


@cache
def tracked_files() -> tuple[Path, ...]:
    """List what git tracks, without symlinks and deleted files."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def sources() -> list[Path]:
    return [path for path in tracked_files() if path.suffix in SOURCE_SUFFIXES]


def is_generated(path: Path) -> bool:
    return ".gen." in path.name or "generated" in path.parts


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_git_lists_the_sources() -> None:
    """Guard the other tests: an empty list would make them all pass."""
    assert ROOT / "protocol/include/kvgpu/control.h" in sources()


def test_sources_name_their_licence() -> None:
    missing = [
        path
        for path in sources()
        if path.stat().st_size
        and LICENCE_LINE not in "".join(path.read_text().splitlines(True)[:LICENCE_WITHIN_LINES])
    ]
    assert relative(missing) == []


def test_nothing_refers_to_the_outside() -> None:
    """The repository stands alone: no path of the machine it was written on."""
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if OUTSIDE_THE_PROJECT.search(line)
        ]
    assert found == []


def test_hand_written_files_stay_readable() -> None:
    long = [
        path
        for path in sources()
        if not is_generated(path) and len(path.read_text().splitlines()) > MAX_LINES
    ]
    assert relative(long) == []


@pytest.mark.parametrize("package", ["host", "protocol", "xml_templates"])
def test_folders_are_importable_only_as_kvgpu(package: str) -> None:
    assert importlib.util.find_spec(package) is None
    assert importlib.util.find_spec(f"kvgpu.{package}") is not None


def test_lock_pins_every_package_by_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert lock.count("==") > 0
    for block in re.split(r"\n(?=\S)", lock):
        if "==" in block.splitlines()[0]:
            assert "--hash=sha256:" in block, block.splitlines()[0]


def test_hook_imports_the_standard_library_only() -> None:
    """It runs with the system's Python at every start of every VM: nothing to install, no delay."""
    tree = ast.parse((ROOT / "host/libvirt_hooks/kvgpu").read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
    }
    assert imported
    assert imported <= sys.stdlib_module_names
