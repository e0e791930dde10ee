# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi natively and through kvgpu on a real GPU: what it shows there is the slice.

python tests/gpu/nvml.py OUT: the outputs go to OUT/nvml.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from framework.loopback import BUILD, PROGRAMS, ROOT, Loopback, loopback
from framework.waiting import eventually

APPS = "--query-compute-apps=pid,process_name,gpu_uuid,used_memory"
FORMS = {
    "default": [],
    "L": ["-L"],
    "q": ["-q"],
    "query": [
        "--query-gpu=name,uuid,pci.bus_id,memory.total,utilization.gpu,temperature.gpu,power.draw,"
        "clocks.sm,driver_version",
        "--format=csv",
    ],
    "apps": [APPS, "--format=csv"],
    "power": [
        "--query-gpu=power.draw,power.draw.average,power.draw.instant,power.limit,ecc.mode.current,"
        "module.power.draw.average,memory.reserved,pcie.link.gen.current",
        "--format=csv",
    ],
    "owners": [f"{APPS},gpu_name,gpu_bus_id,gpu_serial", "--format=csv"],
    "topo": ["topo", "-m"],
    "nvlink": ["nvlink", "-s"],
    "dmon": ["dmon", "-c", "1"],
    "dmon-all": ["dmon", "-c", "1", "-s", "pucvmet"],
    "pmon": ["pmon", "-c", "1"],
    "pmon-all": ["pmon", "-c", "1", "-s", "um"],
}
COMPLAINTS = ("Function Not Found", "Unable to", "Failed to")  # of nvidia-smi, some with status 0
PROGRAM = ROOT / "tests/framework/nvml_program.py"
SMI = BUILD / "guest/smi/kvgpu-smi"
LIMIT_S = 60


class Run:
    """The programs of one `kvgpu run`."""

    def __init__(self, host: Loopback, socket: str) -> None:
        self._environment = {
            **host.environment,
            "LD_LIBRARY_PATH": host.environment["KVGPU_LIBCUDA_DIR"],
            "KVGPU_SOCKET": socket,
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def query(self, *options: str) -> list[list[str]]:
        """Return the rows of one of nvidia-smi's tables."""
        done = self.run("nvidia-smi", *options, "--format=csv,noheader,nounits")
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split(", ") for line in done.stdout.splitlines()]

    @contextmanager
    def program(self, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Start a program that says when it has begun; it ends with the block."""
        process = subprocess.Popen(
            [str(part) for part in command],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@contextmanager
def runs(host: Loopback) -> Iterator[tuple[Run, Run]]:
    """Two tenants."""
    with host.open_run() as first, host.open_run() as second:
        yield Run(host, first), Run(host, second)


def matrix(topology: str) -> list[list[str]]:
    """Return the ways from device to device; which processors are near is the VM's own matter."""
    rows = [line.split() for line in topology.splitlines() if re.match(r"GPU\d", line)]
    return [row[: 1 + len(rows)] for row in rows]


def forms(run: Run, out: Path) -> list[str]:
    """Ask natively and remoted; return what does not work in both."""
    failed = []
    for name, options in FORMS.items():
        native = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True)
        (out / f"{name}.native").write_text(native.stdout + native.stderr)
        begun_s = time.monotonic()
        remoted = run.run("nvidia-smi", *options)
        took_ms = (time.monotonic() - begun_s) * 1000
        (out / f"{name}.remoted").write_text(remoted.stdout + remoted.stderr)
        wrong = any(text in remoted.stdout and text not in native.stdout for text in COMPLAINTS)
        wrong |= name == "topo" and matrix(remoted.stdout) != matrix(native.stdout)
        if remoted.returncode or native.returncode or wrong:
            failed.append(name)
            print(f"FAILED  nvidia-smi {name}: {remoted.stdout}{remoted.stderr}")
        else:
            print(f"ok      nvidia-smi {name}: {took_ms:.0f} ms")
    return failed


def agrees_with_cuda(run: Run) -> None:
    assert eventually(lambda: memory_is_cudas(run), 60)  # others may use the device meanwhile
    with run.program(sys.executable, PROGRAM, "compute", "blind", "wait") as program:
        cuda = said_by(program)
        rows = run.query("--query-gpu=name,uuid,pci.bus_id,serial")
        name, uuid, bus_id, serial = rows[0]  # CUDA's first device, too
        assert uuid.removeprefix("GPU-").replace("-", "") == cuda["uuid"]
        assert bus_id.lower() == "0000" + cuda["pci_bus_id"].lower()
        assert len(json.loads(run.run(SMI, "--json").stdout)["devices"]) == len(rows)
        assert "N/A" in serial, serial
        print(f"ok      {name}, {uuid}: memory, UUID and PCI address are CUDA's, to the byte")


def allocated(run: Run) -> bool:
    return any(int(used_mib) > 0 for _pid, _name, _uuid, used_mib in run.query(APPS))


def memory_is_cudas(run: Run) -> bool:
    with run.program(sys.executable, PROGRAM, "compute", "blind", "wait") as program:
        cuda = said_by(program)
        device = json.loads(run.run(SMI, "--json").stdout)["devices"][0]
    assert device["total_bytes"] == cuda["total"] == cuda["device_total"]
    return bool(device["total_bytes"] - device["used_bytes"] == cuda["free"])


def said_by(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout
    cuda: dict[str, Any] = json.loads(program.stdout.readline())["cuda"]
    return cuda


def has_load(run: Run) -> bool:
    percent = run.query("--query-gpu=utilization.gpu")[0][0]
    return percent.isdecimal() and int(percent) > 0


def own_processes_only(own: Run, other: Run, host: Loopback) -> None:
    steady = PROGRAMS / "steady"
    with own.program(steady, "60") as mine, other.program(steady, "60") as theirs:
        for run in (own, other):  # a process is seen before what it allocated
            assert eventually(partial(allocated, run), 30)
        workers = {str(pid) for pid in host.worker_pids()}
        for run, process in ((own, mine), (other, theirs)):
            ((pid, name, _uuid, _used_mib),) = run.query(APPS)
            assert pid == str(process.pid), (pid, process.pid)
            assert pid not in workers
            assert Path(name).name == "steady", name
        monitored = own.run("nvidia-smi", "pmon", "-c", "1").stdout
        assert str(mine.pid) in monitored, monitored
        assert str(theirs.pid) not in monitored, monitored
        assert eventually(lambda: has_load(own), 20)
    print("ok      each of two runs sees its own process, by its own pid, and its load")


def nobodys_load(own: Run, other: Run) -> None:
    with other.program(PROGRAMS / "steady", "60"):
        assert eventually(lambda: other.query(APPS), 30)
        time.sleep(3)
        for row in own.query("--query-gpu=utilization.gpu,memory.used"):
            assert row == ["0", "0"], row
        assert own.query(APPS) == []
    print("ok      who does nothing sees no load and no memory of others")


def main() -> None:
    out = Path(sys.argv[1]) / "nvml"
    out.mkdir(parents=True, exist_ok=True)
    # No jail: the machine may be a container that cannot make one.
    with loopback(driver="nvidia", jail=False) as host:
        with runs(host) as (own, other):
            failed = forms(own, out)
            agrees_with_cuda(own)
            own_processes_only(own, other, host)
            nobodys_load(own, other)
    if failed:
        sys.exit(f"FAILED  nvidia-smi {', '.join(failed)}")


if __name__ == "__main__":
    main()
