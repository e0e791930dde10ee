# SPDX-License-Identifier: Apache-2.0
"""`kvgpu check`: is this host ready for VMs, and if not, what is to be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvgpu.host import paths
from kvgpu.host.client import ApiClient
from kvgpu.host.errors import KvgpuError
from kvgpu.host.ivshmem.region import SHM_DIR
from kvgpu.host.messages import HostStatusRequest
from kvgpu.host.units import GIB, format_size

TRUST_NOTE = (
    "VMs of one host share its GPUs: quotas and compute shares are not enforced yet, so let only "
    "tenants who trust each other share a host."
)
_HMM_PARAMETER = Path("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: str  # ok, warning (works, but worse or less), failed
    detail: str
    to_do: str = ""


def has_kvm(cpuinfo: str | None = None, device: str = "/dev/kvm") -> bool:
    """Tell whether KVM works here: an existing /dev/kvm alone proves nothing in a cloud VM."""
    if cpuinfo is None:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = {
        flag
        for line in cpuinfo.splitlines()
        if line.startswith("flags")
        for flag in line.split(":", 1)[1].split()
    }
    return bool(flags & {"vmx", "svm"}) and os.access(device, os.R_OK | os.W_OK)


def run_checks(runtime_dir: Path) -> list[Finding]:
    """Return what was found, in the order in which it is to be mended."""
    checks: list[Callable[[], Finding]] = [
        _check_kvm,
        _check_libvirt,
        _check_hook,
        _check_worker,
        lambda: _check_kvgpud(runtime_dir),
        _check_shm,
        _check_hmm,
    ]
    return [check() for check in checks]


def _check_kvm() -> Finding:
    if has_kvm():
        return Finding("KVM", "ok", "/dev/kvm opens, the processor has vmx or svm")
    return Finding(
        "KVM",
        "warning",
        "none: VMs are emulated (TCG), which is slow",
        "enable virtualisation in the firmware; see that you may open /dev/kvm",
    )


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


def _check_hook() -> Finding:
    if os.access(paths.HOOK_FILE, os.X_OK):
        return Finding("libvirt hook", "ok", str(paths.HOOK_FILE))
    return Finding(
        "libvirt hook",
        "failed",
        f"{paths.HOOK_FILE} is not there",
        "install kvgpu-host (or copy host/libvirt_hooks/kvgpu), then restart libvirtd",
    )


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
            "kvgpud", "failed", status["inventory_error"], "mend the driver, restart kvgpud"
        )
    n_devices = len(status["inventory"].get("devices", []))
    return Finding("kvgpud", "ok", f"{n_devices} device(s) of {status['driver']}")


def _check_shm() -> Finding:
    stat = os.statvfs(SHM_DIR)
    free_bytes = stat.f_bavail * stat.f_frsize
    detail = f"{format_size(free_bytes)} left in {SHM_DIR}"
    if free_bytes < GIB:
        return Finding("memory", "failed", detail, f"mount -o remount,size=LARGER {SHM_DIR}")
    return Finding("memory", "ok", detail)


def _check_hmm() -> Finding:
    try:
        off = _HMM_PARAMETER.read_text().strip() in ("1", "Y")
    except OSError:
        return Finding("HMM", "ok", "no nvidia_uvm module")
    if off:
        return Finding("HMM", "ok", "off")
    return Finding(
        "HMM",
        "warning",
        "may be on: a VM's kernels could read all memory of its worker",
        "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d/kvgpu.conf, reload nvidia_uvm",
    )
