# SPDX-License-Identifier: Apache-2.0
"""What vm.py has run in the guest, and how it is compared with the same run natively.

A job is a shell script that is the same here and there; $RECORD and $DISK say where its record goes
and where there is a file system with O_DIRECT.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from framework.runtimes import environment as runtimes_environment  # noqa: E402
from gpu.workloads.catalog import BY_NAME, IN_VM  # noqa: E402
from gpu.workloads.compare import Result, differences, load  # noqa: E402

PROGRAMS = ROOT / "build/release/tests/programs"
# spin, speed and steady measure, which says nothing here; bugs is for the software GPU.
NO_PROGRAMS_HERE = {"bugs", "speed", "spin", "steady"}
NATIVE_LIMIT_S = 180
# $KVGPU_PINNED of the programs in the guest: docs/pinned-memory.md.
BY_COPIES = {"KVGPU_PINNED": "copy"}


@dataclass(frozen=True)
class Job:
    """`command`: shell words. `refusal`: the guest's only line, where it differs from native's."""

    name: str
    title: str
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    n_gpus: int = 1
    has_record: bool = False
    refusal: str = ""

    def script(self) -> str:
        """Return the same script for both places: nothing in it is of the host's driver."""
        path = ":".join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        lines = [f"export {k}={shlex.quote(v)}" for k, v in variables.items()]
        for name, value in self.environment.items():
            mine = f"${{{name}:+:${name}}}" if name == "LD_LIBRARY_PATH" else ""
            lines.append(f'export {name}="{value}{mine}"')
        return "\n".join([f"cd {shlex.quote(str(ROOT))}", *lines, f"exec {self.command}", ""])


def workload_jobs() -> list[Job]:
    jobs = []
    for workload in (BY_NAME[name] for name in IN_VM):
        command = f'python3 -P -m gpu.workloads {workload.name} "$RECORD"'
        settings = (workload.environment, workload.n_gpus, True)
        jobs.append(Job(workload.name, workload.title, command, *settings))
    return jobs


def program_jobs() -> list[Job]:
    """The programs with a static cudart, cuda-python and NVRTC, O_DIRECT."""
    nvrtc = "tests/loopback/runtimes/cuda_python.py"
    read = 'python3 -P tests/gpu/o_direct.py "$DISK"'
    jobs = [
        Job("cuda-bindings", "cuda.bindings, NVRTC", f"python3 -P {nvrtc}", runtimes_environment()),
        Job("o-direct", "O_DIRECT into pinned memory (KVGPU_PINNED=copy)", read, BY_COPIES),
        Job(
            *("o-direct-mapped", "O_DIRECT into the region, EFAULT as documented", read),
            refusal="O_DIRECT into pinned memory: EFAULT",
        ),
    ]
    for path in sorted(PROGRAMS.iterdir()):
        is_program = path.is_file() and os.access(path, os.X_OK)
        if is_program and path.name not in NO_PROGRAMS_HERE:
            title = f"program `{path.name}`, static cudart"
            jobs.append(Job(path.name, title, shlex.quote(str(path))))
    return jobs


def lacks(job: Job, n_gpus: int) -> str:
    """Return why a job cannot run on this machine, natively either."""
    if job.n_gpus > n_gpus:
        refused = "; NCCL takes one process per GPU, natively, too" if "nccl" in job.name else ""
        return f"needs {job.n_gpus} GPUs, here are {n_gpus}{refused}"
    if job.has_record and importlib.util.find_spec("torch") is None:
        return "no PyTorch here"
    return ""


def chosen(n_gpus: int, only: Sequence[str]) -> list[Job]:
    """Return the jobs to run, the longest first; say which are not."""
    jobs = [job for job in (*workload_jobs(), *program_jobs()) if not only or job.name in only]
    for job in jobs:
        if why := lacks(job, n_gpus):
            print(f"not run {job.name}: {why}", flush=True)
    return [job for job in jobs if not lacks(job, n_gpus)]


def library_path() -> str:
    """Return what of $LD_LIBRARY_PATH is not the host driver's."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return ":".join(path for path in folders if path and not Path(path, "libcuda.so.1").exists())


def hand_over(jobs: list[Job], results: Path, n_lanes: int, limit_s: int) -> None:
    """Write what vm_guest.sh reads."""
    shutil.copy(Path(__file__).with_name("vm_guest.sh"), results)
    (results / "n_jobs").write_text(str(len(jobs)))
    (results / "job_limit_s").write_text(str(limit_s))
    (results / "library_path").write_text(library_path())
    for index, job in enumerate(jobs):
        row, column = divmod(index, n_lanes)
        # There and back, so that the lanes of the longest get the last of each row.
        lane = results / f"jobs/{n_lanes - 1 - column if row % 2 else column}"
        lane.mkdir(parents=True, exist_ok=True)
        (lane / f"{index:02}-{job.name}").write_text(job.script())


def run_natively(job: Job, folder: Path, prefix: Sequence[str]) -> None:
    """Leave what vm_guest.sh leaves of a job."""
    base = folder / job.name
    disk = base.with_suffix(".disk")
    disk.mkdir(parents=True)
    variables = {"RECORD": f"{base}.json", "DISK": str(disk)}
    with open(f"{base}.out", "w") as out, open(f"{base}.err", "w") as err:
        done = subprocess.run(
            ["timeout", "-k", "10", str(NATIVE_LIMIT_S), *prefix, "sh", "-c", job.script()],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            check=False,
        )
    Path(f"{base}.status").write_text(f"{done.returncode}\n")
    shutil.rmtree(disk)


def run_all_natively(jobs: list[Job], folder: Path, prefix: Sequence[str], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(run_natively, job, folder, prefix) for job in jobs]:
            done.result()


def stable_lines(path: Path) -> list[str]:
    """The lines of a program's output that no run may change, as run.sh has them."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return [line for line in text.splitlines() if not line.startswith("#")]


def status_of(job: Job, folder: Path) -> str:
    path = folder / f"{job.name}.status"
    return path.read_text().strip() if path.exists() else "none"


def compare_lines(job: Job, native: Path, guest: Path, result: Result) -> None:
    ours, theirs = (stable_lines(folder / f"{job.name}.out") for folder in (native, guest))
    result.n_compared = len(ours)
    if not ours:
        result.problems.append("no output natively")
    if job.refusal:
        ours = [job.refusal]
    for number, (here, there) in enumerate(zip(ours, theirs, strict=False)):
        if here != there:
            result.problems.append(f"line {number + 1}: {here!r} natively, {there!r} in the guest")
            return
    if len(ours) != len(theirs):
        result.problems.append(f"{len(ours)} lines natively, {len(theirs)} in the guest")


def compare(job: Job, natives: list[Path], guest: Path) -> Result:
    """Return what is different in the guest."""
    result = Result(f"vm-{job.name}", f"in an emulated VM: {job.title}")
    for folder, where in zip(natives, ("natively", "natively again"), strict=False):
        if status_of(job, folder) != "0":
            result.problems.append(f"status {status_of(job, folder)} {where}")
    if status_of(job, guest) != ("1" if job.refusal else "0"):
        result.problems.append(f"status {status_of(job, guest)} in the guest")
    if result.problems:
        return result
    if job.has_record:
        first, second, remoted = (load(path / f"{job.name}.json") for path in (*natives, guest))
        result.problems = differences([first, second], remoted)
        result.n_compared = len(first.same) + len(first.near)
        result.pairs = {"all": (first.seconds["all"], remoted.seconds["all"])}
    else:
        compare_lines(job, natives[0], guest, result)
    return result


def report(job: Job, result: Result, guest: Path, out: Path) -> None:
    """Print the verdict, and where it is bad the end of what the guest said."""
    words = "FAILED " if result.problems else "same   "
    times = ""
    if "all" in result.pairs:
        times = " {:.1f} s natively, {:.1f} s in the guest".format(*result.pairs["all"])
    print(f"{words} {job.name}:{times} ({result.n_compared} compared)", flush=True)
    for problem in result.problems:
        print(f"        {problem[:400]}")
    if result.problems:
        for kind in ("out", "err"):
            path = guest / f"{job.name}.{kind}"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            print("".join(f"        | {line[:300]}\n" for line in lines[-15:]), end="", flush=True)
    folder = out / "workloads"  # tests/gpu/report.py reads it
    folder.mkdir(exist_ok=True)
    (folder / f"{result.name}.json").write_text(json.dumps(asdict(result), indent=1))
