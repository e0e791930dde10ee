# SPDX-License-Identifier: Apache-2.0
"""Run clang-tidy over the hand-written files of a build's compile_commands.json.

A file is left out while nothing that clang-tidy saw when it last passed has changed: the stamp
beside the build is the hash of the compiler command, .clang-tidy and every project header's text.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_TIMEOUT_S = 300
LINTED_DIRS = ("guest", "host", "protocol", "tests", "benchmarks")


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit of the build."""

    path: Path
    command: str

    def stamp(self, stamp_dir: Path, common: str) -> Path:
        text = self.command + common + self.path.read_text()
        return stamp_dir / hashlib.sha256(text.encode()).hexdigest()


def units(build: Path) -> Iterator[Unit]:
    """Yield the hand-written C and C++ units."""
    seen: set[Path] = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(ROOT) or path in seen or not path.exists():
            continue
        relative = path.relative_to(ROOT)
        generated = "generated" in relative.parts or ".gen." in path.name
        if relative.parts[0] in LINTED_DIRS and path.suffix in {".c", ".cpp"} and not generated:
            seen.add(path)
            yield Unit(path, entry["command"])


def common_text() -> str:
    """Return the text of everything that any unit may include, and of the configuration."""
    headers = sorted(
        path for folder in LINTED_DIRS for path in (ROOT / folder).rglob("*.h") if path.is_file()
    )
    configuration = [ROOT / ".clang-tidy"]
    for folder in LINTED_DIRS:
        configuration += sorted((ROOT / folder).rglob(".clang-tidy"))
    return "".join(path.read_text() for path in [*configuration, *headers])


def check(tool: str, build: Path, unit: Unit, stamp: Path) -> bool:
    """Run clang-tidy on one unit; print what it found; leave the stamp if it found nothing."""
    run = subprocess.run(
        [
            tool,
            "-p",
            str(build),
            "--quiet",
            # The build is gcc's; clang does not know some of its warning flags and pragmas.
            "--extra-arg=-Wno-unknown-warning-option",
            "--extra-arg=-Wno-unknown-pragmas",
            str(unit.path),
        ],
        capture_output=True,
        text=True,
        timeout=FILE_TIMEOUT_S,
        check=False,
    )
    if run.returncode:
        print(f"clang-tidy: {unit.path.relative_to(ROOT)}\n{run.stdout}{run.stderr}", flush=True)
        return False
    stamp.touch()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()

    tool = shutil.which("clang-tidy", path=str(Path(sys.executable).parent))
    if tool is None:
        print("clang-tidy: not in .venv; run `make setup`", file=sys.stderr)
        return 1
    stamp_dir = options.build / "clang-tidy"
    stamp_dir.mkdir(exist_ok=True)
    common = common_text()
    everything = list(units(options.build))
    if not everything:
        print(f"clang-tidy: {options.build} compiles none of our files", file=sys.stderr)
        return 1
    todo = [(unit, unit.stamp(stamp_dir, common)) for unit in everything]
    todo = [(unit, stamp) for unit, stamp in todo if not stamp.exists()]
    print(f"clang-tidy: {len(todo)} of {len(everything)} files to look at", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        passed = list(pool.map(lambda job: check(tool, options.build, *job), todo))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
