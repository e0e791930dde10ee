# SPDX-License-Identifier: Apache-2.0
"""Run programs inside an emulated VM beside the GPU and natively, compare, collect the evidence.

Everything but QEMU's command line is what libvirt would do: the domain XML of `kvgpu vm xml`, the
hook's calls in their order, kvgpud. The guest's file system is this machine's, by 9p and read-only,
with the package kvgpu-guest installed over it. Needs root and build/gpu-vm (vm_bundle.py makes it
elsewhere). Other places than a GPU machine: --driver software.
"""

import argparse
import contextlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from gpu import vm_jobs  # noqa: E402
from gpu.workloads.compare import count_gpus  # noqa: E402

from kvgpu.host import paths  # noqa: E402

BUNDLE = ROOT / "build/gpu-vm"
HOOK = ROOT / "host/libvirt_hooks/kvgpu"
LIMIT_S = 470
START_AND_END_S = 75  # of the VM
START_LIMIT_S = 60
POLL_S = 0.2
INSTALLED_LIBRARY = "/usr/lib/x86_64-linux-gnu/kvgpu/libcuda.so.1"


RAM_GIB = 16
# Without norandmaps, each process would have its code translated anew.
QUICKER = "norandmaps no5lvl mitigations=off tsc=reliable"
MAX_VCPUS = 12


class EvidenceError(Exception):
    """Something that must be seen was not seen."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What QEMU needs to know of the domain XML."""

    xml: str
    region_name: str
    region_mib: int
    channel_path: str

    @classmethod
    def parse(cls, xml: str) -> "Domain":
        devices = ET.fromstring(xml).find("devices")
        assert devices is not None
        shmem, channel = devices.find("shmem"), devices.find("channel")
        assert shmem is not None
        assert channel is not None
        source = channel.find("source")
        assert source is not None
        region_mib = int(shmem.findtext("size", ""))
        return cls(xml, shmem.attrib["name"], region_mib, source.attrib["path"])


@contextlib.contextmanager
def runtime_dir() -> Iterator[None]:
    """Set a folder of our own for kvgpud, the command and the hook: another kvgpud may run."""
    with tempfile.TemporaryDirectory(prefix="kvgpu-") as name:
        Path(name).chmod(0o755)
        os.environ["KVGPU_RUNTIME_DIR"] = name
        yield


def kvgpu(*arguments: str, stderr: int | None = None) -> str:
    command = [sys.executable, "-P", "-m", "kvgpu.host.cli", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=stderr, text=True
    ).stdout


def hook(domain: Domain, operation: str, sub_operation: str, check: bool = True) -> None:
    """Call the hook as libvirt does."""
    command = [str(HOOK), "gpu-vm", operation, sub_operation, "-"]
    subprocess.run(command, input=domain.xml, text=True, check=check)


@contextlib.contextmanager
def kvgpud(driver: str, out: Path) -> Iterator[None]:
    """Run kvgpud until the end of the block."""
    config = out / "host.toml"
    # One tenant on this machine: its kernels may see what its worker sees.
    config.write_text("allow_hmm = true\n")
    command = [sys.executable, "-P", "-m", "kvgpu.host.kvgpud"]
    with (out / "kvgpud.log").open("w") as log:
        process = subprocess.Popen(
            [
                *command,
                *("--driver", driver, "--config", str(config)),
                *("--runtime-dir", os.environ["KVGPU_RUNTIME_DIR"]),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            wait_for_kvgpud(process)
            yield
        finally:
            process.terminate()
            process.wait(30)


def wait_for_kvgpud(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EvidenceError("kvgpud has ended: see kvgpud.log")
        with contextlib.suppress(subprocess.CalledProcessError):
            print(kvgpu("host", "status", stderr=subprocess.DEVNULL), flush=True)
            return
        time.sleep(POLL_S)
    raise EvidenceError(f"kvgpud does not answer within {START_LIMIT_S} s: see kvgpud.log")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the guest gets beside its GPU."""

    vcpus: int
    ram_gib: int
    results: Path

    @classmethod
    def fitting(cls, results: Path) -> "Machine":
        """A part of what is here: the workers and the native runs need some, too."""
        ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        vcpus = max(2, min(MAX_VCPUS, len(os.sched_getaffinity(0)) * 5 // 8))
        return cls(vcpus, min(RAM_GIB, ram_bytes // 2 >> 30), results)


def qemu_command(domain: Domain, machine: Machine, work: Path, serial: Path) -> list[str]:
    """Return the devices that libvirt would give the domain, and two folders."""
    qemu = work / "qemu"
    region = f"memory-backend-file,id=region,share=on,mem-path=/dev/shm/{domain.region_name}"
    loader = next((qemu / "lib").glob("ld-linux-x86-64.so.*"))
    by_9p = "security_model=none,multidevs=remap"
    return [
        *(str(loader), "--library-path", str(qemu / "lib"), str(qemu / "qemu-system-x86_64")),
        *("-L", str(qemu / "firmware"), "-nodefaults", "-no-reboot", "-display", "none"),
        *("-machine", "pc", "-accel", "tcg,thread=multi,tb-size=2048", "-cpu", "max"),
        *("-smp", str(machine.vcpus), "-m", f"{machine.ram_gib}G"),
        *("-kernel", str(work / "vmlinux"), "-initrd", str(BUNDLE / "initrd.zst")),
        *("-append", f"console=ttyS0 quiet panic=-1 {QUICKER}"),
        *("-serial", f"file:{serial}"),
        *("-object", f"{region},size={domain.region_mib}M"),
        *("-device", "ivshmem-plain,memdev=region"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=control,path={domain.channel_path},server=on,wait=off"),
        *("-device", "virtserialport,chardev=control,name=org.kvgpu.0"),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{by_9p}"),
        *("-virtfs", f"local,path={machine.results},mount_tag=results,{by_9p}"),
        *("-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={work / 'disk'}"),
        *("-device", "virtio-blk-pci,drive=disk"),
    ]


def gpu_processes() -> str:
    """Return nvidia-smi's list of processes that compute."""
    query = ["--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    run = subprocess.run(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True, check=False)
    return run.stdout.strip()


def watch(qemu: subprocess.Popen[bytes], limit_s: int, has_gpu: bool, out: Path) -> None:
    """Wait for the VM's end; keep what the host shows meanwhile."""
    deadline = time.monotonic() + limit_s
    seen: dict[str, None] = {}
    worker = paths.find_worker()
    while qemu.poll() is None and time.monotonic() < deadline:
        if has_gpu:
            seen |= dict.fromkeys(f"nvidia-smi: {line}" for line in gpu_processes().splitlines())
        workers = subprocess.run(
            ["pgrep", "--list-full", "--full", f"^{worker} "],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        ).stdout
        seen |= dict.fromkeys(f"worker: {line}" for line in workers.splitlines())
        time.sleep(POLL_S)
    (out / "host-evidence.txt").write_text("\n".join(seen) + "\n")
    if qemu.poll() is None:
        raise EvidenceError(f"the VM did not end within {limit_s} s: see serial.log")


def unpack_bundle(work: Path) -> None:
    for name in ("vmlinux", "disk"):
        with lzma.open(BUNDLE / f"{name}.xz") as packed, (work / name).open("wb") as to:
            shutil.copyfileobj(packed, to)
    with tarfile.open(BUNDLE / "qemu.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(work)


def run_vm(domain: Domain, machine: Machine, limit_s: int, has_gpu: bool, out: Path) -> None:
    """Prepare, start, wait, release: the hook's order."""
    hook(domain, "prepare", "begin")
    with tempfile.TemporaryDirectory() as name, (out / "qemu.log").open("w") as log:
        unpack_bundle(Path(name))
        command = qemu_command(domain, machine, Path(name), out / "serial.log")
        environment = os.environ | {"QEMU_MODULE_DIR": f"{name}/qemu/modules"}
        qemu = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            hook(domain, "started", "begin")
            watch(qemu, limit_s, has_gpu, out)
        finally:
            qemu.kill()
            qemu.wait(30)
            hook(domain, "stopped", "end", check=False)
            hook(domain, "release", "end", check=False)


def require(condition: object, what: str) -> None:
    if not condition:
        raise EvidenceError(what)


SHOWN = ("version", "userland", "pci", "removed", "package", "library", "agent", "finished", "no")


def check_serial(text: str) -> None:
    """Look for everything that must stand in the guest's serial log."""
    lines = [line.partition("guest: ")[2] for line in text.splitlines() if "guest: " in line]
    for line in lines:
        if line.split(" ")[0] in SHOWN and ("pci" not in line or "1af4:" in line):
            print(f"vm: {line}")
    require(any(line.startswith("version Linux version") for line in lines), "no /proc/version")
    require(any("0x1af4:0x1110" in line for line in lines), "no PCI device 1af4:1110")
    require(any(line.startswith("package kvgpu-guest") for line in lines), "package not installed")
    require(any(INSTALLED_LIBRARY in line for line in lines), "ldconfig does not know the library")
    require(any(line.startswith("finished") for line in lines), "the guest did not finish")


def check_maps(text: str, jobs: list[vm_jobs.Job]) -> None:
    """No job may have mapped another driver library than the installed one."""
    seen: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, _, library = line.partition(" ")
        seen.setdefault(name, set()).add(library)
    libraries = set().union(*seen.values())
    unseen = [job.name for job in jobs if job.name not in seen]
    print(f"vm: maps {' '.join(sorted(libraries))} in {len(seen)} of {len(jobs)} programs")
    if unseen:
        print(f"vm: maps not looked at in time: {' '.join(unseen)}")
    require(libraries == {INSTALLED_LIBRARY}, f"mapped in the guest: {libraries or 'nothing'}")


def check_host(text: str, has_gpu: bool) -> None:
    """The worker's pid must be among the processes on the GPU."""
    print(text, end="")
    workers = set(re.findall(r"^worker: (\d+)", text, re.MULTILINE))
    require(workers, "no worker was seen")
    if has_gpu:
        on_gpu = set(re.findall(r"^nvidia-smi: (\d+)", text, re.MULTILINE))
        require(workers & on_gpu, f"nvidia-smi shows {on_gpu or 'nobody'}, workers were {workers}")


def read(path: Path) -> str:
    return path.read_text(errors="replace").replace("\r", "") if path.exists() else ""


def run_everywhere(
    driver: str, jobs: list[vm_jobs.Job], machine: Machine, limit_s: int, out: Path
) -> None:
    """Run the jobs natively, then in the guest and meanwhile natively again."""
    begun_s = time.monotonic()
    # The software GPU has no private tables for a cudart: the guest's library brings them.
    prefix = (
        [] if driver == "nvidia" else [sys.executable, "-P", "-m", "kvgpu.host.cli", "run", "--"]
    )
    natives = out / "native", out / "native-again"
    with runtime_dir(), kvgpud(driver, out):
        # Before the guest: what Python compiles and what the disk holds is there for it then.
        vm_jobs.run_all_natively(jobs, natives[0], prefix, machine.vcpus)
        natively_s = int(time.monotonic() - begun_s)
        print(f"vm: natively {natively_s} s", flush=True)
        left_s = limit_s - natively_s
        vm_jobs.hand_over(jobs, machine.results, machine.vcpus, left_s - START_AND_END_S)
        xml = kvgpu(
            *("vm", "xml", "gpu-vm", "--memory", "32GiB", "--pinned", "1GiB", "--no-kvm"),
            *("--ram", f"{machine.ram_gib}GiB", "--network", "none"),
        )
        again = threading.Thread(
            target=vm_jobs.run_all_natively, args=(jobs, natives[1], prefix, 2)
        )
        again.start()
        try:
            run_vm(Domain.parse(xml), machine, left_s, driver == "nvidia", out)
            print(f"vm: ended {time.monotonic() - begun_s:.0f} s after the begin", flush=True)
        finally:
            again.join()
            keep_session_logs(out)


def keep_session_logs(out: Path) -> None:
    """What the workers wrote, in one file."""
    logs = sorted(Path(os.environ["KVGPU_RUNTIME_DIR"]).glob("log/*"))
    text = "".join(f"== {path.name}\n{path.read_text(errors='replace')}" for path in logs)
    (out / "sessions.log").write_text(text)


def judge(jobs: list[vm_jobs.Job], has_gpu: bool, out: Path) -> list[str]:
    """Return what is missing or different; of what ran, all is looked at."""
    problems = []
    checks: list[Callable[[], None]] = [
        lambda: check_serial(read(out / "serial.log")),
        lambda: check_maps(read(out / "guest/maps"), jobs),
        lambda: check_host(read(out / "host-evidence.txt"), has_gpu),
    ]
    for check in checks:
        try:
            check()
        except EvidenceError as error:
            problems.append(str(error))
    natives = [out / "native", out / "native-again"]
    results = [vm_jobs.compare(job, natives, out / "guest") for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        vm_jobs.report(job, result, out / "guest", out)
    good = sum(not result.problems for result in results)
    print(f"figure: {good} of {len(jobs)} programs give native's results in the VM")
    return problems + [f"{r.name}" for r in results if r.problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/test-gpu")
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S, help="of all that runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    out = options.out.resolve() / "vm"
    has_gpu = options.driver == "nvidia"
    if not (BUNDLE / "initrd.zst").exists():
        print(f"vm: no {BUNDLE}: make it elsewhere with tests/gpu/vm_bundle.py", file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    (out / "guest").mkdir(parents=True)
    jobs = vm_jobs.chosen(count_gpus() if has_gpu else 1, options.only)
    machine = Machine.fitting(out / "guest")
    print(f"vm: {machine.vcpus} processors, {machine.ram_gib} GiB", flush=True)
    problems = []
    try:
        run_everywhere(options.driver, jobs, machine, options.limit_s, out)
    except (EvidenceError, subprocess.SubprocessError, OSError) as error:
        problems.append(str(error))
    problems += judge(jobs, has_gpu, out)
    if problems:
        print(f"vm: FAILED: {'; '.join(problems)} (logs in {out})", file=sys.stderr)
        return 1
    print("vm: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
