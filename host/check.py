# SPDX-License-Identifier: Apache-2.0
"""`kvgpu check`: is this host ready for VMs, and if not, what is to be done."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgpu.host import paths
from kvgpu.host.client import ApiClient
from kvgpu.host.errors import KvgpuError
from kvgpu.host.inventory import find_nvidia_libcuda
from kvgpu.host.ivshmem import placement
from kvgpu.host.ivshmem.placement import SHM_DIR
from kvgpu.host.messages import HostStatusRequest
from kvgpu.host.units import GIB, format_size

TRUST_NOTE = (
    "one tenant's trust per host: quotas and compute shares are not enforced yet, so let only VMs "
    "whose tenants trust each other share a host."
)
OLDEST_DRIVER = 580
CPUINFO = Path("/proc/cpuinfo")
KVM = Path("/dev/kvm")
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
_APPARMOR_RULES = Path("/etc/apparmor.d/local/abstractions/libvirt-qemu")
_APPARMOR_RULE = "/dev/shm/kvgpu-* rw,"
_HMM_PARAMETER = Path("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: str  # ok, warning (works, but worse or less), failed
    detail: str
    to_do: str = ""


def has_kvm(cpuinfo: Path = CPUINFO, device: Path = KVM) -> bool:
    """Tell whether libvirt's QEMU can use KVM here; whether this user may is another question.

    A /dev/kvm alone proves nothing in a cloud VM.
    """
    return _can_virtualise(cpuinfo) and device.exists()


def _can_virtualise(cpuinfo: Path) -> bool:
    lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
    return any({"vmx", "svm"} & set(line.split(":", 1)[1].split()) for line in lines)


def run_checks(runtime_dir: Path) -> list[Finding]:
    """Return what was found, in the order in which it is to be mended."""
    checks: list[Callable[[], Finding]] = [
        check_kvm,
        _check_libvirt,
        lambda: check_hook(paths.HOOK_FILE, Path("/proc")),
        _check_apparmor,
        lambda: check_driver(find_nvidia_libcuda(), Path("/proc/driver/nvidia/version")),
        _check_worker,
        lambda: _check_kvgpud(runtime_dir),
        lambda: _check_confinement(runtime_dir),
        lambda: check_permissions(runtime_dir),
        _check_shm,
        lambda: check_huge_pages(placement.MOUNTS, placement.SHMEM_ENABLED),
        lambda: _check_hmm(runtime_dir),
    ]
    return [check() for check in checks]


def check_kvm(cpuinfo: Path = CPUINFO, device: Path = KVM) -> Finding:
    """Are VMs of qemu:///system virtualised: QEMU opens /dev/kvm there, not whoever asks."""
    none = "none: VMs are emulated (TCG), which is slow"
    if not _can_virtualise(cpuinfo):
        to_do = "enable virtualisation in the firmware, or in the host of this machine"
        return Finding("KVM", "warning", f"{none}; the processor has neither vmx nor svm", to_do)
    if not device.exists():
        to_do = "modprobe kvm_intel, or kvm_amd; dmesg says why it cannot be"
        return Finding("KVM", "warning", f"{none}; {device} is not there", to_do)
    who = "opens" if os.access(device, os.R_OK | os.W_OK) else "is there, for libvirt's QEMU"
    return Finding("KVM", "ok", f"{device} {who}; the processor has vmx or svm")


def _check_libvirt() -> Finding:
    virsh = shutil.which("virsh")
    if virsh is None:
        return Finding(
            "libvirt", "failed", "virsh not found", "apt install libvirt-daemon-system qemu-system"
        )
    try:
        result = subprocess.run(
            [virsh, "-c", "qemu:///system", "version"], capture_output=True, text=True, timeout=20
        )
    except subprocess.TimeoutExpired:
        return Finding("libvirt", "failed", "virsh hangs", "restart libvirtd")
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:] or ["no message"]
        return Finding("libvirt", "failed", last[0], "start libvirtd")
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    return Finding("libvirt", "ok", lines[-1] if lines else "answers")


def check_hook(hook: Path, proc: Path) -> Finding:
    """Is libvirt's hook there, and has libvirt seen it: it looks for hooks when it starts only."""
    if not os.access(hook, os.X_OK):
        return Finding(
            "libvirt hook",
            "failed",
            f"{hook} is not there, or not executable",
            "install kvgpu-host (or copy host/libvirt_hooks/kvgpu), then restart libvirtd",
        )
    for daemon in ("libvirtd", "virtqemud"):
        for started_s in _start_times(daemon, proc):
            if started_s < hook.stat().st_ctime:
                return Finding(
                    "libvirt hook",
                    "failed",
                    f"{daemon} was started before {hook} was there, and does not know it",
                    f"systemctl restart {daemon} (running VMs go on)",
                )
    return Finding("libvirt hook", "ok", str(hook))


def _start_times(name: str, proc: Path) -> list[float]:
    """When the processes of this name were started, as Unix times."""
    since_s = time.time() - float((proc / "uptime").read_text().split()[0])
    found = []
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            comm, _, rest = path.read_text().rpartition(")")
            if comm.partition("(")[2] == name:
                ticks = int(rest.split()[19])  # proc(5): starttime
                found.append(since_s + ticks / os.sysconf("SC_CLK_TCK"))
    return found


def _check_apparmor() -> Finding:
    try:
        enabled = _APPARMOR.read_text().strip() == "Y"
    except OSError:
        enabled = False
    if not enabled:
        return Finding("AppArmor", "ok", "not enabled")
    return check_apparmor_rule(_APPARMOR_RULES)


def check_apparmor_rule(rules: Path) -> Finding:
    """Is there the rule that lets QEMU open a region that is plugged into a running VM."""
    with contextlib.suppress(OSError):
        if any(line.strip() == _APPARMOR_RULE for line in rules.read_text().splitlines()):
            return Finding("AppArmor", "ok", f"regions are allowed by {rules}")
    return Finding(
        "AppArmor",
        "warning",
        "libvirt allows a VM its region when it starts, but not one that is plugged in later",
        f"add the line `{_APPARMOR_RULE}` to {rules}",
    )


def check_driver(libraries: list[Path], kernel_module: Path) -> Finding:
    """Are NVIDIA's library and kernel module there, new enough, and of one version."""
    try:
        found = re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", kernel_module.read_text())
    except OSError:
        found = None
    loaded = found[1] if found else ""
    if not libraries and not loaded:
        return Finding(
            "driver",
            "warning",
            "no NVIDIA driver: VMs get the software GPU",
            "install NVIDIA's driver (580 or newer) and restart kvgpud, if this host has a GPU",
        )
    if not libraries:
        what = f"kernel module {loaded} is loaded, its libcuda.so.1 is not there"
        return Finding("driver", "failed", what, "install the package that has it (libcuda1)")
    # libcuda.so.1 leads to libcuda.so.VERSION
    version = libraries[0].resolve().name.removeprefix("libcuda.so.")
    if not loaded:
        what = f"{libraries[0]} is there, NVIDIA's kernel module is not loaded"
        return Finding("driver", "failed", what, "modprobe nvidia; dmesg says why it cannot be")
    if "." in version and version != loaded:
        what = f"libcuda is {version}, the loaded kernel module {loaded}"
        return Finding("driver", "failed", what, "reboot, or load the module of that version")
    if int(loaded.split(".")[0]) < OLDEST_DRIVER:
        to_do = f"install {OLDEST_DRIVER} or newer: programs of CUDA 13 need it"
        return Finding("driver", "warning", f"NVIDIA {loaded}", to_do)
    return Finding("driver", "ok", f"NVIDIA {loaded}")


def _check_worker() -> Finding:
    try:
        return Finding("worker", "ok", str(paths.find_worker()))
    except KvgpuError as error:
        return Finding("worker", "failed", error.message, error.hint)


def _check_kvgpud(runtime_dir: Path) -> Finding:
    try:
        with ApiClient(runtime_dir) as api:
            status = api.ask(HostStatusRequest())
    except KvgpuError as error:
        return Finding("kvgpud", "failed", error.message, error.hint)
    if status["inventory_error"]:
        return Finding(
            "kvgpud", "failed", status["inventory_error"], "mend the driver; kvgpud looks again"
        )
    n_devices = len(status["inventory"].get("devices", []))
    return Finding("kvgpud", "ok", f"{n_devices} device(s) of {status['driver']}")


def _check_confinement(runtime_dir: Path) -> Finding:
    try:
        with ApiClient(runtime_dir) as api:
            return check_confinement(api.ask(HostStatusRequest())["confinement_problem"])
    except KvgpuError:
        return Finding("confinement", "warning", "not known: kvgpud does not answer", "see kvgpud")


def check_confinement(problem: str) -> Finding:
    """Have the workers all that docs/security.md says."""
    if not problem:
        return Finding("confinement", "ok", "a uid, namespaces and limits for each worker")
    return Finding(
        "confinement",
        "warning",
        problem,
        "run kvgpud as root with jail = true, on cgroup v2 (kernel option "
        "systemd.unified_cgroup_hierarchy=1)",
    )


def check_permissions(runtime_dir: Path) -> Finding:
    """May this user ask kvgpud."""
    path = runtime_dir / "kvgpud.sock"
    if not path.exists() or os.access(path, os.R_OK | os.W_OK):
        return Finding("permissions", "ok", "this user may use kvgpud")
    return Finding(
        "permissions",
        "failed",
        f"{path} is closed to this user",
        f"sudo adduser {getpass.getuser()} {paths.API_GROUP}, then log in again; or use sudo",
    )


def check_huge_pages(mounts: Path, shmem_enabled: Path) -> Finding:
    """Are the regions in huge pages: fewer misses where a guest's programs copy much."""
    if not shmem_enabled.exists():
        return Finding("huge pages", "ok", "this kernel has none for shared memory")
    setting = placement.shm_huge_pages(mounts, shmem_enabled)
    if placement.gives_huge_pages(setting):
        return Finding("huge pages", "ok", f"{SHM_DIR}: {setting}")
    return Finding(
        "huge pages",
        "warning",
        f"{SHM_DIR}: {setting}; copies through the regions take more page-table walks",
        placement.SHM_TO_DO,
    )


def _check_shm() -> Finding:
    stat = os.statvfs(SHM_DIR)
    free_bytes = stat.f_bavail * stat.f_frsize
    detail = f"{format_size(free_bytes)} left in {SHM_DIR}"
    if free_bytes < GIB:
        return Finding("memory", "failed", detail, f"mount -o remount,size=LARGER {SHM_DIR}")
    return Finding("memory", "ok", detail)


def _check_hmm(runtime_dir: Path) -> Finding:
    try:
        with ApiClient(runtime_dir) as api:
            status = api.ask(HostStatusRequest())
    except KvgpuError:
        return check_hmm([], False, _HMM_PARAMETER)
    return check_hmm(status["inventory"].get("devices", []), status["allow_hmm"], _HMM_PARAMETER)


def check_hmm(devices: list[dict[str, Any]], allow_hmm: bool, parameter: Path) -> Finding:
    """Can a kernel read all of its worker's memory: kvgpud starts no VM then, unless told to.

    Without devices to judge by, the kernel module's parameter says what is likely.
    """
    to_do = "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d/kvgpu.conf, reload nvidia_uvm"
    if any(device.get("pageable_memory_access") for device in devices):
        what = "on: a VM's kernels could read all memory of its worker"
        if allow_hmm:
            return Finding("HMM", "warning", f"{what}, which allow_hmm accepts", to_do)
        to_do += "; or allow_hmm = true in /etc/kvgpu/host.toml"
        return Finding("HMM", "failed", f"{what}, and kvgpud starts no VM", to_do)
    if devices:
        return Finding("HMM", "ok", "off")
    try:
        off = parameter.read_text().strip() in ("1", "Y")
    except OSError:
        return Finding("HMM", "ok", "no nvidia_uvm module")
    if off:
        return Finding("HMM", "ok", "off")
    return Finding("HMM", "warning", "may be on, kvgpud can tell: it starts no VM then", to_do)
