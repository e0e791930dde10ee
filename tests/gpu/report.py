# SPDX-License-Identifier: Apache-2.0
"""Merge what runs of tests/gpu/run.sh have seen into the table of docs/compatibility.md.

python report.py [--commit C] FOLDER...: each is the $OUT of a run of commit C (HEAD where it is not
said), or holds several of them. Writes tests/data/workloads.json, coverage.json and
random_programs.json, from which `make gen` makes tables (a row that no folder has stays), and
recorded/bad_calls.tsv, to which CI holds kvgpu.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from differential.differences import UNDEFINED, Results  # noqa: E402  (needs the path)
from differential.processes import merged, read, text_of  # noqa: E402
from gpu import coverage, random_programs  # noqa: E402

RECORDED = ROOT / "tests/data/workloads.json"
BAD_CALLS = ROOT / "tests/data/recorded/bad_calls.tsv"
PROGRAMS = {"libraries": "C++ on {}", "runtimes": "{}", "programs": "program `{}`"}


def gpu_of(folder: Path) -> str:
    """What `nvidia-smi` called the machine's GPU and driver; each run writes it down."""
    for place in (folder, *folder.parents):
        if (place / "gpu.txt").exists():
            return (place / "gpu.txt").read_text().splitlines()[0]
    raise SystemExit(f"report: no gpu.txt above {folder}: is it the $OUT of tests/gpu/run.sh?")


def workload_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of workloads/compare.py below a folder."""
    rows = {}
    for path in sorted(folder.rglob("workloads/*.json"), key=lambda path: path.stat().st_mtime):
        data = json.loads(path.read_text())
        if "problems" not in data:  # the record of one run
            continue
        native_s, remoted_s = data["pairs"].get("all", (None, None))
        rows[data["name"]] = {
            "title": data["title"],
            "compared": data["n_compared"],
            "native_s": native_s,
            "remoted_s": remoted_s,
            "problems": data["problems"],
            "gpu": gpu_of(path.parent),
        }
    return rows


def stable_lines(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [line for line in lines if not line.startswith("#")]


def program_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Programs that run.sh ran natively and remoted: same lines, same exit status."""
    rows = {}
    for part, title in PROGRAMS.items():
        for path in sorted(folder.rglob(f"{part}/*.native.out")):
            name = path.name.removesuffix(".native.out")
            native, remoted = (stable_lines(path.with_name(f"{name}.{side}.out")) for side in SIDES)
            status = [path.with_name(f"{name}.{side}.status").read_text().strip() for side in SIDES]
            problems = [] if native == remoted else ["other lines"]
            problems += [] if status == ["0", "0"] else [f"exit status {' and '.join(status)}"]
            rows[f"{part}/{name}"] = {
                "title": title.format(name),
                "compared": len(native),
                "native_s": None,
                "remoted_s": None,
                "problems": problems if native else [*problems, "no lines"],
                "gpu": gpu_of(path.parent),
            }
    return rows


def recordable(path: Path, known: Results) -> Results:
    """What native calls gave; a crash or a hang, for which others may be to blame, only where a
    process of its own came to the same.
    """
    alone = path.with_name("native.alone.tsv")
    sure = merged(known, read(alone) if alone.exists() else {})
    return {
        name: {
            what: said
            for what, said in rows.items()
            if said not in UNDEFINED or sure.get(name, {}).get(what) == said
        }
        for name, rows in read(path).items()
    }


def merge_bad_calls(run: Path) -> None:
    """Take over what native bad calls gave on a machine like the software GPU's: with one GPU.

    Not from another GPU with the driver that the record is of: there run.sh takes most of them from
    the record.
    """
    gpu, recorded = gpu_of(run), BAD_CALLS.read_text().split(":")[0].removeprefix("# ")
    is_taken_from_there = gpu != recorded and gpu.split(", ")[-1] == recorded.split(", ")[-1]
    if is_taken_from_there or len((run / "gpu.txt").read_text().splitlines()) > 1:
        return
    known = read(BAD_CALLS)
    gave = [recordable(path, known) for path in sorted(run.glob("errors*/native.tsv"))]
    if gave:
        head = f"# {gpu}: what native calls gave (tests/gpu/run.sh errors)\n"
        BAD_CALLS.write_text(head + text_of(merged(known, *gave)))


def merge_coverage(folder: Path, commit: str) -> int:
    """Take over what the runs below a folder have reached, and what native bad calls gave."""
    runs = [path.parent for path in folder.rglob("gpu.txt")]
    for run in runs:
        merge_bad_calls(run)
    return sum(coverage.merge(run, gpu_of(run), commit) for run in runs)


SIDES = ("native", "remoted")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--commit", default="HEAD", help="what was run")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if RECORDED.exists():
        rows = json.loads(RECORDED.read_text())
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", options.commit]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    folders = [Path(argument) for argument in options.folders]
    said = random_programs.merge(folders, gpu_of, commit)
    if said:
        print(said)
    for argument in options.folders:
        found = workload_rows(Path(argument)) | program_rows(Path(argument))
        n_reached = merge_coverage(Path(argument), commit)
        if not found and not n_reached and not said:
            raise SystemExit(f"report: no results below {argument}")
        for name, row in found.items():
            rows[name] = row | {"commit": commit}
    RECORDED.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    bad = [name for name, row in rows.items() if row["problems"]]
    print(f"report: {len(rows)} rows, {len(rows) - len(bad)} as natively; not: {', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
