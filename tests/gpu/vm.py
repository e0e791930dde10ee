# SPDX-License-Identifier: Apache-2.0
"""Run the test programs inside an emulated VM beside the GPU, and collect the evidence.

Everything but QEMU's command line is what libvirt would do: the domain XML of `kvgpu vm xml`, the
hook's calls in their order, kvgpud. Needs root and build/gpu-vm (vm_bundle.py makes it elsewhere).
Other places than a GPU machine: --driver software.
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
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "build/gpu-vm"
HOOK = ROOT / "host/libvirt_hooks/kvgpu"
VM_LIMIT_S = 420.0
START_LIMIT_S = 60.0
POLL_S = 0.2
INSTALLED_LIBRARY = "/usr/lib/x86_64-linux-gnu/kvgpu/libcuda.so.1"


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
    raise EvidenceError(f"kvgpud does not answer within {START_LIMIT_S:g} s: see kvgpud.log")


def qemu_command(domain: Domain, work: Path, serial: Path) -> list[str]:
    """Return QEMU's command line: the devices that libvirt would give the domain."""
    qemu = work / "qemu"
    region = f"memory-backend-file,id=region,share=on,mem-path=/dev/shm/{domain.region_name}"
    loader = next((qemu / "lib").glob("ld-linux-x86-64.so.*"))
    return [
        *(str(loader), "--library-path", str(qemu / "lib"), str(qemu / "qemu-system-x86_64")),
        *("-L", str(qemu / "firmware"), "-nodefaults", "-no-reboot", "-display", "none"),
        *("-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"),
        *("-kernel", str(work / "vmlinux"), "-initrd", str(BUNDLE / "initrd.zst")),
        *("-append", "console=ttyS0 quiet panic=-1"),
        *("-serial", f"file:{serial}"),
        *("-object", f"{region},size={domain.region_mib}M"),
        *("-device", "ivshmem-plain,memdev=region"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=control,path={domain.channel_path},server=on,wait=off"),
        *("-device", "virtserialport,chardev=control,name=org.kvgpu.0"),
    ]


def gpu_processes() -> str:
    """Return nvidia-smi's list of processes that compute."""
    query = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
    run = subprocess.run(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True, check=False)
    return run.stdout.strip()


def watch(qemu: subprocess.Popen[bytes], has_gpu: bool, out: Path) -> None:
    """Wait for the VM's end; keep what the host shows meanwhile."""
    deadline = time.monotonic() + VM_LIMIT_S
    seen: dict[str, None] = {}
    while qemu.poll() is None and time.monotonic() < deadline:
        if has_gpu:
            seen |= dict.fromkeys(f"nvidia-smi: {line}" for line in gpu_processes().splitlines())
        workers = subprocess.run(
            ["pgrep", "--list-full", "kvgpu-worker"], stdout=subprocess.PIPE, text=True, check=False
        ).stdout
        seen |= dict.fromkeys(f"worker: {line}" for line in workers.splitlines())
        time.sleep(POLL_S)
    (out / "host-evidence.txt").write_text("\n".join(seen) + "\n")
    if qemu.poll() is None:
        raise EvidenceError(f"the VM did not end within {VM_LIMIT_S:g} s: see serial.log")


def run_vm(domain: Domain, has_gpu: bool, out: Path) -> None:
    """Prepare, start, wait, release: the hook's order."""
    serial = out / "serial.log"
    hook(domain, "prepare", "begin")
    with tempfile.TemporaryDirectory() as name, (out / "qemu.log").open("w") as log:
        with lzma.open(BUNDLE / "vmlinux.xz") as packed, (Path(name) / "vmlinux").open("wb") as to:
            shutil.copyfileobj(packed, to)
        with tarfile.open(BUNDLE / "qemu.tar.xz") as archive:
            archive.extractall(name, filter="data")
        command = qemu_command(domain, Path(name), serial)
        environment = os.environ | {"QEMU_MODULE_DIR": f"{name}/qemu/modules"}
        qemu = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            hook(domain, "started", "begin")
            watch(qemu, has_gpu, out)
        finally:
            qemu.kill()
            qemu.wait(30)
            hook(domain, "stopped", "end", check=False)
            hook(domain, "release", "end", check=False)


def require(condition: object, what: str) -> None:
    if not condition:
        raise EvidenceError(what)


def check_serial(text: str) -> None:
    """Look for everything that must stand in the guest's serial log."""
    lines = [line.removeprefix("guest: ") for line in text.splitlines() if "guest: " in line]
    require(any(line.startswith("version Linux version") for line in lines), "no /proc/version")
    require(any("0x1af4:0x1110" in line for line in lines), "no PCI device 1af4:1110")
    require(any(line.startswith("package kvgpu-guest") for line in lines), "package not installed")
    require(any(INSTALLED_LIBRARY in line for line in lines if line.startswith("maps ")), "no maps")
    ends = [line for line in lines if line.startswith("end ")]
    require(ends, "no program ran")
    failed = [line for line in ends if not line.endswith("status 0")]
    require(not failed, f"failed in the guest: {failed}")
    require("finished" in lines, "the guest did not finish")
    for line in lines:
        if line.split(" ")[0] in ("version", "pci", "package", "maps", "begin", "end"):
            if "pci" not in line or "1af4" in line:
                print(f"vm: {line}")


def check_host(text: str, has_gpu: bool) -> None:
    """The worker's pid must be among the processes on the GPU."""
    print(text, end="")
    workers = set(re.findall(r"^worker: (\d+)", text, re.MULTILINE))
    require(workers, "no worker was seen")
    if has_gpu:
        on_gpu = set(re.findall(r"^nvidia-smi: (\d+)", text, re.MULTILINE))
        require(workers & on_gpu, f"nvidia-smi shows {on_gpu or 'nobody'}, workers were {workers}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/test-gpu")
    parser.add_argument("--driver", default="nvidia")
    options = parser.parse_args()
    out = options.out.resolve() / "vm"
    has_gpu = options.driver == "nvidia"
    if not (BUNDLE / "initrd.zst").exists():
        print(f"vm: no {BUNDLE}: make it elsewhere with tests/gpu/vm_bundle.py", file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        with runtime_dir(), kvgpud(options.driver, out):
            xml = kvgpu(
                *("vm", "xml", "gpu-vm", "--memory", "8GiB", "--pinned", "512MiB", "--no-kvm"),
                *("--ram", "2GiB", "--network", "none"),
            )
            domain = Domain.parse(xml)
            run_vm(domain, has_gpu, out)
        check_serial((out / "serial.log").read_text(errors="replace").replace("\r", ""))
        check_host((out / "host-evidence.txt").read_text(), has_gpu)
    except (EvidenceError, subprocess.CalledProcessError) as error:
        print(f"vm: FAILED: {error} (logs in {out})", file=sys.stderr)
        return 1
    print("vm: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
